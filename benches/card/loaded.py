"""A model on an NVIDIA card, driven without server or scheduler."""

from __future__ import annotations

from array import array
from typing import Any

from ignis import _native
from ignis.plan.cuda import device_options


def card_options(kv_format: str = "bf16", activations: str = "bf16") -> _native.DeviceOptions:
    """The card of this machine, with the libraries that a server would use."""
    return device_options("cuda", kv_format=kv_format, activations=activations)


class Loaded:
    """An engine on the card, and its plan."""

    def __init__(
        self,
        path: str,
        limits: _native.Limits,
        kv_format: str = "bf16",
        activations: str = "bf16",
    ) -> None:
        options = card_options(kv_format, activations)
        needs = _native.needs(path, limits, options)
        lines = dict(needs.lines) | dict(options.measured(path))
        lines["kv_pool"] = needs.kv_page_bytes * limits.pages
        self.planned = sum(lines.values())
        self.lines = lines
        self.engine = _native.Engine.load(path, limits, options, list(lines.items()))
        self.out = _native.RoundOut(limits.lanes_max)
        self.chunk = limits.chunk_tokens_max

    def prefill(self, lane: int, tokens: list[int], sampling: Any, room: int, chunk: int) -> int:
        """Seats and computes a prompt; its first token."""
        pages = (len(tokens) + room) // 64 + 1
        self.engine.admit(lane, array("I", tokens), pages, sampling)
        left, drawn = len(tokens), 0
        while left:
            count = min(left, chunk)
            drawn = self.engine.round(lane, count, array("I"), 0, self.out)
            left -= count
        assert drawn == 1
        return int(self.out.tokens[0])

    def decode(self, lanes: list[int], steps: int) -> list[list[int]]:
        """Tokens of each step."""
        every = array("I", lanes)
        rows = []
        for _ in range(steps):
            assert self.engine.round(-1, 0, every, len(lanes), self.out) == len(lanes)
            rows.append(list(self.out.tokens[: len(lanes)]))
        return rows
