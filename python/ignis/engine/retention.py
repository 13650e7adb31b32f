"""Retention: what of the running prompts is kept, and what goes on from it.

- A chunk that ends at a mark leaves its state in a retained slot, unless the same tokens have one.
  For a slot, another is given up; where none can be, the capture is skipped and counted.
- What arrived by a claim from below gets a slot again, so that it is brought back once.
- A sequence that has computed nothing yet and is about to start takes what was captured meanwhile,
  also in place of a shorter claim; so sequences of one prompt compute what they share once.
- Copies are made ahead of need while nobody wants the channel: to KV-disk of everything that has
  none there, so that a restart finds it; to KV-RAM of what the next capture would give up.
"""

from __future__ import annotations

from collections import deque

from ignis.engine.actions import KV_DISK, KV_RAM, Action, Adopt, Capture
from ignis.engine.api import Mark
from ignis.engine.board import Board
from ignis.engine.moves import Moves
from ignis.engine.seats import Seat
from ignis.engine.transfers import Transfers
from ignis.reuse.entry import DEVICE


class Retention:
    """Decides about captures, adoptions and copies ahead of need, one action at a time."""

    def __init__(self, board: Board, moves: Moves, transfers: Transfers) -> None:
        self.captures: deque[tuple[Seat, Mark]] = deque()  # lanes that stand at a mark right now
        self.paused = False  # whether copies ahead wait for a failed move's pause to pass
        self._board = board
        self._moves = moves
        self._transfers = transfers
        self._copied_version = -1  # of the ledger, when nothing was left to copy to KV-RAM

    def forget(self, seat: Seat) -> None:
        """It ended."""
        if self.captures:
            self.captures = deque(one for one in self.captures if one[0] is not seat)

    def capture(self, now_us: int) -> Action | None:
        """The next capture that is due; None: there is none, or a slot is to be dropped first."""
        while self.captures:
            seat, mark = self.captures[0]
            action = self._capture(seat, mark, now_us)
            if self._board.ledger.slots_dropped:
                return None
            self.captures.popleft()
            if action is not None:
                return action
        return None

    def _capture(self, seat: Seat, mark: Mark, now_us: int) -> Action | None:
        """None with a dropped slot in the ledger: to be asked again after it."""
        board, ledger = self._board, self._board.ledger
        chain = self._moves.chain(seat)
        entry = ledger.index.exact(seat.tokens, mark.position, chain)
        if entry is not None:
            ledger.touch(entry, now_us)
            if entry.copies[DEVICE] >= 0 or entry.in_use:
                return None
        elif mark.kind == "checkpoint" and seat.parent is not None:
            ledger.supersede(seat.parent)
        slot = ledger.free_slot()
        if slot < 0:
            worst = ledger.worst_slot()
            if worst is None:
                prefix = mark.kind == "prefix"
                board.fact("skipped_publish_no_slot" if prefix else "skipped_capture_no_slot")
            else:
                board.lose(worst, DEVICE)
            return None
        if ledger.slots_dropped:
            return None
        if entry is None:
            key = ledger.index.key_of(mark.position, chain)
            tokens = seat.tokens[: mark.position]
            parent = seat.parent if mark.kind == "checkpoint" else None
            entry = ledger.enter(tokens, mark.kind, seat.rank.class_index, key, now_us, parent)
        if entry.kind == "checkpoint":
            seat.parent = entry
        ledger.hold(entry, DEVICE, slot)
        entry.sharers += 1
        seat.shares.append(entry)
        return Capture(seat.lane, slot)

    def adopt(self, seat: Seat, now_us: int) -> Action | None:
        """Before the first chunk of `seat`: what it can start from instead, if it is more."""
        board = self._board
        had = len(seat.tokens) - seat.left
        entry = self._moves.match(seat, on_device=True)
        if entry is None or entry.copies[DEVICE] < 0 or entry.position <= had:
            if seat.marks and not had and not seat.missed:
                seat.missed = True
                board.fact("retained_miss", "device", "checkpoint")
            return None
        board.seats.unshare(seat)
        board.claimed(seat, entry, DEVICE, now_us)
        return Adopt(seat.lane, entry.copies[DEVICE])

    # --- copies ahead of need ---------------------------------------------------------------------

    def copy_ahead(self, now_us: int) -> Action | None:
        """The next copy that nobody waits for; None: there is none, or the channel is taken."""
        transfers = self._transfers
        self.paused = now_us < transfers.paused_until_us
        if self.paused or transfers.out is not None:
            return None
        return self._to_disk(now_us) or self._to_kv_ram(now_us)

    @property
    def has_work(self) -> bool:
        """Whether KV-disk is to get a copy of something, and may now."""
        return bool(self._board.ledger.unsaved) and not self.paused

    def _to_disk(self, now_us: int) -> Action | None:
        board, ledger = self._board, self._board.ledger
        while (entry := ledger.next_unsaved()) is not None:
            displaced = self._moves.displaced(KV_DISK, entry.position, now_us, below=entry)
            if displaced is None:
                del ledger.unsaved[entry]
                continue
            if displaced:
                board.lose(displaced[0], KV_DISK + 1)
                return self._transfers.next_drop()
            return self._transfers.copy(entry, KV_DISK)
        return None

    def _to_kv_ram(self, now_us: int) -> Action | None:
        board, ledger = self._board, self._board.ledger
        if ledger.slot_free or self._copied_version == ledger.version:
            return None
        if not board.windows_total[KV_RAM]:
            return None
        entry = ledger.worst_slot()
        if entry is not None and not entry.is_below(DEVICE):
            displaced = self._moves.displaced(KV_RAM, entry.position, now_us, below=entry)
            if displaced:
                board.lose(displaced[0], KV_RAM + 1)
                return self._transfers.next_drop()
            if displaced is not None:
                return self._transfers.copy(entry, KV_RAM)
        self._copied_version = ledger.version
        return None
