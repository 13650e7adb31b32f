"""One simulated run: random requests through the real rounds, each text held to the witness.

Everything is drawn from one seed: the limits, the requests, when they come, who leaves, what fails.
There is no thread and no clock, so the seed alone replays a run.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ignis.admission import NeverFits, Room, reserve
from ignis.engine.api import SamplingParams
from ignis.engine.native import Core
from ignis.engine.rounds import ReuseOptions, RoundRunner
from ignis.engine.sequence import Sequence
from tests.simulation.promises import Promises
from tests.simulation.shapes import PAGE_TOKENS, Requests, Shape, draw_limits, draw_shape
from tests.simulation.witness import witness_text

GREEDY = SamplingParams(temperature=0.0)

LOADS = [0.0, 0.05, 0.1, 0.2, 0.5, 1.0]  # chance that a request comes before the next round

CoreFactory = Callable[[Shape], Core[Any, Any]]


@dataclass(slots=True)
class Client:
    """A request as its sender sees it."""

    prompt: list[int]
    tokens_max: int
    stop_ids: frozenset[int]
    text: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """What a run came to."""

    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    rounds: int = 0
    tokens: int = 0
    facts: Counter[str] = field(default_factory=Counter)
    cancelled_in: Counter[str] = field(default_factory=Counter)  # by state

    def __iadd__(self, other: Totals) -> Totals:
        self.refused += other.refused
        self.finished += other.finished
        self.cancelled += other.cancelled
        self.rounds += other.rounds
        self.tokens += other.tokens
        self.facts += other.facts
        self.cancelled_in += other.cancelled_in
        return self


class Simulation:
    """Runs `requests` requests drawn from `seed`; raises AssertionError where a promise breaks."""

    def __init__(self, make_core: CoreFactory, seed: int, *, disk: bool = True) -> None:
        draw = self.random = random.Random(seed)
        self.shape = draw_shape(draw)
        if not disk:
            self.shape = replace(self.shape, disk_windows=0)
        self.limits = draw_limits(draw, self.shape)
        self.room = Room(self.shape.context_tokens_max, self.shape.pages_total, PAGE_TOKENS, 16)
        self.requests = Requests(draw, self.shape.vocab, self.room)
        self.core = make_core(self.shape)
        self.now = 0.0
        reuse = ReuseOptions(
            checkpoints=draw.random() < 0.9, interactive_ttl_us=2_000, seed=bytes(16)
        )
        self.runner = RoundRunner(self.core, self.limits, self.clock, reuse)
        self.promises = Promises(self.runner)
        self.open: dict[int, Client] = {}
        self.left: set[int] = set()  # who was cancelled
        self.totals = Totals()
        self._keys = 0

    def clock(self) -> float:
        """Time passes by what a round is said to take, and now and then by more than a pause."""
        draw = self.random.random()
        self.now += 1.5 if draw < 0.002 else draw * 500e-6
        return self.now

    def run(self, requests: int) -> Totals:
        """Send them all, wait for all, and count what is left over."""
        try:
            return self._run(requests)
        except BaseException as error:
            error.add_note(f"{self.shape} {self.limits}")
            raise

    def _run(self, requests: int) -> Totals:
        draw = self.random
        load = draw.choice(LOADS)
        while self._keys < requests or self.open:
            if draw.random() < 0.02:
                load = draw.choice(LOADS)
            if not self.open:
                self.idle()
                load = load or 0.3
            if draw.random() < 0.3:
                # What comes now, comes after a round and not during one.
                self.runner.finish()
            while (
                self._keys < requests
                and len(self.open) < self.limits.open_max
                and draw.random() < load
            ):
                self.submit()
            moving = self.moving()
            if self.open and draw.random() < (0.05 if moving else 0.01):
                self.cancel(moving)
            if self.runner.has_work:
                self.round()
        self.idle()
        self.close()
        return self.totals

    def submit(self) -> None:
        """One request."""
        asked = self.requests.next()
        key, self._keys = self._keys, self._keys + 1
        try:
            reservation = reserve(len(asked.prompt), asked.tokens_max, self.room)
        except NeverFits:
            assert len(asked.prompt) >= self.room.context_tokens_max, "the pool holds a context"
            self.totals.refused += 1
            return
        self.open[key] = Client(asked.prompt, reservation.tokens_max, asked.stop_ids)
        self.runner.submit(
            Sequence(
                key,
                array("I", asked.prompt),
                len(asked.prompt),
                reservation,
                GREEDY,
                asked.stop_ids,
                asked.request_class,
                asked.marks,
            )
        )

    def moving(self) -> list[int]:
        """Who is in a move."""
        transfers = self.runner.scheduler.transfers
        seats = [transfers.arriving, transfers.out and transfers.out.seat]
        return [seat.key for seat in seats if seat is not None]

    def cancel(self, moving: list[int]) -> None:
        """A client leaves, one of those in a move first; what it was given so far was right."""
        key = self.random.choice(moving or list(self.open))
        client = self.open.pop(key)
        self.left.add(key)
        seat = self.runner.scheduler.board.seats.by_key.get(key)
        if seat is not None:  # else it has ended, and nobody was told yet
            self.totals.cancelled_in[seat.state.name] += 1
        self.runner.cancel(key)
        expected, _ = self.expected(client)
        assert client.text == expected[: len(client.text)], f"request {key}: wrong text"
        self.totals.cancelled += 1

    def round(self) -> None:
        """One turn, and every promise that can be checked on it alone."""
        self.runner.finish()
        self.runner.begin()
        handover = self.runner.give()
        self.totals.rounds += 1
        for key, token, finish_reason, error in handover.deliveries:
            assert error is None, f"request {key}: {error}"
            assert token is not None
            if key in self.left:
                continue
            client = self.open[key]
            client.text.append(token.token)
            self.totals.tokens += 1
            if finish_reason is not None:
                del self.open[key]
                self.totals.finished += 1
                assert (client.text, finish_reason) == self.expected(client), f"request {key}"
                self.requests.told(client.prompt, client.text)
        for fact in handover.facts:
            self.totals.facts[f"{fact.name} {fact.tier}"] += fact.amount
        self.promises.hold(handover)
        self.runner.advance()

    def expected(self, client: Client) -> tuple[list[int], str]:
        """The witness's answer, from the prompt alone."""
        shape = self.shape
        return witness_text(
            client.prompt, client.tokens_max, client.stop_ids, shape.vocab, shape.seed
        )

    def idle(self) -> None:
        """Nobody is open: lanes are empty, and only what is retained holds pages and windows."""
        scheduler, engine, ledger = self.runner.scheduler, self.core.engine, self.runner.ledger
        while self.runner.has_work:
            self.round()
        assert scheduler.open_count == scheduler.running_count == scheduler.waiting_count == 0
        assert scheduler.parked_count == 0
        held = sum(-(-entry.position // PAGE_TOKENS) for entry in ledger.entries(0))
        assert engine.pages_free() >= self.shape.pages_total - held, "pages leaked"
        assert not any(entry.in_use or entry.sharers for entry in ledger.index)
        self.windows_balance()

    def windows_balance(self) -> None:
        """Windows that no retained image holds are free, once no abandoned write is in flight."""
        engine, ledger = self.core.engine, self.runner.ledger
        for tier in (0, 1):
            held = sum(engine.windows_for(entry.position) for entry in ledger.entries(tier + 1))
            for _ in range(100):
                if engine.windows_free(tier) + held == engine.windows_total(tier):
                    break
                assert engine.advance(1) == [], "nothing is moving"
            else:
                raise AssertionError("windows leaked")

    def close(self) -> None:
        """At the end the pool and KV-RAM are empty; KV-disk keeps what is retained."""
        self.runner.close()
        engine = self.core.engine
        assert engine.pages_free() == self.shape.pages_total, "pages leaked"
        self.windows_balance()
        assert engine.windows_free(0) == engine.windows_total(0), "windows leaked"
