"""The scheduler: from what waits, what runs and what is free, the next round.

It is told events (`submit`, `end`, `round_done`) and asked for a decision (`next_round`). It reads
no clock, does no I/O and calls nothing, so equal events give equal rounds: a simulation replays it,
and time enters only as the measured duration of a round.

What it guarantees, each of which a test holds it to:

- Strict rank order. A sequence is never seated before one that ranks above it: while the best
  waiting sequence lacks a lane or pages, everything below it waits too. So a large request is not
  starved by small ones that would fit into each gap, and what a request waits for is finite: those
  that ran when it came, and those that rank above it. An agent request does yield to every
  interactive one, also to those that come later; that is what the class means.
- A seated sequence keeps its lane and all the pages it will ever need until it ends. It is never
  stopped for want of room, so whatever runs finishes, and its room returns.
- Every round decodes every ready lane, and carries at most one prefill chunk. So the longest wait
  between two tokens of a lane is one round with one chunk in it.
- After a chunk whose round took t, no further chunk runs, while any lane is ready to decode, until
  rounds without a chunk have taken t * share / (100 - share). So decode gets at least `share`
  percent of the time, and prefill waits no longer than that plus one round.
- What ends, or is cancelled, in any state gives back its lane and pages in the next round.
- Whoever fits an empty pool runs, even if it fills the last page.

Left out: which token ends a sequence (`RoundRunner`), clients and threads (`EngineService`).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from ignis.admission.rank import CLASSES, Rank, RequestClass
from ignis.engine.errors import QueueFull


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The maxima that hold for the scheduler's whole life."""

    lanes_max: int  # decode seats
    pages_total: int  # pages of the pool
    chunk_tokens_max: int  # tokens of one prefill chunk
    queue_max: int  # sequences that may be open beyond one for each lane
    decode_share_percent: int  # 0..99, see the module's fourth guarantee

    def __post_init__(self) -> None:
        assert min(self.lanes_max, self.pages_total, self.chunk_tokens_max) > 0
        assert self.queue_max >= 0
        assert 0 <= self.decode_share_percent < 100

    @property
    def open_max(self) -> int:
        """Sequences that may wait and run together."""
        return self.lanes_max + self.queue_max


class Admission(NamedTuple):
    """Sequence `key` takes `lane` and `pages` pages."""

    key: int
    lane: int
    pages: int


class Round(NamedTuple):
    """What to do next, in this order: release lanes, seat sequences, then run the rest at once."""

    releases: tuple[int, ...]  # lanes to empty
    admissions: tuple[Admission, ...]
    prefill_lane: int  # -1: no chunk in this round
    prefill_tokens: int  # next tokens of that lane's prompt
    decode_lanes: tuple[int, ...]  # each has its whole prompt done

    @property
    def runs(self) -> bool:
        """Whether the device has anything to do."""
        return self.prefill_lane >= 0 or bool(self.decode_lanes)


@dataclass(slots=True, eq=False)
class _Seat:
    """A sequence that waits (lane -1) or runs."""

    rank: Rank
    key: int
    prompt_tokens_left: int
    pages: int
    lane: int = -1


