"""The scheduler: from what waits, what runs and what is free, the next actions and the next round.

It is told events (`submit`, `end`, `round_done`, `ended`) and asked for decisions: `next_action`
until there is none, then `next_round`. While that round runs, sequences may come, who is not in it
may end, and so may transfers: all that counts from the next decision on. It reads no clock and does
no I/O; besides its own state it reads counts of the engine (`PoolView`). So equal events and counts
give equal decisions, and a simulation replays it; time enters as a number.

A sequence waits, runs in a lane, leaves (its state is copied to KV-RAM or KV-disk), is parked there
and arrives in a lane again. What is guaranteed, each of which a test holds it to:

- Strict rank order. Waiting and parked sequences share one queue, and only its head enters: while
  it lacks a lane or pages, everything below it waits too. So a sequence that moved returns before
  anything that ranks below it enters, and small requests do not starve a large one.
- Only what ranks below the head gives way to it, the lowest first, and only if that will be enough.
  So an agent request moves no interactive one and no older agent one. What gives way keeps its rank
  and, unless KV-RAM gives it up with KV-disk off, everything that it computed.
- Progress. The best-ranked open sequence is never moved, and enters as soon as those that it cannot
  move, and the transfers under way, are done. A finite number of better-ranked requests delays
  anyone. Every return computes something before its sequence moves again.
- A running sequence has all the pages it will ever need; it is never stopped for want of room.
- Every round decodes every ready lane, and carries at most one prefill chunk. So the longest wait
  between two tokens of a running lane is one round with one chunk in it.
- After a chunk whose round took t, no further chunk runs, while any lane is ready to decode, until
  rounds without a chunk have taken t * share / (100 - share). So decode gets at least `share`
  percent of the time, and prefill waits no longer than that plus one round.
- What ends, or is cancelled, in any state gives back its lane and pages at once, and its image
  before anything else is decided.
- Whoever fits an empty pool runs, even if it fills the last page: what is retained gives way.
- Whatever a move or a claim meets, no sequence is lost: one whose image is lost is computed again.

Left out: who gives way (`moves`), what is retained (`retention`), how transfers end (`transfers`),
which token ends a sequence (`RoundRunner`), clients and threads (`EngineService`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from ignis.admission.rank import Rank, RequestClass
from ignis.engine.actions import Action
from ignis.engine.api import Mark
from ignis.engine.board import Board, PoolView
from ignis.engine.errors import QueueFull
from ignis.engine.moves import Moves
from ignis.engine.retention import Retention
from ignis.engine.seats import Seat, Seats, State
from ignis.engine.transfers import Transfers
from ignis.reuse import Ledger


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The maxima that hold for the scheduler's whole life."""

    lanes_max: int  # decode seats
    pages_total: int  # pages of the pool
    chunk_tokens_max: int  # tokens of one prefill chunk
    queue_max: int  # sequences that may be open beyond one for each lane
    decode_share_percent: int  # 0..99, see the module's sixth guarantee

    def __post_init__(self) -> None:
        assert min(self.lanes_max, self.pages_total, self.chunk_tokens_max) > 0
        assert self.queue_max >= 0
        assert 0 <= self.decode_share_percent < 100

    @property
    def open_max(self) -> int:
        """Sequences that may wait and run together."""
        return self.lanes_max + self.queue_max


class Round(NamedTuple):
    """What to run next, all of it at once."""

    prefill_lane: int  # -1: no chunk in this round
    prefill_tokens: int  # next tokens of that lane's sequence
    decode_lanes: tuple[int, ...]  # each has its whole prompt done

    @property
    def runs(self) -> bool:
        """Whether the device has anything to do."""
        return self.prefill_lane >= 0 or bool(self.decode_lanes)


