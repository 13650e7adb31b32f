"""Seats: every open sequence, the one queue of those that want a lane, and who holds which lane.

It keeps these in step with each other and decides nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import Enum, auto

from ignis.admission.rank import Rank
from ignis.engine.api import Mark
from ignis.reuse import Entry


class State(Enum):
    """Where a sequence is; see `ignis.engine.scheduler`."""

    WAITING = auto()  # no lane, nothing computed
    RUNNING = auto()  # a lane; its prompt is computed, or it decodes
    LEAVING = auto()  # a lane, in no round: its state is copied to a tier
    PARKED = auto()  # no lane: an image holds its state
    ARRIVING = auto()  # a lane, in no round: an image is copied into it


@dataclass(slots=True, eq=False)
class Seat:
    """One open sequence. `tokens` is its prompt and what it generated, and grows with it."""

    rank: Rank
    key: int
    tokens: array[int]  # "I"
    prompt_tokens: int
    pages: int  # its whole reservation
    marks: tuple[Mark, ...]
    left: int  # tokens to compute before it samples; 0: it decodes
    state: State = State.WAITING
    lane: int = -1
    image: int = -1  # of its own, while parked or arriving from it
    tier: int = -1  # where the image is
    fresh: bool = True  # it has computed nothing since it got its lane
    returned: bool = False  # it got its lane back, by an image of its own
    began: bool = False  # a token of it was computed, ever
    claim: Entry | None = None  # whose image it arrives from
    claim_place: int = -1
    parent: Entry | None = None  # the latest checkpoint of its conversation
    shares: list[Entry] = field(default_factory=list)  # whose pages its lane shares
    match: Entry | None = None  # what it would start from, as of `matched`
    matched: int = -1  # version of the ledger then
    chain: bytes | None = None  # hashes of its prompt's whole pages, once needed
    missed: bool = False  # it has been counted as a miss

    @property
    def position(self) -> int:
        """Tokens whose state its lane or image holds; the last token of a decoding one is not."""
        return len(self.tokens) - (self.left or 1)


class Seats:
    """All open sequences; their number is bounded by who submits."""

    def __init__(self, lanes_max: int) -> None:
        self.by_key: dict[int, Seat] = {}
        self.lanes: list[Seat | None] = [None] * lanes_max  # whoever holds it, in any state
        self.prefilling: list[tuple[Rank, Seat]] = []  # running, prompt not done, best rank first
        self.parked = 0
        self._lanes_free = (1 << lanes_max) - 1  # one bit a lane
        self._queue: list[tuple[Rank, Seat]] = []  # waiting or parked, best rank first
        self._decode_lanes: tuple[int, ...] | None = ()

    @property
    def head(self) -> Seat | None:
        """The best-ranked sequence that wants a lane."""
        return self._queue[0][1] if self._queue else None

    @property
    def queued(self) -> int:
        """Sequences without a lane."""
        return len(self._queue)

    @property
    def lane_free(self) -> bool:
        """Whether any lane is empty."""
        return self._lanes_free != 0

    @property
    def seated(self) -> int:
        """Lanes that are held."""
        return len(self.lanes) - self._lanes_free.bit_count()

    @property
    def decode_lanes(self) -> tuple[int, ...]:
        """Lanes of running sequences that decode, in order."""
        if self._decode_lanes is None:
            self._decode_lanes = tuple(
                [
                    lane
                    for lane, seat in enumerate(self.lanes)
                    if seat is not None and not seat.left and seat.state is State.RUNNING
                ]
            )
        return self._decode_lanes

    def queue(self, seat: Seat, state: State) -> None:
        """It wants a lane: WAITING from its first token on, or PARKED."""
        seat.state = state
        self.parked += state is State.PARKED
        insort(self._queue, (seat.rank, seat))

    def unqueue(self, seat: Seat) -> None:
        """It wants none any more."""
        self.parked -= seat.state is State.PARKED
        # Ranks are unique, so a tuple of the rank alone sorts right before the one that is meant.
        at = bisect_left(self._queue, (seat.rank,))
        assert self._queue[at][1] is seat
        del self._queue[at]

    def parked_by_rank(self) -> list[Seat]:
        """Those that are parked, best rank first."""
        return [seat for _, seat in self._queue if seat.state is State.PARKED]

    def take_lane(self, seat: Seat) -> int:
        """From the queue into the lowest empty lane, in which it may begin to run or to arrive."""
        self.unqueue(seat)
        lane = (self._lanes_free & -self._lanes_free).bit_length() - 1
        self._lanes_free ^= 1 << lane
        self.lanes[lane] = seat
        seat.lane = lane
        seat.fresh = True
        return lane

    def run(self, seat: Seat) -> None:
        """It takes part in rounds."""
        seat.state = State.RUNNING
        if seat.left:
            insort(self.prefilling, (seat.rank, seat))
        else:
            self._decode_lanes = None

    def halt(self, seat: Seat, state: State) -> None:
        """It is in no round, though it keeps its lane."""
        if seat.left:
            del self.prefilling[bisect_left(self.prefilling, (seat.rank,))]
        else:
            self._decode_lanes = None
        seat.state = state

    def prefilled(self, seat: Seat) -> None:
        """Its last chunk is done; it decodes from now on."""
        seat.left = 0
        del self.prefilling[bisect_left(self.prefilling, (seat.rank,))]
        self._decode_lanes = None

    def vacate(self, seat: Seat) -> int:
        """Its lane is empty; it was halted. Returns the lane."""
        lane, seat.lane = seat.lane, -1
        self.lanes[lane] = None
        self._lanes_free |= 1 << lane
        self.unshare(seat)
        return lane

    def unshare(self, seat: Seat) -> None:
        """Its lane holds no page of an entry any more."""
        for entry in seat.shares:
            entry.sharers -= 1
        seat.shares.clear()
