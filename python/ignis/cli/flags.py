"""Flags from the table of options, and back to a `Config`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ignis.config import OPTIONS, Config, Option, load_config
from ignis.config.kinds import Switch
from ignis.config.listing import group_help, options_of
from ignis.config.options import GROUPS
from ignis.errors import ConfigError

_PREFIX = "option:"


def add_option_flags(
    parser: argparse.ArgumentParser,
    groups: tuple[str, ...] = tuple(GROUPS),
    *,
    without: tuple[str, ...] = (),
) -> None:
    """A flag for every option of the groups; `without` names keys the command has its own for."""
    parser.add_argument(
        "--config", metavar="FILE", help="configuration file (YAML or JSON) to read instead"
    )
    for group in groups:
        section = parser.add_argument_group(
            f"{group} options" if group else "general options", group_help(group)
        )
        for declared in options_of(group):
            if declared.key not in without:
                _add_flag(section, declared)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """The model as a word of its own, the same as `--model`."""
    parser.add_argument(
        "model_word",
        nargs="?",
        metavar="MODEL",
        help="the same as --model: a file, a folder, an id of `ignis models list`, hf:OWNER/NAME",
    )


def config_from(args: argparse.Namespace) -> Config:
    """The configuration of a parsed command line; also kept as `args.config`."""
    flags = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(_PREFIX) and value is not None
    }
    word = getattr(args, "model_word", None)
    if word is not None:
        if "model.path" in flags:
            raise ConfigError(f"the model is named twice: {word} and --model {flags['model.path']}")
        flags["model.path"] = word
    file = getattr(args, "config", None)
    config = load_config(flags, config_file=Path(file) if file else None)
    args.config = config
    return config


def option_flags() -> dict[str, str]:
    """Every flag of the table and the key it sets."""
    return {declared.flag: key for key, declared in OPTIONS.items()}


def _add_flag(section: argparse._ArgumentGroup, declared: Option) -> None:
    names = [declared.flag_alias] if declared.flag_alias else []
    names.append(declared.flag)
    text = f"{declared.help} Default: {declared.default_text}."
    help_text = argparse.SUPPRESS if declared.missing else text.replace("%", "%%")
    dest = _PREFIX + declared.key
    if isinstance(declared.kind, Switch) and declared.kind.bare:
        section.add_argument(*names, dest=dest, action="store_const", const="on", help=help_text)
        section.add_argument(
            f"--no-{declared.flag[2:]}",
            dest=dest,
            action="store_const",
            const="off",
            help=argparse.SUPPRESS,
        )
        return
    metavar = declared.kind.metavar
    section.add_argument(*names, dest=dest, metavar=metavar, help=help_text)
