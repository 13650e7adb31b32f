"""What every source file keeps: length, width, words, and no loose ends."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.tidy.tree import ROOT, code, files, lines, name

HERE = Path(__file__).parent
WIDTH = 100
LENGTH = 400
BYTES_MAX = 2_000_000
GOLDEN_BYTES_MAX = 6_000_000  # the largest golden checkpoint stays below

# Left by someone who meant to come back. Joined here so that this file does not find itself.
LOOSE_ENDS = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b"
    r"|\b(to" + r"do|unimplemen" + r"ted|d" + r"bg)!\s*\("
)

# A path of the machine where something was written is true nowhere else.
MACHINE_PATHS = re.compile(r"(?<![\w.~/$}-])/(?:work|root|home|Users|mnt)/\w")

# docs/GLOSSARY.md: another word for a thing that has one. Only where the word cannot mean
# something else (a quantisation block is a block; std::mem::swap swaps).
OTHER_WORDS = {
    r"\b(?:num|free|max|kv)_blocks\b|\bkv_block\b|\bblocks_(?:free|max|used)\b": "page",
    r"\bswap(?:ped)?_(?:in|out)\b": "spill, restore",
    r"\bpreempt\w*": "spill",
    r"\bnum_(?:tokens|pages|lanes|layers|heads)\b": "tokens, pages_max: the unit or quantity last",
}
# Where another project's names are read or asserted, its words are the right ones.
OTHER_WORDS_ELSEWHERE = {"crates/formats", "tests/golden", "benches/peers", "tests/tidy"}


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{name(path)}:{at}: {hit.group(0)}"
        for path in paths
        for at, line in enumerate(lines(path), 1)
        if (hit := pattern.search(line))
    ]


def prose() -> list[Path]:
    return [path for path in files() if path.suffix in {".md", ".toml", ".yaml", ".yml"}]


def test_no_loose_ends() -> None:
    assert found(LOOSE_ENDS, code() + prose()) == []


def test_no_path_of_one_machine() -> None:
    scripts = [path for path in files() if path.name in {"Makefile", "run"}]
    assert found(MACHINE_PATHS, code() + prose() + scripts) == []


def test_no_line_is_wider_than_a_hundred_columns() -> None:
    wide = [
        f"{name(path)}:{at}"
        for path in files()
        if path.suffix in (".rs", ".cu", ".cuh")  # rustfmt leaves comments; ruff has Python
        for at, line in enumerate(lines(path), 1)
        if len(line) > WIDTH
    ]
    assert wide == []


def test_long_files_say_why() -> None:
    """At 400 lines, ask what second thing the file does; `long_files.toml` holds the answers."""
    reasons = tomllib.loads((HERE / "long_files.toml").read_text())["reasons"]
    long = {name(path) for path in code() if len(lines(path)) > LENGTH}
    assert sorted(long - reasons.keys()) == [], "split it, or say why not in long_files.toml"
    assert sorted(reasons.keys() - long) == [], "no longer long: drop it from long_files.toml"


def test_one_word_for_one_thing() -> None:
    wrong = []
    paths = [p for p in code() if not name(p).startswith(tuple(OTHER_WORDS_ELSEWHERE))]
    for pattern, word in OTHER_WORDS.items():
        wrong += [f"{hit} (say {word})" for hit in found(re.compile(pattern), paths)]
    assert wrong == []


def test_no_large_or_built_file_is_tracked() -> None:
    built = {".so", ".o", ".a", ".rlib", ".pyc", ".whl", ".gguf"}
    golden = ROOT / "tests/golden"
    for path in files():
        limit = GOLDEN_BYTES_MAX if path.is_relative_to(golden) else BYTES_MAX
        assert path.stat().st_size <= limit, name(path)
    assert [name(p) for p in files() if p.suffix in built] == []


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, ".ci/run must be executable"
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.compile(r"(?:^ *|`)make ([a-z-]+)", re.MULTILINE)
    for command in commands.findall(readme + script.read_text()):
        assert command in targets, f"`make {command}` does not exist"


def test_only_planning_running_and_measuring_touch_the_core() -> None:
    """The import linter cannot see a module that is compiled (docs/adr/0001)."""
    allowed = ("python/ignis/plan/", "python/ignis/engine/", "python/ignis/cli/")
    pattern = re.compile(r"^\s*(?:from ignis import .*\b_native|(?:from|import) ignis\._native)\b")
    package = [path for path in code() if name(path).startswith("python/ignis/")]
    others = [hit for hit in found(pattern, package) if not hit.startswith(allowed)]
    assert others == []