class Scheduler:
    """State of all open sequences; at most `limits.open_max` of them, and those that leave with the
    round that runs, so its size is bounded.
    """

    def __init__(self, limits: SchedulerLimits, view: PoolView, ledger: Ledger) -> None:
        self.limits = limits
        self.board = Board(view, Seats(limits.lanes_max), ledger)
        self.transfers = Transfers(self.board)
        self.moves = Moves(self.board, self.transfers)
        self.retention = Retention(self.board, self.moves, self.transfers)
        self._seats = self.board.seats
        self._arrivals = 0
        self._prefill_wait_us = 0  # decode time still owed before the next chunk
        self._round: Round | None = None  # decided, not yet done
        self._ended = False  # a sequence, since the last round
        self._leaving: list[int] = []  # keys; in the round that runs, and to be ended after it

    # --- events -----------------------------------------------------------------------------------

    def submit(
        self,
        key: int,
        request_class: RequestClass,
        tokens: array[int],
        pages: int,
        marks: tuple[Mark, ...] = (),
    ) -> Rank:
        """A sequence arrives and waits. `pages` is its whole reservation. Raises QueueFull.

        The caller made `key` unique and refused what `ignis.admission.reserve` says never fits. It
        appends what the sequence generates to `tokens`, after the round is said to be done.
        """
        by_key = self._seats.by_key
        assert key not in by_key, "a key names one sequence"
        assert tokens, "a prompt has tokens"
        assert 0 < pages <= self.limits.pages_total
        open_count = len(by_key) - len(self._leaving)
        if open_count >= self.limits.open_max:
            raise QueueFull(open_count, self.limits.open_max)
        rank = Rank.of(request_class, self._arrivals)
        self._arrivals += 1
        if marks:
            slots = self.board.ledger.slots_total
            marks = tuple([mark for mark in marks if slots and 0 < mark.position < len(tokens)])
        seat = Seat(rank, key, tokens, len(tokens), pages, marks, len(tokens))
        by_key[key] = seat
        self._seats.queue(seat, State.WAITING)
        self.moves.changed()
        return rank

    def end(self, key: int) -> int:
        """A sequence ends: it sampled its last token, was cancelled or failed, in any state.

        Returns the lane to release, with any move of it; -1: it had none.
        """
        seats = self._seats
        seat = seats.by_key.pop(key)
        self._ended = True
        self.moves.changed()
        if seat.image >= 0:
            self.transfers.doomed.append(seat.image)
        if seat.state in {State.WAITING, State.PARKED}:
            seats.unqueue(seat)
            return -1
        if seat.state is State.RUNNING:
            self.retention.forget(seat)
            seats.halt(seat, State.WAITING)
            if self.moves.hastened is seat:
                self.moves.hastened = None
        else:
            self.transfers.forget(seat)
        return seats.vacate(seat)

    def leave(self, key: int) -> bool:
        """The sequence is to end. False: the caller ends it now.

        True: it is in the round that runs. It counts as open no more, and is among those that
        `left` gives after that round.
        """
        decided, lane = self._round, self._seats.by_key[key].lane
        if decided is None or lane < 0:
            return False
        if lane != decided.prefill_lane and lane not in decided.decode_lanes:
            return False
        if key not in self._leaving:
            self._leaving.append(key)
        return True

    def left(self) -> list[int]:
        """Who is to be ended, now that the round is done."""
        left, self._leaving = self._leaving, []
        return left

    def round_done(self, duration_us: int) -> None:
        """The last decided round ran on the device and took `duration_us` in all."""
        done = self._round
        assert done is not None, "a round is done once"
        assert done.runs, "a round without work is not run"
        self._round = None
        if self.transfers.returned:
            self._returned_ran(done)
        if done.prefill_lane < 0:
            self._prefill_wait_us = max(0, self._prefill_wait_us - duration_us)
            return
        share = self.limits.decode_share_percent
        self._prefill_wait_us = duration_us * share // (100 - share)
        chunked = self._seats.lanes[done.prefill_lane]
        assert chunked is not None, "sequences end before a round or after it, not in it"
        chunked.fresh, chunked.began = False, True
        self.moves.hastened = None
        if chunked.left == done.prefill_tokens:
            self._seats.prefilled(chunked)
            return
        chunked.left -= done.prefill_tokens
        for mark in chunked.marks:
            if mark.position == len(chunked.tokens) - chunked.left:
                self.retention.captures.append((chunked, mark))

    def _returned_ran(self, done: Round) -> None:
        """Who returned and decoded has computed something; who landed beside the round has not."""
        landed = []
        for seat in self.transfers.returned:
            if seat.left or seat.lane < 0:
                continue
            if seat.lane in done.decode_lanes:
                seat.fresh = False
            else:
                landed.append(seat)
        self.transfers.returned = landed

    def out_began(self, image: int) -> None:
        """The engine began what the last action asked it to copy out, as this image."""
        self.transfers.began(image)

    def ended(self, event: int, image: int, intact: bool, now_us: int) -> None:
        """The engine's `advance` reported the end of a transfer."""
        self.transfers.ended(event, image, intact, now_us)
        self.retention.captures += self.transfers.arrived
        self.transfers.arrived.clear()
        self.moves.changed()

    # --- decision ---------------------------------------------------------------------------------

    def next_action(self, now_us: int) -> Action | None:
        """The next thing to do before the round, which the caller does at once; None: run it.

        `now_us` is a time in microseconds that never goes back.
        """
        action = self._next_action(now_us)
        if action is not None:
            self.moves.changed()
        return action

    def _next_action(self, now_us: int) -> Action | None:
        transfers, retention, ledger = self.transfers, self.retention, self.board.ledger
        if retention.captures and not ledger.slots_dropped:
            action = retention.capture(now_us)
            if action is not None:
                return action
        if transfers.drops:
            return transfers.next_drop()
        action = self.moves.enter(now_us)
        if action is not None:
            return action
        chunked = self._next_chunked()
        if chunked is not None and chunked.fresh and not chunked.returned:
            action = retention.adopt(chunked, now_us)
            if action is not None:
                return action
        if ledger.slots_used or ledger.unsaved:
            return retention.copy_ahead(now_us)
        return None

    def next_round(self) -> Round:
        """Decide the next round.

        Asked again before `round_done`, it decides anew from the events since then; chunks and
        decode steps of the round before count as not run.
        """
        self._ended = False
        decode_lanes = self._seats.decode_lanes
        prefill_lane, prefill_tokens = -1, 0
        seat = self._next_chunked()
        if seat is not None:
            prefill_lane = seat.lane
            prefill_tokens = min(seat.left, self.limits.chunk_tokens_max)
            if seat.marks:
                position = len(seat.tokens) - seat.left
                for mark in seat.marks:
                    if mark.position > position:
                        prefill_tokens = min(prefill_tokens, mark.position - position)
                        break
        decided = self._round = Round(prefill_lane, prefill_tokens, decode_lanes)
        assert decided.runs or self._may_rest, "open sequences always leave something to do"
        return decided

    def prepare(self) -> None:
        """Beside a round: look up what the next decision will want to know of the head."""
        head = self._seats.head
        if head is not None and head.state is State.WAITING:
            self.moves.match(head)

    def _next_chunked(self) -> Seat | None:
        """Whose chunk is in the next round."""
        prefilling = self._seats.prefilling
        if not prefilling or (self._prefill_wait_us and self._seats.decode_lanes):
            return None
        return self.moves.hastened or prefilling[0][1]

    @property
    def _may_rest(self) -> bool:
        """Whether a round without work is right: something moves, or nobody is open."""
        return not self._seats.by_key or self.transfers.under_way

    # --- views ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there is anything to decide or to report; without it the engine sleeps."""
        transfers, board = self.transfers, self.board
        return bool(
            self._seats.by_key
            or self._ended
            or transfers.under_way
            or transfers.drops
            or self.retention.has_work
            or board.facts
            or board.notes
        )

    @property
    def open_count(self) -> int:
        """Sequences that are open, in any state."""
        return len(self._seats.by_key)

    @property
    def running_count(self) -> int:
        """Sequences with a lane."""
        return self._seats.seated

    @property
    def waiting_count(self) -> int:
        """Sequences without a lane, the parked ones included."""
        return self._seats.queued

    @property
    def parked_count(self) -> int:
        """Sequences whose state lies in an image."""
        return self._seats.parked
