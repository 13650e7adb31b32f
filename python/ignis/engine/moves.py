"""Who enters next, and who gives way for it.

The best-ranked sequence without a lane, the head, is the only one that may enter. It needs a lane
and its whole reservation, less the whole pages that it shares with the slot it starts from. Where
room is short, in this order: retained slots are given up; the lowest-ranked sequence below the head
gives way; the head waits. Nothing is given up unless all that could be would be enough. A parked
head moves nobody.
"""

from __future__ import annotations

from ignis.engine.actions import KV_DISK, KV_RAM, Action, Admit, Note, Release
from ignis.engine.board import Board
from ignis.engine.seats import Seat, State
from ignis.engine.transfers import Transfers
from ignis.reuse import Entry
from ignis.reuse.entry import DEVICE

LOOK_AGAIN_US = 100_000  # at most so late is a wait looked at again that no event has ended


class Moves:
    """Decides for the head, one action at a time; asked again after each."""

    def __init__(self, board: Board, transfers: Transfers) -> None:
        self.hastened: Seat | None = None  # its next chunk goes first: it is to give way after it
        self._board = board
        self._transfers = transfers
        # The head waits for an event; nothing need be looked at before the next one.
        self._waits = False
        self._waits_until_us = 0
        self._waits_version = 0

    def changed(self) -> None:
        """Something happened that the head may have waited for."""
        self._waits = False

    def enter(self, now_us: int) -> Action | None:
        """The next action for the head; None: it waits, or there is none."""
        head = self._board.seats.head
        if head is None:
            return None
        version = self._board.ledger.version
        if self._waits and now_us < self._waits_until_us and version == self._waits_version:
            return None
        # Windows of an abandoned write come free without an event, so the wait has an end too.
        self._waits, self._waits_until_us = True, now_us + LOOK_AGAIN_US
        action = self._enter(head, now_us)
        self._waits = self._waits and action is None
        self._waits_version = self._board.ledger.version
        return action

    def match(self, seat: Seat, *, on_device: bool = False) -> Entry | None:
        """What it may start from; the last token of its prompt is always computed."""
        ledger = self._board.ledger
        if seat.matched != ledger.version:
            seat.matched = ledger.version
            seat.match = None
            if ledger.index:
                position_max = seat.prompt_tokens - 1
                seat.match = ledger.find(
                    seat.tokens, position_max, self.chain(seat), on_device=on_device
                )
        return seat.match

    def chain(self, seat: Seat) -> bytes:
        """Hashes of the whole pages of its prompt."""
        if seat.chain is None:
            seat.chain = self._board.ledger.index.chain(seat.tokens[: seat.prompt_tokens])
        return seat.chain

    # --- the head ---------------------------------------------------------------------------------

    def _enter(self, head: Seat, now_us: int) -> Action | None:
        view, seats, transfers = self._board.view, self._board.seats, self._transfers
        leaving = None if transfers.out is None else transfers.out.seat
        if leaving is not None and leaving.rank < head.rank:
            return None  # it returns first
        parked = head.state is State.PARKED
        claim = None if parked else self.match(head)
        place = -1 if claim is None else claim.fastest
        from_image = parked or place > DEVICE
        if from_image and transfers.arriving is not None:
            return None
        needed = head.pages
        if claim is not None and place == DEVICE:
            needed -= claim.position // view.page_tokens
        free = view.pages_free()
        if seats.lane_free and needed <= free:
            if from_image:
                return transfers.move_in(head, claim)
            return self._admit(head, claim, now_us)
        seated = [seat for seat in seats.lanes if seat is not None]
        below = [] if parked else [seat for seat in seated if head.rank < seat.rank]
        staying = seated if parked else [seat for seat in seated if seat.rank < head.rank]
        if len(staying) == view.lanes_max:
            return None
        room = view.pages_total - self._board.pages_held(staying)
        kept = self._kept(claim, staying) if claim is not None and place == DEVICE else 0
        if kept and needed + kept > room:
            # Its own match stands in its way: it goes on without.
            claim = head.match = None
            needed = head.pages
        if needed > room or (transfers.out is not None and not transfers.out.optional):
            return None  # what is on its way out makes room as well
        if seats.lane_free and view.pages_total - free > self._board.pages_held(seated):
            entry = self._board.ledger.worst_slot(claim, sharers_last=True)
            if entry is not None:
                return self._give_up(entry, now_us)
            if transfers.out is not None and transfers.out.gives_way(claim):
                return None
        if not below:
            return None
        return self._give_way(max(below, key=lambda seat: seat.rank), now_us)

    def _admit(self, head: Seat, claim: Entry | None, now_us: int) -> Action:
        slot = -1 if claim is None else claim.copies[DEVICE]
        lane = self._board.seats.take_lane(head)
        if claim is None:
            head.left = len(head.tokens)
        else:
            self._board.claimed(head, claim, DEVICE, now_us)
        self._board.seats.run(head)
        return Admit(head.key, lane, head.pages, slot)

    def _kept(self, claim: Entry, staying: list[Seat]) -> int:
        """Pages that the claimed slot holds beside those of `staying`, at most."""
        whole, rest = divmod(claim.position, self._board.view.page_tokens)
        shared = any(claim in seat.shares for seat in staying)
        return (0 if shared else whole) + (rest > 0)

    # --- who gives way ----------------------------------------------------------------------------

    def _give_up(self, entry: Entry, now_us: int) -> Action | None:
        """A retained slot goes: what has no copy below gets one first, if there is room for it."""
        board, transfers = self._board, self._transfers
        if not entry.is_below(DEVICE) and now_us >= transfers.paused_until_us:
            for tier in (KV_RAM, KV_DISK):
                displaced = self.displaced(tier, entry.position, now_us, below=entry)
                if displaced is None:
                    continue
                if transfers.out is not None:
                    return transfers.abandon_copy()
                if displaced:
                    board.lose(displaced[0], tier + 1)
                    return transfers.next_drop()
                return transfers.copy(entry, tier, then_drop=True)
        board.lose(entry, DEVICE)
        return transfers.next_drop()

    def _give_way(self, victim: Seat, now_us: int) -> Action | None:
        """The lowest-ranked one makes room: it moves, or lets go if it has computed nothing."""
        board, transfers = self._board, self._transfers
        if victim.state is State.ARRIVING:
            return self._unseat(victim)
        if victim.fresh:
            if not victim.returned:
                return self._unseat(victim)
            self.hastened = victim if victim.left else None
            self._waits = False
            return None
        if now_us < transfers.paused_until_us:
            return None
        for tier in (KV_RAM, KV_DISK):
            displaced = self.displaced(tier, victim.position, now_us)
            if displaced is None:
                continue
            if transfers.out is not None:
                return transfers.abandon_copy()
            if displaced:
                board.lose(displaced[0], tier + 1)
                return transfers.next_drop()
            return transfers.move_out(victim, tier)
        return self._drop_parked(victim, now_us)

    def _unseat(self, seat: Seat) -> Action:
        """It lets go of its lane before anything was computed in it, and waits as before."""
        board = self._board
        if seat.state is State.ARRIVING:
            self._transfers.forget(seat)
        else:
            board.seats.halt(seat, State.WAITING)
        lane = board.seats.vacate(seat)
        if seat.image >= 0:
            board.seats.queue(seat, State.PARKED)
        else:
            if not seat.began and seat.left < len(seat.tokens):
                board.notes.append(Note(seat.key, "reused", None, 0))
            board.start_over(seat)
            board.seats.queue(seat, State.WAITING)
        return Release(lane)

    def displaced(
        self, tier: int, position: int, now_us: int, below: Entry | None = None
    ) -> list[Entry] | None:
        """Retained images to give up so that one of `position` tokens fits; None: it cannot."""
        view = self._board.view
        needed = view.windows_for(position)
        if needed > self._board.windows_total[tier]:
            return None
        short = needed - view.windows_free(tier)
        displaced = []
        if short > 0:
            for entry in self._board.ledger.discards(tier + 1, now_us, below):
                displaced.append(entry)
                short -= view.windows_for(entry.position)
                if short <= 0:
                    break
        return None if short > 0 else displaced

    def _drop_parked(self, victim: Seat, now_us: int) -> Action | None:
        """Without KV-disk, KV-RAM gives up what is parked and ranks lowest, if that is enough."""
        board, view = self._board, self._board.view
        if board.windows_total[KV_DISK]:
            return None
        needed = view.windows_for(victim.position)
        if needed > board.windows_total[KV_RAM]:
            return None
        short = needed - view.windows_free(KV_RAM)
        for entry in board.ledger.discards(KV_RAM + 1, now_us):
            short -= view.windows_for(entry.position)
        lost: Seat | None = None
        for seat in reversed(board.seats.parked_by_rank()):
            if short <= 0 or seat.rank < victim.rank:
                break
            lost = lost or seat
            short -= view.windows_for(seat.position)
        if short > 0 or lost is None:
            return None
        self._transfers.doomed.append(lost.image)
        board.fact("live_dropped", "kv_ram")
        board.seats.unqueue(lost)
        board.lost(lost)
        board.seats.queue(lost, State.WAITING)
        return self._transfers.next_drop()
