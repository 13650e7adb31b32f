"""`ignis config`: the values in force and their sources, a file to start from, every option."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.table import Table

from ignis.cli.flags import add_model_argument, add_option_flags, config_from
from ignis.cli.screen import screen
from ignis.config import OPTIONS
from ignis.config.listing import example_file, markdown_page, values_in_force
from ignis.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the actions and flags of `ignis config`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    printing = actions.add_parser(
        "print",
        help="every value in force and where it comes from",
        description="Every value in force and where it comes from, given the same flags, "
        "variables and files as `ignis serve`.",
        allow_abbrev=False,
    )
    printing.add_argument("--json", action="store_true", help="print as JSON")
    printing.usage = "%(prog)s [MODEL] [options]"
    add_model_argument(printing)
    add_option_flags(printing)
    generating = actions.add_parser(
        "generate",
        help="a configuration file with every option, commented out",
        description="Write a configuration file with every option at its default, commented out.",
        allow_abbrev=False,
    )
    generating.add_argument(
        "--output", metavar="FILE", help="write here, if nothing is there yet; else to the screen"
    )
    fields = actions.add_parser(
        "fields",
        help="every option: flag, variable, default, meaning",
        description="Every option: key, flag, variable, default and meaning.",
        allow_abbrev=False,
    )
    fields.add_argument("--markdown", action="store_true", help="print the docs page")
    fields.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(usage=parser.format_help)


def main(args: argparse.Namespace) -> int:
    """Run one action; the exit status."""
    if args.action == "print":
        _print_values(args)
    elif args.action == "generate":
        _generate(args.output)
    elif args.action == "fields":
        _print_fields(args)
    else:
        print(args.usage(), end="")
    return 0


def _print_values(args: argparse.Namespace) -> None:
    config = config_from(args)
    rows = list(values_in_force(config))
    if args.json:
        values = {
            declared.key: {"value": value, "source": source} for declared, value, source in rows
        }
        print(json.dumps({"file": config.file and str(config.file), "values": values}, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("option", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("source", overflow="fold")
    for declared, value, source in rows:
        shown = f"{value} (not in this version)" if declared.missing else value
        table.add_row(declared.key, shown, source)
    console = screen()
    console.print(f"configuration file: {config.file or 'none'}")
    console.print(table)


def _generate(output: str | None) -> None:
    if output is None:
        print(example_file(), end="")
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(example_file())
    except FileExistsError:
        raise ConfigError(f"{output} is there already; name another file") from None


def _print_fields(args: argparse.Namespace) -> None:
    if args.markdown:
        print(markdown_page(), end="")
        return
    if args.json:
        fields = [
            {
                "key": declared.key,
                "flag": declared.flag,
                "variable": declared.variable,
                "type": declared.kind.metavar,
                "default": declared.default,
                "default_note": declared.default_note,
                "applies_to": declared.applies_to,
                "in_this_version": not declared.missing,
                "help": declared.help,
            }
            for declared in OPTIONS.values()
        ]
        print(json.dumps(fields, indent=2))
        return
    console = screen()
    for declared in OPTIONS.values():
        console.print(declared.key, style="bold")
        console.print(f"  {declared.flag} {declared.kind.metavar}   {declared.variable}")
        console.print(f"  {declared.help}", soft_wrap=True)
        note = f"; applies to {declared.applies_to}" if declared.missing else ""
        console.print(f"  default: {declared.default_text}{note}\n", soft_wrap=True)
