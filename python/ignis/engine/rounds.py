"""Rounds: what the scheduler decides, carried out on an engine; one call, one round, no thread.

`EngineThread` runs this in a loop; the simulation drives the same code without a thread. Sequences
are known by their key alone, so nothing mutable is shared with the side that reads the results.
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
    """Open sequences, their scheduler and the engine that runs them. Used by one thread."""

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
        self._windows_total = engine.windows_total(0), engine.windows_total(1)

    @property
    def has_work(self) -> bool:
        """Whether `run_round` would do anything."""
        return self.scheduler.has_work

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
        """Nobody wants the sequence any more; one that has ended already is no error."""
        if key in self._open:
            self._end(key)

    def run_round(self) -> Handover:
        """Run one round. What the engine raises passes through, and ends this runner's use."""
        scheduler = self.scheduler
        began = self._clock()
        admitted: list[int] = []
        deliveries: list[Delivery] = []
        self._act(round(began * 1e6), admitted, deliveries)
        decided = scheduler.next_round()
        ended, count = began, 0
        if decided.runs:
            for at, lane in enumerate(decided.decode_lanes):
                self._decode_lanes[at] = lane
            count = self._core.engine.round(
                decided.prefill_lane,
                decided.prefill_tokens,
                self._decode_lanes,
                len(decided.decode_lanes),
                self._core.out,
            )
            ended = self._clock()
            scheduler.round_done(round((ended - began) * 1e6))
            self._collect(count, deliveries)
        if scheduler.transfers.under_way:
            wait_us = 0 if decided.runs else DISK_WAIT_US
            self._carrier.advance(wait_us, round(ended * 1e6))
        stats = self._stats(decided, ended - began, count)
        facts, notes = self._taken()
        keys = tuple(admitted)
        return Handover(began, ended, keys, tuple(deliveries), stats, None, facts, notes)

    def close(self) -> None:
        """End every sequence, empty every lane and slot, and free KV-RAM; KV-disk keeps its own."""
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

    def _act(self, now_us: int, admitted: list[int], deliveries: list[Delivery]) -> None:
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
                deliveries.append(Delivery(action.key, None, "error", message))
                continue
            self._seated[action.lane] = sequence
            if not sequence.admitted:
                sequence.admitted = True
                admitted.append(action.key)

    def _collect(self, count: int, deliveries: list[Delivery]) -> None:
        out = self._core.out
        lanes, tokens, logprobs = out.lanes, out.tokens, out.logprobs
        for at in range(count):
            sequence = self._seated[lanes[at]]
            assert sequence is not None, "results are of lanes that ran"
            token = tokens[at]
            sequence.tokens.append(token)
            finish_reason: FinishReason | None = None
            if token in sequence.stop_ids:
                finish_reason = "stop"
            elif len(sequence.tokens) >= sequence.tokens_end:
                finish_reason = "length"
            if sequence.sampling.logprobs is None:
                token_out = TokenOut(token)
            else:
                token_out = TokenOut(token, logprobs[at], self._top(at))
            deliveries.append(Delivery(sequence.key, token_out, finish_reason))
            if finish_reason is not None:
                self._end(sequence.key)

    def _taken(self) -> tuple[tuple[Fact, ...], tuple[Note, ...]]:
        board = self.scheduler.board
        if not board.facts and not board.notes:
            return (), ()
        facts, notes = tuple(board.facts), tuple(map(self._carrier.timed, board.notes))
        board.facts.clear()
        board.notes.clear()
        return facts, notes

    def _stats(self, decided: Round, duration_s: float, tokens: int) -> RoundStats:
        scheduler, engine = self.scheduler, self._core.engine
        transfers = scheduler.transfers
        ram_total, disk_total = self._windows_total
        return RoundStats(
            duration_s=duration_s,
            prefill_tokens=decided.prefill_tokens,
            decode_lanes=len(decided.decode_lanes),
            tokens=tokens,
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
