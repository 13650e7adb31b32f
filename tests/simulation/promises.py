"""What must hold of a run after every round, seen from outside the scheduler's decisions."""

from __future__ import annotations

from ignis.engine.rounds import RoundRunner
from ignis.engine.seats import Seat, State
from ignis.engine.sequence import Handover

IDLE_ROUNDS_MAX = 400  # rounds in a row that only wait for a disk


class Promises:
    """Compares each round with the one before."""

    def __init__(self, runner: RoundRunner) -> None:
        self._runner = runner
        self._seated: set[int] = set()
        self._leaving: Seat | None = None
        self._idle = 0

    def hold(self, handover: Handover) -> None:
        """Check them all."""
        self._something_goes_on(handover)
        self._work_is_lost_only_where_it_may_be(handover)
        self._nobody_is_passed(handover)
        self._the_lowest_leaves()

    def _something_goes_on(self, handover: Handover) -> None:
        stats = handover.stats
        assert stats is not None
        assert stats.plan_allocations == 0
        assert stats.running + stats.waiting == self._runner.scheduler.open_count
        if stats.prefill_tokens or stats.tokens:
            self._idle = 0
            return
        self._idle += 1
        assert self._idle < IDLE_ROUNDS_MAX, "nothing goes on"

    def _work_is_lost_only_where_it_may_be(self, handover: Handover) -> None:
        """With KV-disk on, only an image that cannot be read costs work."""
        lost = sum(note.what == "restarted" for note in handover.notes)
        if lost:
            names = [fact.name for fact in handover.facts]
            may_be = names.count("move_refused_read")
            if not self._runner.scheduler.board.windows_total[1]:
                may_be += names.count("live_dropped")
            assert lost <= may_be, "work was lost for nothing"

    def _nobody_is_passed(self, handover: Handover) -> None:
        """Who got a lane ranks above everyone who has none, where no failed move threw one back."""
        seats = self._runner.scheduler.board.seats
        seated = {seat.key for seat in seats.lanes if seat is not None}
        thrown_back = any(fact.name == "move_refused_read" for fact in handover.facts)
        if seats.head is not None and not seated <= self._seated and not thrown_back:
            best = seats.head.rank
            for key in seated - self._seated:
                assert seats.by_key[key].rank < best, f"request {key} passed one"
        self._seated = seated

    def _the_lowest_leaves(self) -> None:
        """Who begins to leave ranks below the head, and below everyone else in a lane."""
        scheduler = self._runner.scheduler
        out = scheduler.transfers.out
        leaving = None if out is None else out.seat
        if leaving is not None and leaving is not self._leaving:
            seats = scheduler.board.seats
            assert leaving.state is State.LEAVING
            for seat in seats.lanes:
                if seat is not None and seat is not leaving:
                    assert seat.rank < leaving.rank, f"request {leaving.key} left too early"
            assert seats.head is not None
            assert seats.head.rank < leaving.rank, f"request {leaving.key} moved for no one"
        self._leaving = leaving
