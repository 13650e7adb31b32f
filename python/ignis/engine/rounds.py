"""Rounds: what the scheduler decides, carried out on an engine; one call, one round, no thread.

`EngineThread` runs this in a loop; the simulation drives the same code without a thread. Sequences
are known by their key alone, so nothing mutable is shared with the side that reads the results.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple

from ignis.admission.reservation import Reservation
from ignis.engine.api import FinishReason, RequestClass, SamplingParams, TokenOut
from ignis.engine.metrics import RoundStats
from ignis.engine.native import TOP_MAX, Core, OutT, SamplingT
from ignis.engine.scheduler import Round, Scheduler, SchedulerLimits


@dataclass(slots=True, eq=False)
class Sequence:
    """One run of tokens on the engine's side."""

    key: int
    prompt: array[int] | None  # "I"; None once the engine holds it
    prompt_tokens: int
    reservation: Reservation
    sampling: SamplingParams
    stop_ids: frozenset[int]
    request_class: RequestClass
    generated: int = 0


class Delivery(NamedTuple):
    """What a round gave one sequence: a token, its end, or both."""

    key: int
    token: TokenOut | None
    finish_reason: FinishReason | None
    error: str | None = None


class Handover(NamedTuple):
    """All that one round gave, handed over at once. Times are monotonic seconds."""

    began: float  # sequences in `admitted` got their lanes now
    ended: float  # tokens in `deliveries` were sampled now
    admitted: tuple[int, ...]  # keys
    deliveries: tuple[Delivery, ...]
    stats: RoundStats | None  # None only beside a failure
    failure: str | None = None  # the engine stopped; every open sequence is lost


class RoundRunner(Generic[SamplingT, OutT]):
    """Open sequences, their scheduler and the engine that runs them. Used by one thread."""

    def __init__(
        self,
        core: Core[SamplingT, OutT],
        limits: SchedulerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        engine = core.engine
        assert (limits.lanes_max, limits.pages_total) == (engine.lanes_max, engine.pages_total)
        self.scheduler = Scheduler(limits)
        self._core = core
        self._clock = clock
        self._open: dict[int, Sequence] = {}
        # Whom the engine holds in each lane: until the release, also those that ended.
        self._seated: list[Sequence | None] = [None] * limits.lanes_max
        self._decode_lanes = array("I", bytes(4 * limits.lanes_max))

    @property
    def has_work(self) -> bool:
        """Whether `run_round` would do anything."""
        return self.scheduler.has_work

    def submit(self, sequence: Sequence) -> None:
        """A sequence arrives. Raises QueueFull."""
        pages = sequence.reservation.pages
        self.scheduler.submit(sequence.key, sequence.request_class, sequence.prompt_tokens, pages)
        self._open[sequence.key] = sequence

    def cancel(self, key: int) -> None:
        """Nobody wants the sequence any more; one that has ended already is no error."""
        if key in self._open:
            self._end(key)

    def run_round(self) -> Handover:
        """Run one round. What the engine raises passes through, and ends this runner's use."""
        began = self._clock()
        admitted: list[int] = []
        deliveries: list[Delivery] = []
        decided = self._seat(self.scheduler.next_round(), admitted, deliveries)
        if not decided.runs:
            stats = self._stats(decided, 0.0, 0)
            return Handover(began, began, tuple(admitted), tuple(deliveries), stats)
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
        self.scheduler.round_done(round((ended - began) * 1e6))
        self._collect(count, deliveries)
        stats = self._stats(decided, ended - began, count)
        return Handover(began, ended, tuple(admitted), tuple(deliveries), stats)

    def close(self) -> None:
        """End every sequence and empty every lane."""
        for key in list(self._open):
            self._end(key)
        self._seat(self.scheduler.next_round(), [], [])

    def _seat(self, decided: Round, admitted: list[int], deliveries: list[Delivery]) -> Round:
        """Release and admit as decided; returns the round to run.

        A sequence that the engine will not seat ends with an error, alone; the round is then
        decided again without it.
        """
        while True:
            refused = False
            for lane in decided.releases:
                if self._seated[lane] is not None:
                    self._core.engine.release(lane)
                    self._seated[lane] = None
            for key, lane, pages in decided.admissions:
                sequence = self._open[key]
                assert sequence.prompt is not None, "a sequence is seated once"
                try:
                    sampling = self._core.sampling(sequence.sampling)
                    self._core.engine.admit(lane, sequence.prompt, pages, sampling)
                except ValueError as error:
                    self._end(key)
                    message = f"the engine refused the sequence: {error}"
                    deliveries.append(Delivery(key, None, "error", message))
                    refused = True
                    continue
                sequence.prompt = None
                self._seated[lane] = sequence
                admitted.append(key)
            if not refused:
                return decided
            decided = self.scheduler.next_round()

    def _collect(self, count: int, deliveries: list[Delivery]) -> None:
        out = self._core.out
        lanes, tokens, logprobs = out.lanes, out.tokens, out.logprobs
        for at in range(count):
            sequence = self._seated[lanes[at]]
            assert sequence is not None, "results are of lanes that ran"
            token = tokens[at]
            sequence.generated += 1
            finish_reason: FinishReason | None = None
            if token in sequence.stop_ids:
                finish_reason = "stop"
            elif sequence.generated >= sequence.reservation.tokens_max:
                finish_reason = "length"
            if sequence.sampling.logprobs is None:
                token_out = TokenOut(token)
            else:
                token_out = TokenOut(token, logprobs[at], self._top(at))
            deliveries.append(Delivery(sequence.key, token_out, finish_reason))
            if finish_reason is not None:
                self._end(sequence.key)

    def _stats(self, decided: Round, duration_s: float, tokens: int) -> RoundStats:
        return RoundStats(
            duration_s=duration_s,
            prefill_tokens=decided.prefill_tokens,
            decode_lanes=len(decided.decode_lanes),
            tokens=tokens,
            running=self.scheduler.running_count,
            waiting=self.scheduler.waiting_count,
            pages_free=self.scheduler.pages_free,
            plan_allocations=self._core.engine.plan_allocations_after_seal(),
        )

    def _top(self, at: int) -> tuple[tuple[int, float], ...]:
        out = self._core.out
        begin = at * TOP_MAX
        end = begin + out.top_len[at]
        return tuple(zip(out.top_ids[begin:end], out.top_logprobs[begin:end], strict=True))

    def _end(self, key: int) -> None:
        del self._open[key]
        self.scheduler.end(key)
