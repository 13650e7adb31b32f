"""The board: what the parts of the scheduler share, and the engine's counts that they read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

from ignis.engine.actions import TIERS, Note
from ignis.engine.metrics import Fact, FactName, KindName, TierName
from ignis.engine.seats import Seat, Seats
from ignis.reuse import PLACES, Entry, Ledger
from ignis.reuse.entry import DEVICE


class PoolView(Protocol):
    """Counts of the engine, which change by actions and by its `advance` alone."""

    @property
    def lanes_max(self) -> int: ...
    @property
    def pages_total(self) -> int: ...
    @property
    def page_tokens(self) -> int: ...
    def pages_free(self) -> int: ...
    def pages_held(self, lanes: array[int], count: int) -> int:
        """Distinct pages that the lanes hold."""
        ...

    def windows_for(self, position: int) -> int:
        """Windows of an image of so many tokens."""
        ...

    def windows_free(self, tier: int) -> int: ...
    def windows_total(self, tier: int) -> int:
        """0: the tier is off."""
        ...


@dataclass(slots=True, eq=False)
class Board:
    """One for each scheduler."""

    view: PoolView
    seats: Seats
    ledger: Ledger
    facts: list[Fact] = field(default_factory=list)  # since they were last taken
    notes: list[Note] = field(default_factory=list)
    windows_total: tuple[int, int] = (0, 0)  # by tier; 0: it is off

    def __post_init__(self) -> None:
        self.windows_total = self.view.windows_total(0), self.view.windows_total(1)

    def pages_held(self, seats: list[Seat]) -> int:
        """Distinct pages that these seated sequences hold."""
        lanes = array("I", [seat.lane for seat in seats])
        return self.view.pages_held(lanes, len(lanes)) if lanes else 0

    def fact(
        self,
        name: FactName,
        tier: TierName | None = None,
        kind: KindName | None = None,
        amount: int = 1,
        source: TierName = "device",
    ) -> None:
        """Something to count."""
        self.facts.append(Fact(name, tier, kind, amount, source))

    def lose(self, entry: Entry, place: int, *, dropped: bool = False) -> None:
        """Give up a copy of what is retained; the last one is a discard."""
        if self.ledger.lose(entry, place, dropped=dropped):
            self.fact("retained_discard", PLACES[place], entry.kind)

    def claimed(self, seat: Seat, entry: Entry, place: int, now_us: int) -> None:
        """The sequence goes on from the entry, of which nothing was changed.

        One that has begun nothing may change a claim for a longer one: what that adds is counted.
        """
        had = len(seat.tokens) - seat.left
        seat.left = len(seat.tokens) - entry.position
        if entry.kind == "checkpoint":
            seat.parent = entry
        self.ledger.touch(entry, now_us)
        if place == DEVICE:
            entry.sharers += 1
            seat.shares.append(entry)
        else:
            entry.protected = True
            self.fact("retained_restore", PLACES[place], entry.kind)
        if not had:
            self.fact("retained_hit", PLACES[place], entry.kind)
        self.fact("retained_reused_tokens", PLACES[place], entry.kind, entry.position - had)
        if not seat.began:
            self.notes.append(Note(seat.key, "reused", PLACES[place], entry.position))

    def start_over(self, seat: Seat) -> None:
        """Nothing of it is computed any more."""
        seat.left = len(seat.tokens)
        seat.image = seat.tier = -1
        seat.returned = False

    def lost(self, seat: Seat) -> None:
        """The image of a sequence is lost: it is computed again from its tokens."""
        position = seat.position
        self.fact("prefilled_again", amount=position)
        self.notes.append(Note(seat.key, "restarted", TIERS[seat.tier], position))
        self.start_over(seat)
