"""`ignis models`: what can be fetched, fetching it, and what a checkpoint's headers say."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from ignis.catalogue import CATALOGUE, fetch, model_path
from ignis.catalogue.locate import fetched_path
from ignis.cli.flags import add_option_flags, config_from
from ignis.cli.screen import screen
from ignis.config import Config
from ignis.plan import NativeCore
from ignis.plan.units import human


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the actions and flags of `ignis models`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    listing = actions.add_parser(
        "list",
        help="the models known by a short id, and which are here",
        description="The models known by a short id, and which are here.",
        allow_abbrev=False,
    )
    fetching = actions.add_parser(
        "fetch",
        help="get a model; what is here already is checked and kept",
        description="Get a model by its id, or from the Hugging Face hub: hf:OWNER/NAME, "
        "hf:OWNER/NAME/FILE.gguf or hf:OWNER/NAME@REVISION. What is here already is checked and "
        "kept.",
        allow_abbrev=False,
    )
    fetching.add_argument("model", metavar="MODEL", help="an id, or hf:OWNER/NAME")
    inspecting = actions.add_parser(
        "inspect",
        help="what the headers of a model say",
        description="What the headers of a model say; no weights are read.",
        allow_abbrev=False,
    )
    inspecting.add_argument("model", metavar="MODEL", help="a file, a folder, an id, hf:OWNER/NAME")
    inspecting.add_argument("--metadata", action="store_true", help="every key of the headers too")
    inspecting.add_argument("--json", action="store_true", help="print as JSON")
    for action in (listing, fetching, inspecting):
        add_option_flags(action, ("", "cache"), without=("device", "profile"))
    parser.set_defaults(usage=parser.format_help)


def main(args: argparse.Namespace) -> int:
    """Run one action; the exit status."""
    if args.action is None:
        print(args.usage(), end="")
        return 0
    config = config_from(args)
    if args.action == "list":
        _list(config)
    elif args.action == "fetch":
        path = fetch(args.model, config.cache_folder, Console(stderr=True))
        print(path)
    else:
        _inspect(args, config)
    return 0


def _list(config: Config) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "model", "size", "licence", "here"):
        table.add_column(column)
    for entry in CATALOGUE.values():
        here = "yes" if fetched_path(entry.id, config.cache_folder) else "no"
        table.add_row(entry.id, entry.title, human(entry.bytes), entry.licence, here)
    console = screen()
    console.print(table)
    console.print("\nhf:OWNER/NAME fetches a model from the Hugging Face hub.")


def _inspect(args: argparse.Namespace, config: Config) -> None:
    path = model_path(args.model, config.cache_folder)
    core = NativeCore()
    info = core.inspect(str(path))
    facts: dict[str, object] = {
        "path": info.path,
        "name": info.name,
        "format": info.format,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "stored_bytes": info.stored_bytes,
        "quantisation": info.quantisation,
        "layers": info.layers,
        "hidden": info.hidden,
        "ffn": info.ffn,
        "heads": info.heads,
        "kv_heads": info.kv_heads,
        "head_dim": info.head_dim,
        "vocab": info.vocab,
        "context_trained": info.context_trained,
    }
    metadata = core.read_metadata(str(path)) if args.metadata else {}
    if args.json:
        if args.metadata:
            facts["metadata"] = metadata
        print(json.dumps(facts, indent=2, default=str))
        return
    _print_facts(facts)
    if metadata:
        print()
        _print_facts({key: _short(value) for key, value in sorted(metadata.items())})


def _print_facts(facts: dict[str, object]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        table.add_row(key, str(text))
    screen().print(table)


def _short(value: object) -> str:
    """One line of a value: long lists and texts are cut, with their length."""
    if isinstance(value, (list, tuple)):
        shown = ", ".join(repr(one) for one in value[:4])
        return f"[{shown}, ...] ({len(value):,} values)" if len(value) > 4 else f"[{shown}]"
    text = repr(value) if isinstance(value, str) else str(value)
    return f"{text[:200]}... ({len(text):,} characters)" if len(text) > 200 else text
