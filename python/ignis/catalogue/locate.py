"""From what an operator calls a model to the file or folder it is."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from ignis.catalogue.entries import CATALOGUE, Entry
from ignis.errors import CatalogueError

HUB_PREFIX = "hf:"
# Written last into a folder from the hub; its presence says that the folder is whole.
FETCHED_MARK = ".ignis-fetched"

_HUB_NAME = re.compile(
    r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)(?P<file>(?:/\w[\w.-]*)+\.gguf)?(?:@(?P<revision>\w[\w./-]*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """`hf:OWNER/NAME`, with `/FILE.gguf` for one file of it and `@REVISION` for a branch or tag."""

    owner: str
    name: str
    file: str | None = None
    revision: str | None = None

    @property
    def repository(self) -> str:
        """`OWNER/NAME`."""
        return f"{self.owner}/{self.name}"

    def folder(self, cache_folder: Path) -> Path:
        """Where it is kept."""
        parts = [self.owner, self.name]
        if self.revision:
            parts.append(self.revision.replace("/", "-"))
        return cache_folder / "models" / "hf" / "--".join(parts)

    def mark(self, cache_folder: Path) -> Path:
        """The file that says it is whole; each single file has its own."""
        suffix = f"-{self.file.replace('/', '-')}" if self.file else ""
        return self.folder(cache_folder) / (FETCHED_MARK + suffix)


def hub_model(model: str) -> HubModel:
    """Read `hf:OWNER/NAME[/FILE.gguf][@REVISION]`. Raises CatalogueError."""
    found = _HUB_NAME.fullmatch(model.removeprefix(HUB_PREFIX))
    if found is None or ".." in model:
        raise CatalogueError(
            f"{model} is not the name of a repository; write hf:OWNER/NAME, "
            "hf:OWNER/NAME/FILE.gguf or hf:OWNER/NAME@REVISION"
        )
    file = found["file"]
    return HubModel(found["owner"], found["name"], file[1:] if file else None, found["revision"])


def entry_path(entry: Entry, cache_folder: Path) -> Path:
    """Where a catalogue model's file is kept."""
    return cache_folder / "models" / entry.id / entry.file


def fetched_path(model: str, cache_folder: Path) -> Path | None:
    """The file or folder of a catalogue or hub model, or None while it is not fetched."""
    if model.startswith(HUB_PREFIX):
        hub = hub_model(model)
        if not hub.mark(cache_folder).is_file():
            return None
        kept = hub.mark(cache_folder).read_text(encoding="utf-8").strip()
        path = hub.folder(cache_folder) / kept
        return path if path.exists() else None
    entry = CATALOGUE[model]
    path = entry_path(entry, cache_folder)
    # A file under its own name is whole, because it was renamed to it; size is a cheap second look.
    return path if path.is_file() and path.stat().st_size == entry.bytes else None


def is_fetchable(model: str) -> bool:
    """Whether the name is that of a catalogue or hub model, and not a path."""
    return model in CATALOGUE or model.startswith(HUB_PREFIX)


def model_path(model: str, cache_folder: Path) -> Path:
    """The file or folder of a model named by id, `hf:` name or path.

    A catalogue id wins over a path of the same name; write ./NAME for the path. Raises
    CatalogueError saying what to do.
    """
    if is_fetchable(model):
        path = fetched_path(model, cache_folder)
        if path is None:
            raise CatalogueError(
                f"{model} is not on this machine; run `ignis models fetch {model}`"
            )
        return path
    path = Path(model).expanduser()
    if path.exists():
        return path
    near = difflib.get_close_matches(model, CATALOGUE, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise CatalogueError(
        f"{model} is neither a file or folder, nor an id of `ignis models list`, nor "
        f"hf:OWNER/NAME{hint}"
    )


def model_id(model: str) -> str:
    """The name clients use for a model, where the operator gave it none."""
    if model in CATALOGUE:
        return model
    if model.startswith(HUB_PREFIX):
        hub = hub_model(model)
        return Path(hub.file).stem if hub.file else hub.name
    path = Path(model).expanduser().resolve()
    return path.stem if path.suffix.lower() == ".gguf" else path.name
