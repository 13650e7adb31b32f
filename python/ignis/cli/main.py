"""The `ignis` command: its parser, and the one place where an error becomes a line and a status.

Status: 0 done, 1 failed, 2 wrong usage or configuration, 3 the plan does not fit.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import ignis
from ignis.errors import ConfigError, IgnisError, PlanError, PlanRefused

if TYPE_CHECKING:
    from ignis.config import Option

DESCRIPTION = """\
ignis serves a language model from one machine and decides every byte at load: it
plans memory, prints the plan, reserves it, and takes no more while it serves."""

EXAMPLES = """\
examples:
  ignis serve                          serve the default model on http://127.0.0.1:8000
  ignis chat                           talk to a model in this terminal
  ignis plan MODEL --device rtx5090    does a model fit a card that need not be here?
  ignis models fetch smollm2-135m      get a model
  ignis serve --help                   every option of a command"""

COMMANDS = {
    "serve": "answer requests over HTTP (OpenAI's API)",
    "plan": "show what a model takes, line by line, without loading it",
    "chat": "talk to a model in the terminal",
    "bench": "measure how fast a model runs here",
    "doctor": "say what this machine has to serve with",
    "models": "list, fetch and inspect models",
    "config": "print, generate and explain options",
    "help": "show the help of a command",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"ignis: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    try:
        return _run(words, args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left; without this, the interpreter complains at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if _wants_traceback(words, args):
            traceback.print_exc()
        return _report(error)


def build_parser(command: str | None) -> Parser:
    """The whole parser; only the named command gets its flags, so that others need no import."""
    parser = Parser(
        prog="ignis",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ignis {ignis.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=Parser
    )
    for name, summary in COMMANDS.items():
        # "resolve": what bench and chat declare themselves wins over the table's flags.
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
            conflict_handler="resolve",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == command and name != "help":
            _module(name).add_arguments(sub)
    return parser


def _run(words: list[str], args: argparse.Namespace) -> int:
    command = next((word for word in words if not word.startswith("-")), None)
    if command == "help":
        return _help(words[words.index("help") + 1 :])
    if command is not None and command not in COMMANDS:
        raise ConfigError(_unknown("command", command, COMMANDS))
    parser = build_parser(command)
    _, extra = parser.parse_known_args(words, args)
    if extra:
        _refuse_extra(extra, parser, str(command))
    if command is None:
        parser.print_help()
        return 0
    status: int | None = _module(command).main(args)
    return status or 0


def _module(command: str) -> ModuleType:
    """The module of a command; `chat` and `bench` bring the model code, so only when asked for."""
    return importlib.import_module(f"ignis.cli.{command}")


def _help(topic: list[str]) -> int:
    command = topic[0] if topic else None
    if command is not None and command not in COMMANDS:
        raise ConfigError(_unknown("command", command, COMMANDS))
    if command in {None, "help"}:
        build_parser(None).print_help()
        return 0
    build_parser(command).parse_args([*topic[:2], "--help"])
    return 0


def _refuse_extra(extra: list[str], parser: Parser, command: str) -> NoReturn:
    from ignis.cli.flags import option_flags
    from ignis.config.load import removed_name
    from ignis.config.options import REMOVED
    from ignis.config.other_names import our_name

    word = next((one for one in extra if one.startswith("-")), extra[0])
    flag = word.split("=", 1)[0]
    if not flag.startswith("-"):
        raise ConfigError(f"unexpected word {flag}; see `ignis {command} --help`")
    for key in REMOVED:
        if flag == "--" + key.replace(".", "-").replace("_", "-"):
            raise ConfigError(f"{flag} {_with_flags(str(removed_name(key)))}")
    known = _known_flags(parser, command)
    if flag in option_flags() and flag not in known:
        raise ConfigError(f"{flag} is an option of `ignis serve`, not of `ignis {command}`")
    if ours := our_name(flag.lstrip("-"), _as_typed):
        raise ConfigError(f"unknown option {flag}{ours}")
    raise ConfigError(_unknown("option", flag, known))


def _known_flags(parser: Parser, command: str) -> list[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            return [flag for one in action.choices[command]._actions for flag in one.option_strings]
    return []


def _as_typed(declared: Option) -> str:
    return f"{declared.flag_alias or declared.flag} {declared.kind.metavar}"


def _with_flags(text: str) -> str:
    """The text with option keys written as flags, as someone typing flags knows them."""
    from ignis.config import OPTIONS

    for key in sorted(OPTIONS, key=len, reverse=True):
        if "." in key:
            text = text.replace(key, OPTIONS[key].flag)
    return text


def _unknown(what: str, word: str, known: Sequence[str] | dict[str, str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"unknown {what} {word}" + (f"; did you mean {near[0]}?" if near else "")


def _wants_traceback(words: list[str], args: argparse.Namespace) -> bool:
    from ignis.config import Config

    config = getattr(args, "config", None)
    if isinstance(config, Config):
        return config.traceback
    asked = os.environ.get("IGNIS_TRACEBACK", "").strip().lower()
    return "--traceback" in words or asked in {"on", "true", "yes", "1"}


def _report(error: Exception) -> int:
    """One line on standard error, and the status."""
    if isinstance(error, PlanRefused):
        from rich.console import Console

        from ignis.plan.report import print_refusal

        print_refusal(error, Console(stderr=True))
        return 3
    if isinstance(error, IgnisError):
        _say(str(error))
        return 2 if isinstance(error, (ConfigError, PlanError)) else 1
    if isinstance(error, ModuleNotFoundError) and error.name == "ignis._native":
        _say("the Rust core is not built; run `make setup`")
    elif isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        _say(f"{place}{error.strerror.lower()}")
    else:
        _say(f"{type(error).__name__}: {error}; --traceback shows where")
    return 1


def _say(message: str) -> None:
    print(f"ignis: {message}", file=sys.stderr)
