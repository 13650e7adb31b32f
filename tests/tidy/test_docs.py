"""Documents point at things that exist, and cover what they promise to cover."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files, lines, name

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
# `crates/engine/src/load.rs`, `python/ignis/plan/`, `benches/replay.py`: a path in back quotes.
PATH = re.compile(r"`((?:crates|python|tests|docs|benches|\.ci)/[\w./-]+)`")

DOCUMENTS = [path for path in files() if path.suffix == ".md"]
DECISIONS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))


def without_code_blocks(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchor(heading: str) -> str:
    """How a heading is addressed, by GitHub's rule."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_resolve(document: Path) -> None:
    for groups in LINK.findall(without_code_blocks(document)):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), f"{name(document)}: {target} does not exist"
        if fragment and there.suffix == ".md":
            headings = [anchor(h.lstrip("#")) for h in lines(there) if h.startswith("#")]
            assert fragment in headings, f"{name(document)}: {target} has no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_in_documents_exist(document: Path) -> None:
    missing = [p for p in PATH.findall(document.read_text()) if not (ROOT / p).exists()]
    assert missing == []


def test_architecture_names_every_crate_and_package() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    rooms = [f"crates/{p.parent.name}" for p in ROOT.glob("crates/*/Cargo.toml")]
    rooms += [
        f"ignis.{p.name}"
        for p in (ROOT / "python/ignis").iterdir()
        if p.is_dir() and any(p.glob("*.py"))
    ]
    assert [room for room in sorted(rooms) if f"`{room}`" not in text] == []


def test_readme_is_short() -> None:
    assert len(lines(ROOT / "README.md")) <= 150


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("decision", DECISIONS, ids=name)
def test_a_decision_has_its_five_parts(decision: Path) -> None:
    headings = [line for line in lines(decision) if re.match("##? ", line)]
    assert re.match(rf"# {int(decision.name[:4])}\. ", headings[0])
    assert re.search(r"^Status: \w+", decision.read_text(), re.MULTILINE)
    assert headings[1:] == [
        "## Context",
        "## Decision",
        "## Consequences",
        "## How it is checked",
    ]
