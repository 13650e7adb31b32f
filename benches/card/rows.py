"""The rows of the card suite: what is timed, from when to when, and why.

Decode rows are tokens a second of all lanes, over rounds that follow each other without a pause.
Prefill rows are tokens a second of one chunk, from its start to the end of its round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["engine", "ready"]


@dataclass(frozen=True, slots=True)
class Load:
    """How a model is loaded for a row: where its embedding table lies, and `cuda.products`."""

    table: Literal["device", "host"] = "device"
    products: Literal["same", "fast"] = "same"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `heavy` ones say nothing about a format, and run for a profile's first model."""

    name: str
    unit: str
    why: str
    heavy: bool = False
    part: Part = "engine"
    of: str = ""  # the row that it is a share of
    load: Load = Load()


def _with_table_on_host(row: str) -> Row:
    """The same row where the embedding table stays in host memory, which is the default."""
    why = f"{row} with the embedding table in host memory"
    return Row(f"{row}-host", "tok/s", why, heavy=True, of=row, load=Load(table="host"))


def _with_fast_products(row: str) -> Row:
    """The same row where long chunks are summed in another order, which is an option."""
    why = f"{row} with `cuda.products fast`"
    return Row(f"{row}-fast", "tok/s", why, heavy=True, of=row, load=Load(products="fast"))


ROWS = {
    row.name: row
    for row in (
        Row("decode-1", "tok/s", "one user: every weight is read for a token"),
        Row("decode-8", "tok/s", "eight users share each read of the weights"),
        Row("decode-1-deep", "tok/s", "32K tokens of keys and values are read too"),
        Row("prefill", "tok/s", "a 2,048-token chunk at the start: products"),
        Row("prefill-deep", "tok/s", "a 2,048-token chunk at 32K: attention counts", of="prefill"),
        Row("hand-over", "%", "what scheduler and hand-over add to a round of eight lanes"),
        Row("memory", "MiB", "what the driver counts beyond the plan"),
        Row("move-out", "GB/s", "a sequence's pages to KV-RAM", heavy=True),
        Row("move-in", "GB/s", "and back", heavy=True),
        Row("beside-move", "%", "what a sequence that moves adds to a round beside it", heavy=True),
        Row("ready", "s", "`ignis serve` from its start, weights in the page cache", True, "ready"),
        _with_table_on_host("decode-1"),
        _with_table_on_host("prefill"),
        _with_fast_products("prefill"),
    )
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens, lanes and repetitions of the rows."""

    prompt: int = 2048  # tokens of a chunk
    depth: int = 32768
    rounds: int = 64  # of decode, for each sample
    lanes: int = 8
    moved: int = 8192  # tokens of the sequence that moves
    repetitions: int = 5

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.depth + 2 * self.prompt + 2 * self.rounds + 64


FULL = Sizes()
SMALL = Sizes(prompt=64, depth=128, rounds=16, lanes=2, moved=128, repetitions=1)
