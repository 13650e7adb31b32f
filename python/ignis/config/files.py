"""Reading a configuration file into flat keys. The content may be hostile or simply mistyped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from ignis.errors import ConfigError

NAMES = ("ignis.config.yaml", "ignis.config.yml", "ignis.config.json")
FILE_BYTES_MAX = 1 << 20


def discover(folders: tuple[Path, ...]) -> Path | None:
    """The configuration file of the first folder that has one.

    Raises ConfigError when one folder has two, since neither could be meant.
    """
    for folder in folders:
        found = [folder / name for name in NAMES if (folder / name).is_file()]
        if len(found) > 1:
            names = " and ".join(str(path) for path in found)
            raise ConfigError(f"{names} are both there; keep one, or name one with --config")
        if found:
            return found[0]
    return None


def read_file(path: Path) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """The settings of a file by option key, and the profiles it defines by name.

    `vram: {headroom_bytes: 1G}` and `vram.headroom_bytes: 1G` mean the same. A key without a value
    is as if it were not there. Raises ConfigError naming the file and the line or key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    tree = _parse(path, content)
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold keys and values, not {_word(tree)}")
    profiles = tree.pop("profiles", None) or {}
    if not isinstance(profiles, dict) or not all(
        isinstance(name, str) and isinstance(values, dict) for name, values in profiles.items()
    ):
        raise ConfigError(f"{path}: profiles must hold a set of options for each name")
    return (
        _flat(path, tree),
        {name: _flat(path, values, f"profiles.{name}") for name, values in profiles.items()},
    )


def _parse(path: Path, content: bytes) -> object:
    try:
        text = content.decode("utf-8-sig")
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_unique) if text.strip() else None
        return yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{path}: {place}: {error.msg.lower()}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{path}: {place}{error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path}: {text}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for key, value in pairs:
        if key in tree:
            raise ValueError(f"{key} stands twice in one place")
        tree[key] = value
    return tree


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which could grow without bound, and without repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else id(key_node)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key} stands twice in one place")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _flat(path: Path, tree: Mapping[object, object], inside: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in _leaves(path, tree, ""):
        if key in flat:
            raise ConfigError(f"{path}: {inside + '.' if inside else ''}{key} stands twice")
        flat[key] = value
    return flat


def _leaves(path: Path, tree: Mapping[object, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ConfigError(f"{path}: the key {key!r} is not text")
        if isinstance(value, dict):
            yield from _leaves(path, value, f"{prefix}{key}.")
        elif isinstance(value, list):
            raise ConfigError(f"{path}: {prefix}{key} must hold one value, not a list")
        elif value is not None:
            yield f"{prefix}{key}", value


def _word(value: object) -> str:
    return "a list" if isinstance(value, list) else "a single value"
