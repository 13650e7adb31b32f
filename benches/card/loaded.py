"""A model on a device, driven without server or scheduler."""

from __future__ import annotations

from array import array
from typing import Any

from ignis import _native
from ignis.plan.cores import physical_cores
from ignis.plan.cuda import device_options


class Loaded:
    """An engine, by default on the card, and its plan."""

    def __init__(
        self,
        model: str | _native.RandomModel,
        limits: _native.Limits,
        kv_format: str = "bf16",
        activations: str | None = None,
        *,
        device: str = "cuda",
        tiers: _native.TierOptions | None = None,
        table: str = "device",
        products: str = "same",
        kernels: str = "own",
    ) -> None:
        threads = physical_cores() if device == "cpu" else 1
        options = device_options(
            device,
            threads=threads,
            kv_format=kv_format,
            activations=activations,
            embedding=table,
            products=products,
            kernels=kernels,
        )
        needs = _native.needs(model, limits, options)
        lines = dict(needs.lines) | dict(options.measured(model))
        lines["kv_pool"] = needs.kv_page_bytes * limits.pages
        self.planned = sum(lines.values())
        self.lines = lines
        self.page_bytes = needs.kv_page_bytes
        self.window_bytes = needs.window_bytes
        plan = list(lines.items())
        self.engine = _native.Engine.load(model, limits, options, plan, None, None, tiers)
        self.out = _native.RoundOut(limits.lanes_max)
        self.chunk = limits.chunk_tokens_max

    def seat(self, lane: int, tokens: list[int], sampling: Any, room: int) -> None:
        """A prompt, with room for so many tokens behind it."""
        pages = (len(tokens) + room) // self.engine.page_tokens + 1
        self.engine.admit(lane, array("I", tokens), pages, sampling)

    def chunks(self, lane: int, tokens: int, chunk: int) -> int:
        """Computes so many tokens of the lane's prompt; results of the last round."""
        drawn = 0
        while tokens:
            count = min(tokens, chunk)
            drawn = self.engine.round(lane, count, array("I"), 0, self.out)
            tokens -= count
        return drawn

    def prefill(self, lane: int, tokens: list[int], sampling: Any, room: int, chunk: int) -> int:
        """Seats and computes a prompt; its first token."""
        self.seat(lane, tokens, sampling, room)
        drawn = self.chunks(lane, len(tokens), chunk)
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
