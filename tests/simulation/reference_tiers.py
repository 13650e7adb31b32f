"""KV-RAM and KV-disk as a naive twin: images are lists of numbers, moved a window at a time.

Faults are drawn from a seed, for KV-disk alone: a write fails, a read fails, an image is damaged.
A disk takes its time: an operation may be found unfinished.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

TOKEN_BYTES = 4
FRAME_HEADER_BYTES = 64
RAM, DISK = 0, 1


@dataclass(slots=True)
class Image:
    """State after `tokens`: what lay in the pages, and the section."""

    tier: int
    kind: int
    klass: int
    tokens: array[int]
    windows: int
    stored: array[int] = field(default_factory=lambda: array("Q"))
    section: int = 0
    landed: bool = False
    readers: int = 0


@dataclass(slots=True)
class Move:
    """One way or the other, between an image and something that reads and writes slots."""

    image: int
    done: int = 0  # windows


@dataclass
class ReferenceTiers:
    """Windows by count, images by id, chances by seed."""

    windows_total: tuple[int, int]
    window_bytes: int
    section_bytes: int
    page_bytes: int
    page_tokens: int
    seed: int
    disk_fault_ppm: int
    images: dict[int, Image] = field(default_factory=dict)
    images_made: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.used = [0, 0]

    def windows_for(self, position: int) -> int:
        pages = -(-position // self.page_tokens)
        payload = TOKEN_BYTES * position + self.section_bytes + pages * self.page_bytes
        return -(-payload // (self.window_bytes - FRAME_HEADER_BYTES))

    def windows_free(self, tier: int) -> int:
        return self.windows_total[tier] - self.used[tier]

    def begin(self, tier: int, kind: int, klass: int, tokens: array[int]) -> int:
        """A new image, its windows taken."""
        windows = self.windows_for(len(tokens))
        if not tokens or windows > self.windows_free(tier):
            raise ValueError(f"{windows} windows are more than are free")
        self.used[tier] += windows
        self.images_made += 1
        self.images[self.images_made] = Image(tier, kind, klass, tokens, windows)
        return self.images_made

    def landed(self, image: int) -> Image:
        """A whole image."""
        found = self.images.get(image)
        if found is None or not found.landed:
            raise ValueError(f"image {image} is unknown")
        return found

    def drop(self, image: int) -> None:
        """Free what nothing reads."""
        if self.landed(image).readers:
            raise ValueError(f"image {image} is being read")
        self.forget(image)

    def forget(self, image: int) -> None:
        gone = self.images.pop(image)
        self.used[gone.tier] -= gone.windows

    def span(self, move: Move) -> tuple[int, int]:
        """Tokens of the image that the next window holds."""
        image = self.images[move.image]
        length = len(image.tokens)
        return length * move.done // image.windows, length * (move.done + 1) // image.windows

    def waits(self, tier: int) -> bool:
        """The disk is not done yet."""
        return tier == DISK and self.draw.random() < 0.3

    def fails(self, tier: int) -> bool:
        """The disk fails."""
        if tier == DISK and self.draw.randrange(1_000_000) < self.disk_fault_ppm:
            self.failures += 1
            return True
        return False
