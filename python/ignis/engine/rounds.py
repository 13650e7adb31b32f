"""Rounds: what the scheduler decides, carried out on an engine; call by call, no thread.

`EngineThread` makes the calls in a loop; the simulation drives the same code without a thread.
Sequences are known by their key alone, so nothing mutable is shared with the side that reads the
results.

The device stands still from the end of a round to the start of the next. So between `finish` and
`begin` only that is done which decides the next round; the rest waits for `give` and `advance`.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from ignis.engine.actions import Admit, MoveIn, Note
from ignis.engine.api import FinishReason, TokenOut
from ignis.engine.carrier import Carrier
from ignis.engine.metrics import Fact, RoundStats
from ignis.engine.native import TOP_MAX, Core, OutT, SamplingT
from ignis.engine.scheduler import Round, Scheduler, SchedulerLimits
from ignis.engine.sequence import Delivery, Handover, Sequence
from ignis.reuse import Ledger
from ignis.reuse.entry import DEVICE, DISK

# How long a round without work waits for the disk before it looks for new requests, microseconds.
DISK_WAIT_US = 2_000
KINDS = {1: "checkpoint", 2: "prefix"}  # of images, as the core numbers them


@dataclass(frozen=True, slots=True)
class ReuseOptions:
    """What of the prompts may be retained."""

    checkpoints: bool = True  # not only prefixes
    interactive_ttl_us: int = 300_000_000
    seed: bytes | None = None  # of the hash chains, 16 bytes; None: drawn by the system


class RoundRunner(Generic[SamplingT, OutT]):
    """Open sequences, their scheduler and the engine that runs them. Used by one thread.

    A turn is `finish`, `begin`, `give`, `advance`, in this order. `submit` and `cancel` may come
    between any two of them. What the engine raises passes through, and ends this runner's use, but
    for `deliveries`.
    """

    def __init__(
        self,
        core: Core[SamplingT, OutT],
        limits: SchedulerLimits,
        clock: Callable[[], float] = time.monotonic,
        reuse: ReuseOptions | None = None,
    ) -> None:
        engine = core.engine
        assert (limits.lanes_max, limits.pages_total) == (engine.lanes_max, engine.pages_total)
        reuse = ReuseOptions() if reuse is None else reuse
        self.ledger = _ledger(core, reuse)
        self.scheduler = Scheduler(limits, engine, self.ledger)
        self._core = core
        self._clock = clock
        self._checkpoints = reuse.checkpoints
        self._open: dict[int, Sequence] = {}
        self._seated: list[Sequence | None] = [None] * limits.lanes_max  # by lane
        self._carrier = Carrier(core, self.scheduler, self._open, clock)
        self._decode_lanes = array("I", bytes(4 * limits.lanes_max))
        self._decode_lanes_are: tuple[int, ...] = ()
        # The round under way.
        self._under_way: Round | None = None
        self._started = False  # the device runs it by itself
        self._began = 0.0
        self._follows = False  # on a round, with nothing between them
        # What was done and is not given yet.
        self._acted = 0.0
        self._admitted: list[int] = []
        self._refused: list[Delivery] = []
        self._ran: Round | None = None
        self._ended = 0.0
        self._duration_s = 0.0
        self._count = 0  # of its results
        self._gap_s: float | None = None
        self._drawn: list[tuple[int, Sequence, FinishReason | None]] = []  # by place in the results
        self._windows_total = engine.windows_total(0), engine.windows_total(1)

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return self._under_way is not None or self._ran is not None or self.scheduler.has_work

    def submit(self, sequence: Sequence) -> None:
        """A sequence arrives. Raises QueueFull."""
        marks = sequence.marks
        if marks and not self._checkpoints:
            marks = tuple(mark for mark in marks if mark.kind == "prefix")
        self.scheduler.submit(
            sequence.key,
            sequence.request_class,
            sequence.tokens,
            sequence.reservation.pages,
            marks,
        )
        self._open[sequence.key] = sequence

    def cancel(self, key: int) -> None:
        """Nobody wants the sequence any more; one that has ended already is no error.

        In a round that is under way it ends with that round, and what it draws is dropped.
        """
        if key not in self._open:
            return
        if self._under_way is None or not self.scheduler.leave(key):
            self._end(key)

    def finish(self) -> None:
        """Wait for the round under way, if there is one, and take in what decides the next."""
        decided = self._under_way
        if decided is None:
            return
        engine, out = self._core.engine, self._core.out
        # Read either way, so that a clock that is drawn replays on any device.
        now = self._clock()
        began = self._began if self._started else now
        self._gap_s = began - self._ended if self._follows else None
        self._count = count = engine.finish_round(out)
        self._ended = ended = self._clock()
        self._under_way, self._ran = None, decided
        self._duration_s = ended - began
        self.scheduler.round_done(round(self._duration_s * 1e6))
        for key in self.scheduler.left():
            self._end(key)
        lanes, tokens, seated = out.lanes, out.tokens, self._seated
        for at in range(count):
            sequence = seated[lanes[at]]
            if sequence is None:
                continue  # it was cancelled meanwhile
            token = tokens[at]
            sequence.tokens.append(token)
            finish_reason: FinishReason | None = None
            if token in sequence.stop_ids:
                finish_reason = "stop"
            elif len(sequence.tokens) >= sequence.tokens_end:
                finish_reason = "length"
            self._drawn.append((at, sequence, finish_reason))
            if finish_reason is not None:
                self._end(sequence.key)

    def begin(self) -> None:
        """Carry out what comes before the next round, and begin it, if there is one to run."""
        assert self._under_way is None, "a round is finished before the next"
        self._acted = self._clock()
        self._act(round(self._acted * 1e6))
        decided = self.scheduler.next_round()
        if not decided.runs:
            return
        lanes = decided.decode_lanes
        if lanes is not self._decode_lanes_are:
            self._decode_lanes_are = lanes
            for at, lane in enumerate(lanes):
                self._decode_lanes[at] = lane
        self._started = self._core.engine.begin_round(
            decided.prefill_lane, decided.prefill_tokens, self._decode_lanes, len(lanes)
        )
        self._began = self._clock()
        self._under_way = decided
        self._follows = self._ran is not None

    def give(self) -> Handover:
        """What the last round gave, and what was done since the last time."""
        ran, self._ran = self._ran, None
        deliveries = self.deliveries()
        admitted = tuple(self._admitted)
        self._admitted.clear()
        ended = self._acted if ran is None else self._ended
        stats = self._stats(ran)
        facts, notes = self._taken()
        return Handover(self._acted, ended, admitted, deliveries, stats, None, facts, notes)

    def deliveries(self) -> tuple[Delivery, ...]:
        """What was not given yet; without a call of the engine, so that a failure loses none."""
        out = self._core.out
        tokens, logprobs = out.tokens, out.logprobs
        deliveries = []
        for at, sequence, finish_reason in self._drawn:
            if sequence.sampling.logprobs is None:
                token = TokenOut(tokens[at])
            else:
                token = TokenOut(tokens[at], logprobs[at], self._top(at))
            deliveries.append(Delivery(sequence.key, token, finish_reason))
        deliveries += self._refused
        self._drawn.clear()
        self._refused.clear()
        return tuple(deliveries)

    def advance(self) -> None:
        """Beside the round under way: move transfers on, and prepare the next.

        Without one, wait a little for the disk.
        """
        if self.scheduler.transfers.under_way:
            wait_us = DISK_WAIT_US if self._under_way is None else 0
            self._carrier.advance(wait_us, round(self._clock() * 1e6))
        self.scheduler.prepare()

    def run_round(self) -> Handover:
        """One round from its decision to its end, alone: for those who look at each."""
        self.begin()
        self.advance()
        self.finish()
        return self.give()

    def close(self) -> None:
        """End every sequence, empty every lane and slot, and free KV-RAM; KV-disk keeps its own."""
        self.finish()
        for key in list(self._open):
            self._end(key)
        out = self.scheduler.transfers.out
        if out is not None:
            self._carrier.carry(self.scheduler.transfers.abandon_copy())
        for entry in list(self.ledger.index):
            for place in range(DEVICE, DISK):
                if entry.copies[place] >= 0:
                    self.ledger.lose(entry, place)
        while (action := self.scheduler.transfers.next_drop()) is not None:
            self._carrier.carry(action)

    def _act(self, now_us: int) -> None:
        """Carry out what comes before the round.

        A sequence that the engine will not seat ends with an error, alone.
        """
        while (action := self.scheduler.next_action(now_us)) is not None:
            if not isinstance(action, Admit | MoveIn):
                self._carrier.carry(action)
                continue
            sequence = self._open[action.key]
            try:
                self._carrier.carry(action)
            except ValueError as error:
                self._end(action.key, seated=False)
                message = f"the engine refused the sequence: {error}"
                self._refused.append(Delivery(action.key, None, "error", message))
                continue
            self._seated[action.lane] = sequence
            if not sequence.admitted:
                sequence.admitted = True
                self._admitted.append(action.key)

    def _taken(self) -> tuple[tuple[Fact, ...], tuple[Note, ...]]:
        board = self.scheduler.board
        if not board.facts and not board.notes:
            return (), ()
        facts, notes = tuple(board.facts), tuple(board.notes)
        board.facts.clear()
        board.notes.clear()
        return facts, notes

    def _stats(self, ran: Round | None) -> RoundStats:
        scheduler, engine = self.scheduler, self._core.engine
        transfers = scheduler.transfers
        ram_total, disk_total = self._windows_total
        return RoundStats(
            duration_s=0.0 if ran is None else self._duration_s,
            prefill_tokens=0 if ran is None else ran.prefill_tokens,
            decode_lanes=0 if ran is None else len(ran.decode_lanes),
            tokens=0 if ran is None else self._count,
            running=scheduler.running_count,
            waiting=scheduler.waiting_count,
            pages_free=engine.pages_free(),
            plan_allocations=engine.plan_allocations_after_seal(),
            parked=scheduler.parked_count,
            retained_slots_used=self.ledger.slots_used,
            kv_ram_windows_used=ram_total and ram_total - engine.windows_free(0),
            kv_disk_windows_used=disk_total and disk_total - engine.windows_free(1),
            moving_out=transfers.out is not None,
            moving_in=transfers.arriving is not None,
            gap_s=None if ran is None else self._gap_s,
        )

    def _top(self, at: int) -> tuple[tuple[int, float], ...]:
        out = self._core.out
        begin = at * TOP_MAX
        end = begin + out.top_len[at]
        return tuple(zip(out.top_ids[begin:end], out.top_logprobs[begin:end], strict=True))

    def _end(self, key: int, *, seated: bool = True) -> None:
        del self._open[key]
        lane = self.scheduler.end(key)
        if lane >= 0 and seated:
            self._core.engine.release(lane)
            self._seated[lane] = None


def _ledger(core: Core[SamplingT, OutT], reuse: ReuseOptions) -> Ledger:
    """What is retained at start: the images that an earlier process left on KV-disk."""
    engine = core.engine
    seed = os.urandom(16) if reuse.seed is None else reuse.seed
    ledger = Ledger(
        engine.retained_slots,
        engine.page_tokens,
        lambda tokens: core.prefix_chain(tokens, seed),
        reuse.interactive_ttl_us,
        saves=engine.windows_total(1) > 0,
    )
    for image, kind, class_index, ids in engine.found_images():
        tokens = array("I", ids)
        known = ledger.index.exact(tokens, len(tokens), chain := ledger.index.chain(tokens))
        if known is not None or (kind == 1 and not reuse.checkpoints):
            engine.drop_image(image)
            continue
        key = ledger.index.key_of(len(tokens), chain)
        entry = ledger.enter(tokens, "prefix" if kind == 2 else "checkpoint", class_index, key, 0)
        ledger.hold(entry, DISK, image)
    return ledger
