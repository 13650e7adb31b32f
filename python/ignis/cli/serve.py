"""`ignis serve`: settle what was asked and hand over to the server."""

from __future__ import annotations

import argparse

from ignis.cli.flags import add_model_argument, add_option_flags, config_from
from ignis.errors import PlanRefused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis serve`."""
    parser.usage = "%(prog)s [MODEL] [options]"
    add_model_argument(parser)
    add_option_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Run the server until it is told to stop; the exit status."""
    config = config_from(args)

    from ignis.plan import device_to_run
    from ignis.server.run import serve
    from ignis.telemetry import events

    device_to_run(config)  # a device that cannot be used is said before anything is fetched
    try:
        return serve(config)
    except PlanRefused as refusal:
        events.plan_refused(refusal)
        raise
