"""`ignis plan`: what a model takes on a device, from headers alone. Status 0 fits, 3 refused."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from ignis.catalogue import model_path
from ignis.cli.flags import add_model_argument, add_option_flags, config_from
from ignis.cli.screen import screen
from ignis.config import OPTIONS
from ignis.errors import ConfigError, PlanRefused
from ignis.plan import CARDS, device_to_plan, make_plan
from ignis.plan.report import (
    plan_as_dict,
    print_plan,
    print_refusal,
    refusal_as_dict,
    tell_of_kernels,
)

EPILOG = """\
Only headers are read: a folder with config.json and the headers of its safetensors
files, or the first megabytes of a GGUF file, is enough, and no device is needed.
Host memory and KV-disk are those of this machine, for a card too, unless
--host-free and --kv-disk-path say otherwise.
Exit status: 0 the plan fits, 3 it is refused, 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis plan`."""
    parser.epilog = EPILOG
    parser.usage = "%(prog)s [MODEL] [options]"
    add_model_argument(parser)
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="auto, cpu or cuda (this machine's), or a card that need not be here: "
        f"{', '.join(CARDS)}. "
        "Default: auto, which is what serve would take.",
    )
    parser.add_argument(
        "--free",
        metavar="BYTES",
        help="device memory free at start, as in 31.5G, instead of what is read or known",
    )
    parser.add_argument(
        "--host-free",
        metavar="BYTES",
        help="memory that the card's machine has available, instead of this machine's",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_option_flags(
        parser,
        ("", "model", "vram", "cpu", "cuda", "reuse", "kv_disk", "cache"),
        without=("device",),
    )


def main(args: argparse.Namespace) -> int:
    """Print the plan or its refusal; the exit status."""
    config = config_from(args)
    device = device_to_plan(args.device or config.device)
    free_bytes = _bytes("--free", args.free)
    host_free_bytes = _bytes("--host-free", args.host_free)
    path = model_path(config.model.path, config.cache_folder)
    try:
        plan = make_plan(
            config,
            path,
            device=device,
            free_bytes=free_bytes,
            host_free_bytes=host_free_bytes,
            tell=tell_of_kernels(Console(stderr=True)),
        )
    except PlanRefused as refusal:
        if args.json:
            print(json.dumps(refusal_as_dict(refusal), indent=2))
        else:
            print_refusal(refusal, screen(markup=True))
        return 3
    if args.json:
        print(json.dumps(plan_as_dict(plan), indent=2))
    else:
        print_plan(plan, screen(markup=True))
    return 0


def _bytes(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        value = OPTIONS["vram.headroom_bytes"].kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {error}") from None
    assert isinstance(value, int)
    return value
