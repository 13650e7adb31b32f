"""What the scheduler has done between two rounds: each value is one call of the engine.

They are carried out one at a time, in order, and the scheduler reads the engine's counts again
before it decides the next one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ignis.engine.metrics import TierName

KV_RAM, KV_DISK = 0, 1  # tiers as the core numbers them
TIERS: tuple[TierName, ...] = ("kv_ram", "disk")

# Events of the core's `advance`.
OUT_LANDED, OUT_FAILED, IN_LANDED, IN_FAILED = range(4)


class Admit(NamedTuple):
    """Seat sequence `key`; it starts from the retained slot, or from nothing if `slot` is -1."""

    key: int
    lane: int
    pages: int
    slot: int


class Adopt(NamedTuple):
    """The lane, in which nothing was computed, starts from the retained slot instead."""

    lane: int
    slot: int


class Capture(NamedTuple):
    """Keep the lane's state in the empty retained slot."""

    lane: int
    slot: int


class Release(NamedTuple):
    """Empty the lane, whose sequence waits again."""

    lane: int


class MoveIn(NamedTuple):
    """Begin to fill the empty lane for sequence `key` from an image."""

    key: int
    lane: int
    image: int
    pages: int


class MoveOut(NamedTuple):
    """Begin to move the lane's sequence to a tier. Answered by `Scheduler.out_began`."""

    lane: int
    tier: int


class Spill(NamedTuple):
    """Begin to copy a retained slot to a tier. Answered by `Scheduler.out_began`."""

    slot: int
    tier: int
    kind: int  # 1 checkpoint, 2 prefix
    class_index: int


class CopyDown(NamedTuple):
    """Begin to copy an image in KV-RAM to KV-disk. Answered by `Scheduler.out_began`."""

    image: int
    class_index: int


class AbandonOut(NamedTuple):
    """Give up the copy that is under way; what it copies stays."""


class DropSlot(NamedTuple):
    """Empty a retained slot."""

    slot: int


class DropImage(NamedTuple):
    """Free an image."""

    image: int


Action: TypeAlias = (
    Admit
    | Adopt
    | Capture
    | Release
    | MoveIn
    | MoveOut
    | Spill
    | CopyDown
    | AbandonOut
    | DropSlot
    | DropImage
)


class Note(NamedTuple):
    """What happened to one sequence between two rounds, for its reader and the log.

    `reused`: its next computed token is number `tokens` of its prompt, the rest came from `tier`.
    `evicted` and `resumed`: it moved, with `tokens` tokens, to or from `tier`, in `ms`.
    `restarted`: its image is lost, and `tokens` tokens are computed again.
    """

    key: int
    what: Literal["reused", "evicted", "resumed", "restarted"]
    tier: TierName | None
    tokens: int
    ms: float = 0.0
