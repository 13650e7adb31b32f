"""Crates depend downwards only, and hold no file that nothing compiles."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files, name

# Floor of every crate; a crate may use those of lower floors only (docs/ARCHITECTURE.md).
FLOORS = {
    "types": 1,
    "formats": 2,
    "ops": 2,
    "arena": 2,
    "pages": 2,
    "models": 3,
    "backend": 3,
    "cpu": 4,
    "cuda": 4,
    "sim": 4,
    "tiers": 4,
    "engine": 5,
    "py": 6,
}

WITHOUT_UNSAFE = ["types", "ops", "pages", "models"]

CRATES = sorted(path.parent.name for path in ROOT.glob("crates/*/Cargo.toml"))


def manifest(crate: str) -> dict[str, object]:
    return tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())


def ours(table: object) -> list[str]:
    assert isinstance(table, dict)
    return [dep.removeprefix("ignis-") for dep in table if dep.startswith("ignis-")]


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_uses_lower_floors_only(crate: str) -> None:
    assert crate in FLOORS, f"crates/{crate} has no floor; give it one here and in ARCHITECTURE.md"
    for dep in ours(manifest(crate).get("dependencies", {})):
        assert FLOORS[dep] < FLOORS[crate], (
            f"crates/{crate} (floor {FLOORS[crate]}) may not use crates/{dep} (floor {FLOORS[dep]})"
        )


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_is_named_after_its_folder_and_shares_the_lints(crate: str) -> None:
    found = manifest(crate)
    assert found["package"]["name"] == f"ignis-{crate}"  # type: ignore[index]
    assert found.get("lints") == {"workspace": True}


@pytest.mark.parametrize("crate", [crate for crate in WITHOUT_UNSAFE if crate in CRATES])
def test_a_crate_that_needs_no_unsafe_forbids_it(crate: str) -> None:
    assert "#![forbid(unsafe_code)]" in (ROOT / "crates" / crate / "src/lib.rs").read_text()


def test_every_rust_file_is_compiled() -> None:
    """The compiler does not say when a file has no `mod` line."""
    orphans = []
    for path in files():
        parts = path.relative_to(ROOT).parts
        if path.suffix != ".rs" or "src" not in parts or "fuzz" in parts:
            continue
        if path.stem in {"lib", "main"} or "bin" in parts:
            continue
        module = path.parent.name if path.stem == "mod" else path.stem
        folder = path.parent.parent if path.stem == "mod" else path.parent
        parents = [folder / "mod.rs", folder / "lib.rs", folder / "main.rs"]
        parents.append(folder.parent / f"{folder.name}.rs")
        declared = re.compile(rf"\bmod {module}\s*[;{{]|path = \"[^\"]*{re.escape(path.name)}\"")
        if not any(p.exists() and declared.search(p.read_text()) for p in parents):
            orphans.append(name(path))
    assert orphans == []


def test_no_room_is_a_box_of_odds_and_ends() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    named = [name(p) for p in files() if p.suffix in {".rs", ".py"} and is_vague(p, vague)]
    assert named == []


def is_vague(path: Path, vague: set[str]) -> bool:
    return path.stem in vague or path.parent.name in vague
