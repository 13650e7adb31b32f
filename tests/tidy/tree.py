"""The files of this clone, as the tidy tests see them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE = {".rs", ".py", ".pyi"}
PROSE = {".md"}


@cache
def files() -> tuple[Path, ...]:
    """Every file that git tracks or would track, as absolute paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def code() -> list[Path]:
    """Sources in Rust and Python."""
    return [path for path in files() if path.suffix in CODE]


def name(path: Path) -> str:
    """The path from the root, for messages."""
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()
