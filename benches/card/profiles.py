"""What is measured on which card, what its memory and units should give, and what is to be reached.

Datasheet figures are for orientation; shares in the report are of ceilings measured in the same
run. Figures of other engines that were recorded elsewhere are quoted as such, and never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measure = Literal["value", "ceiling", "start", "at_most"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row should reach: a value, a share of its ceiling, a share of the same at depth 0."""

    measure: Measure
    reach: float
    go_for: float | None = None

    def text(self) -> str:
        """For a table."""
        if self.measure == "value":
            return f"{self.reach:,.0f}"
        if self.measure == "at_most":
            return f"at most {self.reach:g}"
        return f"{self.reach:.0%} of {'ceiling' if self.measure == 'ceiling' else 'depth 0'}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One card. `models` are (geometry, format); `goals` are by row and format, "" for any."""

    title: str
    models: tuple[tuple[str, str], ...]
    peers: tuple[str, ...]  # geometries that transformers runs in bf16
    read_tb_s: float  # datasheet
    gemm_tflops: float  # datasheet, bf16 with f32 sums, dense
    goals: dict[tuple[str, str], Goal]
    recorded: tuple[str, ...] = ()


_EIGHT = tuple(
    (name, stored) for name in ("qwen3-8b", "llama-8b") for stored in ("bf16", "q8_0", "q4_k")
)
_ANY_CARD = {
    ("decode-1", "bf16"): Goal("ceiling", 0.85, 0.95),
    ("decode-1", "q8_0"): Goal("ceiling", 0.75),
    ("decode-1-deep", ""): Goal("ceiling", 0.90),
    ("prefill-deep", ""): Goal("start", 0.60, 0.80),
    ("hand-over", ""): Goal("at_most", 3, 1),
    ("memory", ""): Goal("at_most", 16),
    ("move-out", ""): Goal("ceiling", 0.85, 0.95),
    ("move-in", ""): Goal("ceiling", 0.85, 0.95),
    ("ready", ""): Goal("at_most", 10),
}

PROFILES = {
    "h200": Profile(
        "NVIDIA H200",
        _EIGHT,
        ("qwen3-8b", "llama-8b"),
        4.8,
        989,
        _ANY_CARD
        | {
            ("decode-1", "q4_k"): Goal("value", 500),
            ("decode-8", "bf16"): Goal("value", 1500),
            ("prefill", "bf16"): Goal("value", 30_700),
        },
        (
            (
                "llama.cpp, 8B bf16: decode 201 tok/s, prefill of 2,048 tokens 22,151 tok/s, "
                "eight lanes 953 tok/s in total"
            ),
            "llama.cpp, 8B Q4_K: decode 250 tok/s, prefill of 2,048 tokens 9,776 tok/s",
            "transformers, 8B bf16: prefill 30,694 tok/s",
        ),
    ),
    # 16 GB of weights, 6 GB of keys and values of a 37K context and a workspace: 32 GB hold it.
    "rtx5090": Profile(
        "NVIDIA GeForce RTX 5090",
        _EIGHT,
        ("qwen3-8b",),
        1.79,
        209,
        _ANY_CARD | {("decode-1", "q4_k"): Goal("ceiling", 0.75)},
    ),
}