class Scheduler:
    """State of all open sequences; at most `limits.open_max` of them, so its size is bounded."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pages_free = limits.pages_total
        self._arrivals = 0
        # Arrivals only grow, so each class in order of insertion is in order of rank.
        self._waiting: tuple[OrderedDict[int, _Seat], ...] = tuple(OrderedDict() for _ in CLASSES)
        self._seats: dict[int, _Seat] = {}  # every open sequence, by key
        self._lanes: list[_Seat | None] = [None] * limits.lanes_max
        self._lanes_free = (1 << limits.lanes_max) - 1  # one bit a lane
        self._prefilling: list[tuple[Rank, _Seat]] = []  # seated, prompt not done, best rank first
        self._releases: list[int] = []  # lanes whose sequence ended since the last round
        self._prefill_wait_us = 0  # decode time still owed before the next chunk
        self._round: Round | None = None  # decided, not yet done

    # --- events -----------------------------------------------------------------------------------

    def submit(self, key: int, request_class: RequestClass, prompt_tokens: int, pages: int) -> Rank:
        """A sequence arrives and waits. `pages` is its whole reservation. Raises QueueFull.

        The caller made `key` unique and refused what `ignis.admission.reserve` says never fits.
        """
        assert key not in self._seats, "a key names one sequence"
        assert prompt_tokens > 0
        assert 0 < pages <= self.limits.pages_total
        if len(self._seats) >= self.limits.open_max:
            raise QueueFull(len(self._seats), self.limits.open_max)
        rank = Rank.of(request_class, self._arrivals)
        self._arrivals += 1
        seat = _Seat(rank, key, prompt_tokens, pages)
        self._seats[key] = seat
        self._waiting[rank.class_index][key] = seat
        return rank

    def end(self, key: int) -> None:
        """A sequence ends: it sampled its last token, was cancelled or failed, in any state."""
        seat = self._seats.pop(key)
        if seat.lane < 0:
            del self._waiting[seat.rank.class_index][key]
            return
        if seat.prompt_tokens_left:
            self._prefilling.remove((seat.rank, seat))
        self.pages_free += seat.pages
        self._lanes[seat.lane] = None
        self._lanes_free |= 1 << seat.lane
        self._releases.append(seat.lane)

    def round_done(self, duration_us: int) -> None:
        """The last decided round ran on the device and took `duration_us` in all."""
        done = self._round
        assert done is not None, "a round is done once"
        assert done.runs, "a round without work is not run"
        self._round = None
        if done.prefill_lane < 0:
            self._prefill_wait_us = max(0, self._prefill_wait_us - duration_us)
            return
        share = self.limits.decode_share_percent
        self._prefill_wait_us = duration_us * share // (100 - share)
        seat = self._lanes[done.prefill_lane]
        assert seat is not None, "sequences end before a round or after it, not in it"
        seat.prompt_tokens_left -= done.prefill_tokens
        if not seat.prompt_tokens_left:
            self._prefilling.remove((seat.rank, seat))

    # --- decision ---------------------------------------------------------------------------------

    def next_round(self) -> Round:
        """Decide the next round, and take its releases and admissions as carried out.

        Asked again before `round_done`, it decides anew from the events since then; chunks and
        decode steps of the round before count as not run.
        """
        releases = tuple(self._releases)
        self._releases.clear()
        admissions = tuple(self._admit())
        decode_lanes = tuple(
            [
                lane
                for lane, seat in enumerate(self._lanes)
                if seat is not None and not seat.prompt_tokens_left
            ]
        )
        prefill_lane, prefill_tokens = -1, 0
        if self._prefilling and not (decode_lanes and self._prefill_wait_us):
            _, seat = self._prefilling[0]
            prefill_lane = seat.lane
            prefill_tokens = min(seat.prompt_tokens_left, self.limits.chunk_tokens_max)
        decided = Round(releases, admissions, prefill_lane, prefill_tokens, decode_lanes)
        assert decided.runs or not self._seats, "open sequences always leave something to run"
        self._round = decided
        return decided

    def _admit(self) -> list[Admission]:
        admissions = []
        while self._lanes_free and (seat := self._head()) and seat.pages <= self.pages_free:
            del self._waiting[seat.rank.class_index][seat.key]
            seat.lane = (self._lanes_free & -self._lanes_free).bit_length() - 1
            self._lanes_free ^= 1 << seat.lane
            self._lanes[seat.lane] = seat
            self.pages_free -= seat.pages
            insort(self._prefilling, (seat.rank, seat))
            admissions.append(Admission(seat.key, seat.lane, seat.pages))
        return admissions

    def _head(self) -> _Seat | None:
        for waiting in self._waiting:
            if waiting:
                return next(iter(waiting.values()))
        return None

    # --- views ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `next_round` has anything to decide; without it the engine sleeps."""
        return bool(self._seats or self._releases)

    @property
    def open_count(self) -> int:
        """Sequences that wait or run."""
        return len(self._seats)

    @property
    def running_count(self) -> int:
        """Sequences with a lane."""
        return self.limits.lanes_max - self._lanes_free.bit_count()

    @property
    def waiting_count(self) -> int:
        """Sequences without a lane."""
        return len(self._seats) - self.running_count
