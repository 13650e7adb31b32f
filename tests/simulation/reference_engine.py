"""The engine as a naive twin in Python: the same calls, pages and witness model as the core's.

Images are moved a window at a time, as pages and sections may change meanwhile where they should
not. Contracts are checked, not trusted.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

from ignis.engine.api import SamplingParams
from ignis.engine.native import Core
from tests.simulation.reference_lanes import Lane, ReferenceLanes, ReferenceOut
from tests.simulation.reference_tiers import DISK, RAM, Move, ReferenceTiers

OUT_LANDED, OUT_FAILED, IN_LANDED, IN_FAILED = range(4)


@dataclass
class ReferenceEngine(ReferenceLanes):
    """At most one move each way; faults are drawn from the engine's seed."""

    ram_windows: int = 0
    disk_windows: int = 0
    disk_fault_ppm: int = 0
    window_bytes: int = 4096
    found: list[tuple[int, int, int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tiers = ReferenceTiers(
            (self.ram_windows, self.disk_windows),
            self.window_bytes,
            section_bytes=8,
            page_bytes=self.page_tokens * 4,
            page_tokens=self.page_tokens,
            seed=self.seed,
            disk_fault_ppm=self.disk_fault_ppm,
        )
        self._out: tuple[Move, str, int, str] | None = None  # source, its number, state before
        self._in: tuple[Move, int] | None = None  # the lane

    def drop_slot(self, slot: int) -> None:
        assert self._out is None or self._out[1:3] != ("slot", slot), "it is being copied"
        super().drop_slot(slot)

    def release(self, lane: int) -> None:
        if self.lanes[lane].state == "arriving":
            self._abandon_in()
            return
        if self.lanes[lane].state == "leaving":
            self.abandon_out()
        super().release(lane)

    def windows_for(self, position: int) -> int:
        return self.tiers.windows_for(position)

    def windows_free(self, tier: int) -> int:
        return self.tiers.windows_free(tier)

    def windows_total(self, tier: int) -> int:
        return self.tiers.windows_total[tier]

    def move_out(self, lane: int, tier: int) -> int:
        self._at_rest(lane)
        seat = self.lanes[lane]
        assert seat.state in {"prefill", "decode"}
        image = self._begin(tier, 0, 0, seat.tokens[: seat.stored])
        self._out = Move(image), "lane", lane, seat.state
        seat.state = "leaving"
        return image

    def spill(self, slot: int, tier: int, kind: int, klass: int) -> int:
        image = self._begin(tier, kind, klass, self.kept[slot].tokens)
        self._out = Move(image), "slot", slot, ""
        return image

    def copy_image(self, image: int, klass: int) -> int:
        source = self.tiers.landed(image)
        assert source.tier == RAM, "an image is copied from KV-RAM"
        copy = self._begin(DISK, source.kind, klass, source.tokens)
        source.readers += 1
        self._out = Move(copy), "image", image, ""
        return copy

    def _begin(self, tier: int, kind: int, klass: int, tokens: array[int]) -> int:
        if self._out is not None:
            raise ValueError("a move out is under way")
        return self.tiers.begin(tier, kind, klass, tokens)

    def move_in(
        self,
        image: int,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: SamplingParams,
        prompt_tokens: int | None = None,
    ) -> None:
        if self._in is not None:
            raise ValueError("a move in is under way")
        self._check(lane, tokens, pages)
        source = self.tiers.landed(image)
        stored = len(source.tokens)
        if stored >= len(tokens) or source.tokens != tokens[:stored]:
            raise ValueError("the image is of other tokens")
        table = self._take(pages)
        seat = Lane(tokens[:], prompt_tokens or len(tokens), table, sampling, 0, state="arriving")
        self.lanes[lane] = seat
        source.readers += 1
        self._in = Move(image), lane

    def moving(self) -> tuple[bool, bool]:
        return self._out is not None, self._in is not None

    def advance(self, wait_us: int) -> list[tuple[int, int, bool, str]]:
        return [event for event in (self._step_out(), self._step_in()) if event is not None]

    def _step_out(self) -> tuple[int, int, bool, str] | None:
        if self._out is None:
            return None
        move, kind, source, _ = self._out
        image = self.tiers.images[move.image]
        if self.tiers.waits(image.tier):
            return None
        if self.tiers.fails(image.tier):
            self.abandon_out()
            return OUT_FAILED, move.image, False, "the disk is full"
        begin, end = self.tiers.span(move)
        if kind == "image":
            image.stored += self.tiers.images[source].stored[begin:end]
        else:
            table = self.lanes[source].table if kind == "lane" else self.kept[source].table
            places = (self._place(table, at) for at in range(begin, end))
            image.stored.extend(self._slots[place] for place in places)
        move.done += 1
        if move.done < image.windows:
            return None
        self._out = None
        if kind == "lane":
            gone = self.lanes.pop(source)
            image.section = gone.section
            self._give(gone.table)
        elif kind == "slot":
            image.section = self.kept[source].section
        else:
            image.section = self.tiers.images[source].section
            self.tiers.images[source].readers -= 1
        image.landed = True
        return OUT_LANDED, move.image, True, ""

    def _step_in(self) -> tuple[int, int, bool, str] | None:
        if self._in is None:
            return None
        move, lane = self._in
        image, seat = self.tiers.images[move.image], self.lanes[lane]
        if self.tiers.waits(image.tier):
            return None
        begin, end = self.tiers.span(move)
        for at in range(begin, end):
            self._slots[self._place(seat.table, at)] = image.stored[at]
        if self.tiers.fails(image.tier):
            self._abandon_in()
            damaged = self.tiers.draw.random() < 0.5
            if damaged:
                self.tiers.forget(move.image)
            return IN_FAILED, move.image, not damaged, "a window is damaged"
        move.done += 1
        if move.done < image.windows:
            return None
        self._in = None
        image.readers -= 1
        seat.section = image.section
        seat.stand_at(len(image.tokens))
        return IN_LANDED, move.image, True, ""

    def abandon_out(self) -> None:
        assert self._out is not None
        move, kind, source, state = self._out
        self._out = None
        if kind == "lane":
            self.lanes[source].state = state
        elif kind == "image":
            self.tiers.images[source].readers -= 1
        self.tiers.forget(move.image)

    def _abandon_in(self) -> None:
        assert self._in is not None
        move, lane = self._in
        self._in = None
        self.tiers.images[move.image].readers -= 1
        self._give(self.lanes.pop(lane).table)

    def drop_image(self, image: int) -> None:
        self.tiers.drop(image)

    def found_images(self) -> list[tuple[int, int, int, list[int]]]:
        return self.found


def restarted(engine: ReferenceEngine) -> ReferenceEngine:
    """What the next process loads: of all that was, the retained images on KV-disk."""
    fresh = ReferenceEngine(
        engine.lanes_max,
        engine.pages_total,
        engine.chunk_tokens_max,
        engine.vocab,
        engine.seed,
        retained_slots=engine.retained_slots,
        ram_windows=engine.ram_windows,
        disk_windows=engine.disk_windows,
    )
    for number, image in engine.tiers.images.items():
        if image.tier == DISK and image.landed and image.kind:
            fresh.tiers.images[number] = image
            fresh.tiers.used[DISK] += image.windows
            fresh.found.append((number, image.kind, image.klass, image.tokens.tolist()))
    fresh.tiers.images_made = engine.tiers.images_made
    return fresh


def prefix_chain(tokens: array[int], seed: bytes) -> bytes:
    """16 bytes for each whole page, each a hash of all tokens to its end."""
    assert len(seed) == 16
    chain, state = [], seed
    for page in range(len(tokens) // 64):
        content = tokens[64 * page : 64 * (page + 1)].tobytes()
        state = hashlib.blake2b(state + content, digest_size=16).digest()
        chain.append(state)
    return b"".join(chain)


def reference_core(engine: ReferenceEngine) -> Core[SamplingParams, ReferenceOut]:
    """The twin, as the engine package takes it."""
    return Core(engine, ReferenceOut(engine.lanes_max), lambda params: params, prefix_chain)
