"""Transfers: what is under way out of the device and into it, at most one each way.

It takes the core's word for how each ended, and brings seats and ledger in step with it. It decides
nothing but what a failure means:

- A move out that failed leaves its sequence running, and none begins for a second.
- A move in that failed leaves its lane empty: a sequence of its own image is computed again from
  its tokens, a claim enters again without the copy that failed it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ignis.engine.actions import (
    IN_FAILED,
    IN_LANDED,
    OUT_FAILED,
    OUT_LANDED,
    TIERS,
    AbandonOut,
    Action,
    CopyDown,
    DropImage,
    DropSlot,
    MoveIn,
    MoveOut,
    Note,
    Spill,
)
from ignis.engine.api import Mark
from ignis.engine.board import Board
from ignis.engine.metrics import TierName
from ignis.engine.seats import Seat, State
from ignis.reuse import PLACES, Entry
from ignis.reuse.entry import DEVICE, DISK, KV_RAM

PAUSE_US = 1_000_000  # without moves out, after one failed


@dataclass(slots=True, eq=False)
class Out:
    """A move or a copy out: of a sequence, or of an entry that stays in place until it landed."""

    tier: int
    seat: Seat | None = None
    entry: Entry | None = None
    then_drop: bool = False  # the slot, which gives way
    source: TierName = "device"
    image: int = -1  # until the engine named it

    @property
    def optional(self) -> bool:
        """Whether nobody waits for it."""
        return self.seat is None and not self.then_drop

    def gives_way(self, keep: Entry | None) -> bool:
        """Have the slot that is copied dropped when that is done, if it is one, and not `keep`."""
        entry = self.entry
        if entry is None or entry is keep or entry.copies[DEVICE] < 0:
            return False
        self.then_drop = True
        return True


class Transfers:
    """The two channels."""

    def __init__(self, board: Board) -> None:
        self.out: Out | None = None
        self.arriving: Seat | None = None
        # By a claim, since they were last taken; the mark is where they stand.
        self.arrived: list[tuple[Seat, Mark]] = []
        self.returned: list[Seat] = []  # by an image of their own, in no round since
        self.paused_until_us = 0
        self.doomed: deque[int] = deque()  # images to drop that no entry holds
        self._board = board

    @property
    def under_way(self) -> bool:
        """Whether the engine has anything to advance."""
        return self.out is not None or self.arriving is not None

    @property
    def drops(self) -> bool:
        """Whether the engine still holds what was given up."""
        ledger = self._board.ledger
        return bool(self.doomed or ledger.images_dropped or ledger.slots_dropped)

    def next_drop(self) -> Action | None:
        """The next copy that was given up and still lies in the engine."""
        ledger = self._board.ledger
        if ledger.slots_dropped:
            return DropSlot(ledger.slots_dropped.popleft())
        images = self.doomed or ledger.images_dropped
        return DropImage(images.popleft()) if images else None

    # --- begin ------------------------------------------------------------------------------------

    def move_out(self, seat: Seat, tier: int) -> Action:
        """A running sequence leaves."""
        self._board.seats.halt(seat, State.LEAVING)
        self.out = Out(tier, seat=seat)
        return MoveOut(seat.lane, tier)

    def copy(self, entry: Entry, tier: int, *, then_drop: bool = False) -> Action:
        """An entry is copied to `tier`, from its slot or from its image in KV-RAM."""
        entry.writing = True
        self.out = Out(tier, entry=entry, then_drop=then_drop)
        slot, image, _ = entry.copies
        if slot >= 0:
            return Spill(slot, tier, 2 if entry.kind == "prefix" else 1, entry.class_index)
        assert tier == DISK - 1, "an image is copied from KV-RAM to KV-disk"
        self.out.source = "kv_ram"
        return CopyDown(image, entry.class_index)

    def abandon_copy(self) -> Action:
        """The copy under way gives way; its entry is as before."""
        assert self.out is not None
        assert self.out.entry is not None, "a sequence that leaves is not called back"
        self.out.entry.writing = False
        self.out = None
        return AbandonOut()

    def move_in(self, seat: Seat, claim: Entry | None) -> Action:
        """A queued sequence arrives from its own image, or from that of an entry."""
        seats = self._board.seats
        if claim is None:
            image = seat.image
        else:
            seat.claim, seat.claim_place = claim, claim.fastest
            image = claim.copies[seat.claim_place]
            claim.claims += 1
        lane = seats.take_lane(seat)
        seat.state = State.ARRIVING
        self.arriving = seat
        return MoveIn(seat.key, lane, image, seat.pages)

    def began(self, image: int) -> None:
        """The engine named the image of what goes out."""
        assert self.out is not None
        self.out.image = image

    # --- end --------------------------------------------------------------------------------------

    def forget(self, seat: Seat) -> None:
        """A leaving or arriving sequence lets go of its lane, and its transfer ends with that."""
        if seat.state is State.LEAVING:
            self.out = None
        else:
            self.arriving = None
            self._end_claim(seat)

    def ended(self, event: int, image: int, intact: bool, now_us: int) -> None:
        """One event of the core's `advance`: `intact` says whether the image is still there."""
        if event in {OUT_LANDED, OUT_FAILED}:
            out, self.out = self.out, None
            assert out is not None, "what was abandoned reports nothing"
            assert out.image == image, "one move out at a time"
            if event == OUT_LANDED:
                self._out_landed(out)
            else:
                self._out_failed(out, now_us)
            return
        assert event in {IN_LANDED, IN_FAILED}
        seat, self.arriving = self.arriving, None
        assert seat is not None, "what was abandoned reports nothing"
        if event == IN_LANDED:
            self._in_landed(seat, now_us)
        else:
            self._in_failed(seat, intact)

    def _out_landed(self, out: Out) -> None:
        board, tier = self._board, TIERS[out.tier]
        if out.seat is not None:
            seat = out.seat
            seat.image, seat.tier = out.image, out.tier
            board.seats.vacate(seat)
            board.seats.queue(seat, State.PARKED)
            board.fact("evicted", tier)
            board.notes.append(Note(seat.key, "evicted", tier, seat.position))
            return
        entry = out.entry
        assert entry is not None
        entry.writing = False
        board.ledger.hold(entry, out.tier + 1, out.image)
        board.fact("retained_spill", tier, entry.kind, source=out.source)
        if out.then_drop:
            board.lose(entry, DEVICE)

    def _out_failed(self, out: Out, now_us: int) -> None:
        board, tier = self._board, TIERS[out.tier]
        self.paused_until_us = now_us + PAUSE_US
        kind = None
        if out.seat is not None:
            board.seats.run(out.seat)
        else:
            assert out.entry is not None
            out.entry.writing = False
            kind = out.entry.kind
            # What a failing disk does not hold is tried again when it is next of use.
            board.ledger.unsaved.clear()
        board.fact("move_refused_write", tier, kind)

    def _in_landed(self, seat: Seat, now_us: int) -> None:
        board = self._board
        entry, place = seat.claim, seat.claim_place
        self._end_claim(seat)
        if entry is not None:
            board.claimed(seat, entry, place, now_us)
            self.arrived.append((seat, Mark(entry.position, entry.kind)))
        else:
            tier = TIERS[seat.tier]
            self.doomed.append(seat.image)
            seat.image = seat.tier = -1
            seat.returned = True
            self.returned.append(seat)
            if seat.left == 1 and len(seat.tokens) > seat.prompt_tokens:
                # It was being computed again, and has come to where it had been before.
                seat.left = 0
            board.fact("resumed", tier)
            board.notes.append(Note(seat.key, "resumed", tier, seat.position))
        board.seats.run(seat)

    def _in_failed(self, seat: Seat, intact: bool) -> None:
        board = self._board
        entry, place = seat.claim, seat.claim_place
        self._end_claim(seat)
        board.seats.vacate(seat)
        if entry is not None:
            board.fact("move_refused_read", PLACES[place], entry.kind)
            board.lose(entry, place, dropped=not intact)
        else:
            board.fact("move_refused_read", TIERS[seat.tier])
            if intact:
                self.doomed.append(seat.image)
            board.lost(seat)
        board.seats.queue(seat, State.WAITING)

    def _end_claim(self, seat: Seat) -> None:
        if seat.claim is not None:
            seat.claim.claims -= 1
            seat.claim, seat.claim_place = None, -1


assert (KV_RAM, DISK) == (1, 2), "a tier's place is its number and one"
