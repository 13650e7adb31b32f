"""The table of options as text: a docs page, a file to start from, and what is in force."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ignis.config.load import Config
from ignis.config.option import Option
from ignis.config.options import GROUPS, OPTIONS, PROFILES

PAGE_INTRODUCTION = (
    "Every option has a flag, a variable and a key of the configuration file. A flag wins over "
    "a variable, a variable over the file, the file over a profile, a profile over the "
    "default. Sizes are bytes; K, M, G and T are binary (`1536M`, `1.5G`, `1536 MiB`). The KV "
    "pool is also sized in tokens (`256Ktok`). An empty variable counts as not set."
)


def group_help(group: str) -> str:
    """What a group is about, one sentence without its full stop."""
    first = (GROUPS[group].__doc__ or "").strip().split("\n")[0]
    return first.removesuffix(".")


def options_of(group: str) -> list[Option]:
    """The options of one group, as declared."""
    return [declared for declared in OPTIONS.values() if declared.group == group]


def values_in_force(config: Config) -> Iterator[tuple[Option, str, str]]:
    """Every option with its value and the source of it, as text; a secret is not shown."""
    for key, declared in OPTIONS.items():
        source = config.source(key)
        # The file's path stands above the listing, and its key is the row's.
        text = "file" if source.kind == "file" else str(source)
        yield declared, declared.show(config.value(key)), text


def example_file() -> str:
    """A YAML file with every option at its default, commented out."""
    lines = [
        "# ignis configuration. Every value is at its default; take off a # to change one.",
        "# Read from ./ignis.config.yaml, else from the user's configuration folder, else from",
        "# where --config says. Flags and IGNIS_ variables win over this file.",
    ]
    for group in GROUPS:
        present = [declared for declared in options_of(group) if not declared.missing]
        if not present:
            continue
        lines += ["", f"# {group_help(group)}."]
        if group:
            lines.append(f"{group}:")
        indent = "  " if group else ""
        for declared in present:
            lines += textwrap.wrap(
                declared.help, 96, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
            if declared.default is None:
                lines.append(f"{indent}#{declared.name}:  # {declared.default_text}")
            else:
                lines.append(f"{indent}#{declared.name}: {_yaml_text(declared.default)}")
    return "\n".join(lines) + "\n"


def markdown_page() -> str:
    """The docs page of all options."""
    lines = ["# Options", "", PAGE_INTRODUCTION]
    for group in GROUPS:
        title = f"`{group}`" if group else "General"
        lines += ["", f"## {title}", "", f"{group_help(group)}.", ""]
        lines += ["| key and flag | variable | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_markdown_row(declared) for declared in options_of(group)]
    lines += ["", "## Profiles", ""]
    lines += ["| profile | sets |", "| --- | --- |"]
    for name, values in PROFILES.items():
        sets = ", ".join(f"`{key}` {value}" for key, value in values.items())
        lines.append(f"| `{name}` | {sets} |")
    return "\n".join(lines) + "\n"


def _markdown_row(declared: Option) -> str:
    meaning = declared.help
    if declared.missing:
        meaning += f" Applies to {declared.applies_to}; refused until then."
    elif not declared.applies_to.startswith("every"):
        meaning += f" Applies to {declared.applies_to}."
    cells = (
        f"`{declared.key}`<br>`{declared.flag} {declared.kind.metavar}`",
        f"`{declared.variable}`",
        declared.default_text,
        meaning,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _yaml_text(text: str) -> str:
    """Quoted where YAML would read something else than text or a number."""
    return f'"{text}"' if ":" in text or "#" in text else text
