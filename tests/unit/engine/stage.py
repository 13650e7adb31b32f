"""A stage: the real rounds over the Python twin, one round at a time, with a clock that is set."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Literal

from ignis.admission import reserve
from ignis.admission.reservation import Room
from ignis.engine.actions import Action, Note
from ignis.engine.api import Mark, RequestClass, SamplingParams
from ignis.engine.rounds import ReuseOptions, RoundRunner
from ignis.engine.scheduler import SchedulerLimits
from ignis.engine.seats import Seat, State
from ignis.engine.sequence import Handover, Sequence
from tests.simulation.reference_engine import ReferenceEngine, ReferenceOut, reference_core
from tests.simulation.witness import witness_text

GREEDY = SamplingParams(temperature=0.0)
Tier = Literal["kv_ram", "disk"]


class Stage:
    """Sequences by key; `text[key]` grows as tokens come."""

    def __init__(
        self,
        *,
        lanes: int = 2,
        pages: int = 8,
        chunk: int = 64,
        slots: int = 0,
        ram: int = 0,
        disk: int = 0,
        engine: ReferenceEngine | None = None,
        reuse: ReuseOptions | None = None,
        queue: int = 50,
    ) -> None:
        self.engine = engine or ReferenceEngine(
            lanes, pages, chunk, retained_slots=slots, ram_windows=ram, disk_windows=disk
        )
        self.engine.tiers.waits = lambda tier: False  # type: ignore[method-assign]
        lanes, pages = self.engine.lanes_max, self.engine.pages_total
        limits = SchedulerLimits(lanes, pages, self.engine.chunk_tokens_max, queue, 0)
        self.room = Room(pages * 64, pages, 64, 16)
        self.now = 0.0
        self.core = reference_core(self.engine)
        self.runner: RoundRunner[SamplingParams, ReferenceOut] = RoundRunner(
            self.core, limits, self.clock, reuse or ReuseOptions(seed=bytes(16))
        )
        self.asked: dict[int, tuple[list[int], int]] = {}
        self.text: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.facts: Counter[str] = Counter()
        self.notes: list[Note] = []
        self.actions: list[Action] = []
        carry = self.runner._carrier.carry

        def recording(action: Action) -> None:
            self.actions.append(action)
            carry(action)

        self.runner._carrier.carry = recording  # type: ignore[method-assign]

    def clock(self) -> float:
        return self.now

    def submit(
        self,
        prompt: list[int],
        tokens_max: int = 4,
        request_class: RequestClass = "interactive",
        marks: tuple[Mark, ...] = (),
    ) -> int:
        key = len(self.asked)
        reservation = reserve(len(prompt), tokens_max, self.room)
        self.asked[key], self.text[key] = (prompt, reservation.tokens_max), []
        sequence = Sequence(
            key,
            array("I", prompt),
            len(prompt),
            reservation,
            GREEDY,
            frozenset(),
            request_class,
            marks,
        )
        self.runner.submit(sequence)
        return key

    def cancel(self, key: int) -> None:
        self.runner.cancel(key)
        self.ended.add(key)

    def round(self) -> Handover:
        handover = self.runner.run_round()
        for key, token, finish_reason, error in handover.deliveries:
            assert error is None
            assert token is not None
            self.text[key].append(token.token)
            if finish_reason is not None:
                self.ended.add(key)
                assert self.text[key] == self.expected(key), f"sequence {key} has other text"
        for fact in handover.facts:
            self.facts[" ".join(filter(None, (fact.name, fact.tier)))] += fact.amount
        self.notes += handover.notes
        return handover

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def until(self, key: int, state: State) -> None:
        """Run until the sequence is in that state."""
        for _ in range(300):
            if self.seat(key).state is state:
                return
            self.round()
        raise AssertionError(f"sequence {key} is {self.seat(key).state} and not {state}")

    def finish(self) -> None:
        """Run until nothing is left to do; every text was right, and all room is back."""
        for _ in range(3_000):
            if not self.runner.has_work:
                break
            self.round()
        assert not self.runner.has_work
        assert self.ended == set(self.asked)
        kept = {page for one in self.engine.kept.values() for page in one.table}
        assert self.engine.pages_free() == self.engine.pages_total - len(kept)
        assert not self.engine.lanes
        for tier in (0, 1):
            entries = self.runner.ledger.entries(tier + 1)
            windows = sum(self.engine.windows_for(entry.position) for entry in entries)
            assert self.engine.tiers.used[tier] == windows

    def expected(self, key: int) -> list[int]:
        prompt, tokens_max = self.asked[key]
        engine = self.engine
        return witness_text(prompt, tokens_max, frozenset(), engine.vocab, engine.seed)[0]

    def seat(self, key: int) -> Seat:
        return self.runner.scheduler.board.seats.by_key[key]

    def state(self, key: int) -> State:
        return self.seat(key).state

    def break_disk(self, fails: bool = True) -> None:
        self.engine.tiers.disk_fault_ppm = 1_000_000 if fails else 0

    def reused(self, key: int) -> int:
        """Prompt tokens that were not computed, as its client is told."""
        return next((one.tokens for one in reversed(self.notes) if one[:2] == (key, "reused")), 0)
