"""An entry: the state after a run of tokens that is kept, and where copies of it lie."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["checkpoint", "prefix"]
Place = Literal["device", "kv_ram", "disk"]

# Fastest first. A copy is known by the place's index and an id: of a retained slot on the device,
# of an image below.
PLACES: tuple[Place, ...] = ("device", "kv_ram", "disk")
DEVICE, KV_RAM, DISK = range(3)


@dataclass(slots=True, eq=False)
class Entry:
    """State after `tokens`. It lives as long as it has a copy; equal tokens have one entry.

    `used` is a counter, larger is later; `used_us` is the same moment in microseconds.
    """

    tokens: array[int]  # "I"
    kind: Kind
    class_index: int  # of whom it was captured from: 0 interactive, 1 agent
    page_key: bytes  # hash of its whole pages, see `ignis.reuse.index`
    parent: Entry | None = None  # the checkpoint before it in the same conversation
    used: int = 0
    used_us: int = 0
    protected: bool = False  # it was restored from below before, so it is worth more than a guess
    copies: list[int] = field(default_factory=lambda: [-1, -1, -1])  # by place; -1: none there
    claims: int = 0  # sequences that are reading a copy of it
    writing: bool = False  # a copy of it is being written to a lower place
    sharers: int = 0  # seated sequences that share its pages

    @property
    def position(self) -> int:
        """Tokens that a claim of it saves."""
        return len(self.tokens)

    @property
    def alive(self) -> bool:
        """Whether any copy is left."""
        device, kv_ram, disk = self.copies
        return device >= 0 or kv_ram >= 0 or disk >= 0

    @property
    def in_use(self) -> bool:
        """Whether a copy is read at this moment, so that none may be given up."""
        return self.writing or self.claims > 0

    @property
    def fastest(self) -> int:
        """Index in PLACES of the copy to claim; -1: none."""
        return next((place for place, copy in enumerate(self.copies) if copy >= 0), -1)

    def is_below(self, place: int) -> bool:
        """Whether a place slower than `place` holds a copy too."""
        return any(copy >= 0 for copy in self.copies[place + 1 :])
