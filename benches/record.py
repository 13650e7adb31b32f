"""Where a result is written, and what stands beside it: machine, commit, command, date."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from ignis.cli.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches/results"


def conditions(module: str, known_commit: str | None = None) -> dict[str, Any]:
    """What a figure taken by `python -m <module>` needs to be a figure.

    `known_commit` is what a machine without git was told.
    """
    command = shlex.join(["python", "-m", module, *map(portable, sys.argv[1:])])
    return {
        **describe_machine().record(),
        "commit": known_commit or commit(),
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def portable(argument: str) -> str:
    """A word of a command without the folders of this machine."""
    path = Path(argument)
    return f".../{path.name}" if path.is_absolute() else argument


def load_average() -> float:
    """Processes that wanted to run in the last minute."""
    return os.getloadavg()[0]


def commit() -> str:
    """The commit of the working tree, marked where sources differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head == "unknown":
        return head
    changed = _git("status", "--porcelain", "--", "crates", "python", "Cargo.toml", "Cargo.lock")
    return f"{head} + uncommitted changes" if changed else head


def slug(text: str) -> str:
    """A processor's name as part of a file name."""
    text = re.sub(r"\((?:r|tm)\)|@.*|\bCPU\b|\bProcessor\b|\d+-Core", "", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "cpu"


def write(name: str, record: dict[str, Any], markdown: str, folder: Path = RESULTS) -> None:
    """Writes `<name>.json` and `<name>.md`; a later run of the same name replaces both."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")


def conditions_markdown(found: dict[str, Any]) -> str:
    """The conditions as a list for the head of a report."""
    shown = {
        "machine": f"{found['cpu']} ({found['cpu_flags']}), {found['cores_usable']} cores usable",
        "memory": f"{found['memory_bytes'] / 2**30:.1f} GiB",
        "system": found["system"],
        "ignis": f"{found['ignis']}, commit {found['commit']}",
        "command": f"`{found['command']}`",
        "date": found["date"],
    }
    return "".join(f"- {key}: {value}\n" for key, value in shown.items())


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
