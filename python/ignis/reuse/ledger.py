"""The ledger: what is retained, in which slots and images, and which of it is given up first.

It decides and remembers; the copies themselves are dropped by whoever takes them from
`slots_dropped` and `images_dropped`. What it guarantees, each of which a test holds it to:

- Equal tokens have one entry, and an entry lives exactly as long as it has a copy.
- A slot or an image belongs to one entry, and is to be dropped once, when that gives it up.
- What is read at this moment (a claim or a copy under way) is never given up.
- A conversation keeps at most its two latest checkpoints, and an older one only while it is read.
- The number of entries is at most that of slots and images, so its size is bounded.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable

from ignis.reuse.entry import DEVICE, DISK, KV_RAM, Entry, Kind
from ignis.reuse.index import Index
from ignis.reuse.order import disk_order, kv_ram_order, slot_order

# By place: an image is claimed if at least one in so many of its tokens is saved by that. Copying
# from memory is some hundred times as fast as computing, reading a disk some ten times.
WORTH = (1, 32, 8)


class Ledger:
    """Entries by content and by place. `chain` hashes whole pages, see `ignis.reuse.index`."""

    def __init__(
        self,
        slots: int,
        page_tokens: int,
        chain: Callable[[array[int]], bytes],
        interactive_ttl_us: int,
        *,
        saves: bool = False,
    ) -> None:
        """`saves` says that each entry is to get a copy on KV-disk; see `unsaved`."""
        self.index = Index(page_tokens, chain)
        self.slots_total = slots
        self.version = 0  # changes when a match may give something else than before
        self.slots_dropped: deque[int] = deque()  # given up, and still held by the engine
        self.images_dropped: deque[int] = deque()
        self.unsaved: dict[Entry, None] = {}  # to be considered for a copy on KV-disk, oldest first
        self._saves = saves
        self._ttl_us = interactive_ttl_us
        self._slots_free = (1 << slots) - 1  # one bit a slot; device slots are the lowest
        self._held: tuple[dict[int, Entry], ...] = ({}, {}, {})  # by place, then slot or image
        self._uses = 0

    # --- what is there ----------------------------------------------------------------------------

    @property
    def slots_used(self) -> int:
        """Slots that hold an entry."""
        return len(self._held[DEVICE])

    @property
    def slot_free(self) -> bool:
        """Whether a capture needs to give nothing up."""
        return self._slots_free != 0

    def entries(self, place: int) -> Iterable[Entry]:
        """Entries with a copy in that place."""
        return self._held[place].values()

    def find(
        self, tokens: array[int], position_max: int, chain: bytes, *, on_device: bool = False
    ) -> Entry | None:
        """What a sequence of `tokens` starts from: at most `position_max` of them, the more the
        better. With `on_device`, only what has a slot.

        An image is worth its copy only if it saves a fair share of what is copied beside what a
        faster place has.
        """
        best: Entry | None = None
        for entry in self.index.matches(tokens, position_max, chain):
            place = entry.fastest
            if on_device and place != DEVICE:
                continue
            if best is None or (
                place < best.fastest
                and (best.position - entry.position) * WORTH[best.fastest] < best.position
            ):
                best = entry
            if best.fastest == DEVICE:
                break
        return best

    def touch(self, entry: Entry, now_us: int) -> None:
        """It was of use now."""
        self._uses += 1
        entry.used, entry.used_us = self._uses, now_us
        if self._saves and entry.alive and entry.copies[DISK] < 0:
            self.unsaved[entry] = None

    # --- copies come ------------------------------------------------------------------------------

    def enter(
        self,
        tokens: array[int],
        kind: Kind,
        class_index: int,
        page_key: bytes,
        now_us: int,
        parent: Entry | None = None,
    ) -> Entry:
        """An entry without a copy yet; the caller gives it one at once with `hold`."""
        entry = Entry(tokens, kind, class_index, page_key)
        if parent is not None and parent.alive:
            entry.parent = parent
        self._uses += 1
        entry.used, entry.used_us = self._uses, now_us
        return entry

    def hold(self, entry: Entry, place: int, copy: int) -> None:
        """A copy is there."""
        assert entry.copies[place] < 0, "one copy a place"
        assert copy not in self._held[place], "a copy belongs to one entry"
        if not entry.alive:
            self.index.add(entry)
        entry.copies[place] = copy
        self._held[place][copy] = entry
        if place == DEVICE:
            self._slots_free &= ~(1 << copy)
        self.version += 1
        if entry.copies[DISK] >= 0:
            self.unsaved.pop(entry, None)
        elif self._saves:
            self.unsaved[entry] = None

    def free_slot(self) -> int:
        """The slot that the next capture takes; -1: none is free."""
        free = self._slots_free
        return (free & -free).bit_length() - 1

    # --- copies go --------------------------------------------------------------------------------

    def lose(self, entry: Entry, place: int, *, dropped: bool = False) -> bool:
        """Give up the copy there; True if it was the last, and the entry went with it.

        `dropped` says that the copy is gone already, as a damaged one is.
        """
        copy = entry.copies[place]
        del self._held[place][copy]
        entry.copies[place] = -1
        if place == DEVICE:
            self._slots_free |= 1 << copy
        if not dropped:
            (self.slots_dropped if place == DEVICE else self.images_dropped).append(copy)
        self.version += 1
        if entry.alive:
            # What gave way on KV-disk is copied there again only after it was of use.
            return False
        self.index.remove(entry)
        self.unsaved.pop(entry, None)
        entry.parent = None
        return True

    def remove(self, entry: Entry) -> None:
        """Give up every copy."""
        for place, copy in enumerate(entry.copies):
            if copy >= 0:
                self.lose(entry, place)

    def worst_slot(self, keep: Entry | None = None, *, sharers_last: bool = False) -> Entry | None:
        """Whose slot is given up first; None: all are in use.

        With `sharers_last`, those whose pages a seated sequence holds too come last: giving them up
        frees hardly a page.
        """
        return min(
            (one for one in self._held[DEVICE].values() if one is not keep and not one.in_use),
            key=lambda one: (sharers_last and one.sharers > 0, slot_order(one)),
            default=None,
        )

    def discards(self, place: int, now_us: int, below: Entry | None = None) -> list[Entry]:
        """Whose image in that place is given up, in order; with `below`, only what goes before it.

        An entry displaces nothing that is worth as much as itself.
        """
        idle_since_us = now_us - self._ttl_us

        def order(entry: Entry) -> tuple[bool, bool, int]:
            if place == KV_RAM:
                return kv_ram_order(entry, idle_since_us)
            return False, False, disk_order(entry)

        found = [one for one in self._held[place].values() if not one.in_use]
        if below is not None:
            worth = order(below)
            found = [one for one in found if order(one) < worth]
        return sorted(found, key=order)

    def next_unsaved(self) -> Entry | None:
        """The entry to copy to KV-disk next: prefixes first, then in order of capture."""
        first: Entry | None = None
        for entry in self.unsaved:
            if entry.in_use:
                continue
            if entry.kind == "prefix":
                return entry
            first = first or entry
        return first

    def supersede(self, parent: Entry) -> None:
        """`parent` is about to get a child: what was before it in the conversation goes."""
        oldest, parent.parent = parent.parent, None
        if oldest is not None and oldest.alive and not oldest.in_use:
            self.remove(oldest)
