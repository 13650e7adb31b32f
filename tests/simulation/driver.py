"""One simulated run: random requests through the real rounds, each text held to the witness.

Everything is drawn from one seed: the limits, the requests, when they come, who leaves. There is no
thread and no clock, so the seed alone replays a run.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ignis.admission import NeverFits, Rank, Room, reserve
from ignis.engine.api import RequestClass, SamplingParams
from ignis.engine.native import Core
from ignis.engine.rounds import RoundRunner, Sequence
from ignis.engine.scheduler import SchedulerLimits
from tests.simulation.witness import witness_text

PAGE_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run's engine is loaded for."""

    lanes_max: int
    pages_total: int
    chunk_tokens_max: int
    context_tokens_max: int
    vocab: int
    seed: int


CoreFactory = Callable[[Shape], Core[Any, Any]]


@dataclass(slots=True)
class Client:
    """A request as its sender sees it."""

    prompt: list[int]
    tokens_max: int
    pages: int
    stop_ids: frozenset[int]
    rank: Rank
    text: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """What a run came to."""

    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    rounds: int = 0
    tokens: int = 0


class Simulation:
    """Runs `requests` requests drawn from `seed`; raises AssertionError where a promise breaks."""

    def __init__(self, make_core: CoreFactory, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        pages_total = draw.randint(2, 40)
        self.shape = Shape(
            lanes_max=draw.randint(1, 8),
            pages_total=pages_total,
            chunk_tokens_max=draw.choice([1, 7, 32, 64, 128]),
            context_tokens_max=draw.randint(8, min(pages_total, 8) * PAGE_TOKENS),
            vocab=draw.randint(2, 251),
            seed=draw.getrandbits(64),
        )
        self.limits = SchedulerLimits(
            lanes_max=self.shape.lanes_max,
            pages_total=pages_total,
            chunk_tokens_max=self.shape.chunk_tokens_max,
            queue_max=draw.randint(0, 60),
            decode_share_percent=draw.choice([0, 25, 90]),
        )
        self.room = Room(self.shape.context_tokens_max, pages_total, PAGE_TOKENS, 16)
        self.core = make_core(self.shape)
        self.now = 0.0
        self.runner = RoundRunner(self.core, self.limits, self.clock)
        self.open: dict[int, Client] = {}
        self.waiting: set[int] = set()
        self.totals = Totals()
        self._keys = 0

    def clock(self) -> float:
        """Time passes by the microseconds that a round is said to take."""
        self.now += self.random.randint(1, 500) * 1e-6
        return self.now

    def run(self, requests: int) -> Totals:
        """Send them all, wait for all, and count what is left over."""
        draw = self.random
        load = 1.0  # chance that another request comes before the next round
        while self._keys < requests or self.open:
            if draw.random() < 0.01:
                load = draw.choice([0.0, 0.1, 0.5, 0.9, 1.0])
            if not self.open:
                self.idle()
                load = load or 1.0
            while (
                self._keys < requests
                and len(self.open) < self.limits.open_max
                and draw.random() < load
            ):
                self.submit()
            if self.open and draw.random() < 0.02:
                self.cancel(draw.choice(list(self.open)))
            if self.runner.has_work:
                self.round()
        self.idle()
        return self.totals

    def submit(self) -> None:
        """One request; the first lengths are those around a page's edge and the pool's."""
        draw = self.random
        room = self.room
        prompt_tokens = draw.choice(
            [1, 63, 64, 65, room.context_tokens_max - 1, room.context_tokens_max]
            + [draw.randint(1, 24)] * 20
        )
        tokens_max = draw.choice([1, 2, None] + [draw.randint(1, 32)] * 7)
        prompt = draw.choices(range(self.shape.vocab), k=prompt_tokens)
        key, self._keys = self._keys, self._keys + 1
        try:
            reservation = reserve(prompt_tokens, tokens_max, room)
        except NeverFits:
            assert prompt_tokens >= room.context_tokens_max, "the pool holds a whole context"
            self.totals.refused += 1
            return
        request_class: RequestClass = draw.choice(["interactive", "agent"])
        stop_ids = frozenset(draw.sample(range(self.shape.vocab), draw.choice([0, 0, 1, 2])))
        self.open[key] = Client(
            prompt,
            reservation.tokens_max,
            reservation.pages,
            stop_ids,
            Rank.of(request_class, key),
        )
        self.waiting.add(key)
        self.runner.submit(
            Sequence(
                key,
                array("I", prompt),
                prompt_tokens,
                reservation,
                GREEDY,
                stop_ids,
                request_class,
            )
        )

    def cancel(self, key: int) -> None:
        """A client leaves; what it was given so far was right."""
        client = self.open.pop(key)
        self.waiting.discard(key)
        self.runner.cancel(key)
        expected, _ = self.expected(client)
        assert client.text == expected[: len(client.text)], f"request {key}: wrong text"
        self.totals.cancelled += 1

    def round(self) -> None:
        """One round, and every promise that can be checked on it alone."""
        handover = self.runner.run_round()
        self.totals.rounds += 1
        for key, _, _, error in handover.deliveries:
            assert error is None, f"request {key}: {error}"
        for key in handover.admitted:
            best = min(self.waiting, key=lambda waiting: self.open[waiting].rank)
            assert key == best, f"request {key} passed request {best}"
            self.waiting.remove(key)
        stats = handover.stats
        assert stats is not None
        assert stats.plan_allocations == 0
        if stats.running or handover.deliveries:
            assert stats.prefill_tokens + stats.tokens > 0, "a round did nothing"
        for key, token, finish_reason, _ in handover.deliveries:
            assert token is not None
            client = self.open[key]
            client.text.append(token.token)
            self.totals.tokens += 1
            if finish_reason is not None:
                del self.open[key]
                self.totals.finished += 1
                assert (client.text, finish_reason) == self.expected(client), f"request {key}"

    def expected(self, client: Client) -> tuple[list[int], str]:
        """The witness's answer, from the prompt alone."""
        shape = self.shape
        return witness_text(
            client.prompt, client.tokens_max, client.stop_ids, shape.vocab, shape.seed
        )

    def idle(self) -> None:
        """Nobody is open: after the releases, every page is free on both sides."""
        if self.runner.has_work:
            assert not self.runner.run_round().deliveries
        assert not self.runner.has_work
        assert not self.waiting
        assert self.runner.scheduler.pages_free == self.shape.pages_total
        assert self.core.engine.pages_free() == self.shape.pages_total, "pages leaked"
