"""The terminal, or the file or pipe in its place."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 200  # a table in a pipe is for a program or a file: nothing there needs wrapping


def screen(*, markup: bool = False) -> Console:
    """Standard output, without guessed colours; `[markup]` is text unless asked for."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(width=width, highlight=False, markup=markup)
