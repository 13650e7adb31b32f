"""The rows of the comparison, the same to the token on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FORMATS = ("Q4_1", "F16", "Q8_0")  # of equal quality or better than the file itself
DECODED = 64
BATCH = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `ours` is the row's name in `ignis bench`."""

    ours: str
    phase: Literal["prefill", "decode", "batch"]
    tokens: int  # prefill: prompt; decode: depth; batch: sequences
    goal: float | None  # ratio to the peer's best that this row should reach on two threads
    why: str


ROWS = (
    Row("pp128", "prefill", 128, None, "a short question"),
    Row("pp512", "prefill", 512, 1.0, "the usual point of comparison"),
    Row("pp2048", "prefill", 2048, None, "attention begins to count"),
    Row("tg64", "decode", 0, 1.3, "the memory's speed over the weights' size"),
    Row("tg64 @ d512", "decode", 512, None, "a conversation under way"),
    Row("tg64 @ d2048", "decode", 2048, 2.0, "keys and values cost as much as weights"),
    Row("tg64 x8", "batch", BATCH, 1.3, "eight clients share each read of the weights"),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the peer."""

    format: str
    flash_attention: bool

    def __str__(self) -> str:
        return f"{self.format}, flash attention {'on' if self.flash_attention else 'off'}"


VARIANTS = tuple(Variant(form, flash) for form in FORMATS for flash in (False, True))
