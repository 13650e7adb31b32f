"""What a simulated run is drawn from: the engine's limits, and requests that begin alike.

Limits are so small that rare paths are common: a few pages and windows, retained slots from none to
more than lanes, tiers on or off, a disk that may fail.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ignis.admission import Room
from ignis.engine.api import Mark, RequestClass
from ignis.engine.scheduler import SchedulerLimits

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run's engine is loaded for."""

    lanes_max: int
    pages_total: int
    chunk_tokens_max: int
    context_tokens_max: int
    vocab: int
    seed: int
    retained_device: int = 0
    retained_host: int = 0
    ram_windows: int = 0
    disk_windows: int = 0
    disk_fault_ppm: int = 0


def draw_shape(draw: random.Random) -> Shape:
    """Any engine that can be loaded."""
    pages_total = draw.choice([draw.randint(2, 8), draw.randint(2, 40)])
    context_pages_max = draw.choice([8, 8, 8, 24])
    ram_windows, disk_windows = draw.choice([(0, 0), (1, 0), (0, 1), (1, 1)])
    return Shape(
        lanes_max=draw.choice([1, 2, 3, draw.randint(1, 8)]),
        pages_total=pages_total,
        chunk_tokens_max=draw.choice([1, 7, 32, 64, 128]),
        context_tokens_max=draw.randint(8, min(pages_total, context_pages_max) * PAGE_TOKENS),
        vocab=draw.randint(2, 251),
        seed=draw.getrandbits(64),
        retained_device=draw.choice([0, 0, 1, 3]),
        retained_host=draw.choice([0, 1, 2, 5, 12]),
        ram_windows=ram_windows * draw.choice([1, 2, 3, 8, 30]),
        disk_windows=disk_windows * draw.choice([2, 4, 10, 60]),
        disk_fault_ppm=draw.choice([0, 0, 10_000, 100_000]),
    )


def draw_limits(draw: random.Random, shape: Shape) -> SchedulerLimits:
    """Any queue and any share of decode."""
    return SchedulerLimits(
        lanes_max=shape.lanes_max,
        pages_total=shape.pages_total,
        chunk_tokens_max=shape.chunk_tokens_max,
        queue_max=draw.randint(0, 60),
        decode_share_percent=draw.choice([0, 25, 90]),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client sends."""

    prompt: list[int]
    marks: tuple[Mark, ...]
    tokens_max: int | None
    stop_ids: frozenset[int]
    request_class: RequestClass


CLASSES: list[list[RequestClass]] = [
    ["interactive", "agent"],
    ["interactive", "agent", "agent", "agent", "agent"],
]


class Requests:
    """Draws requests: new ones, turns of earlier conversations, and some prompts several times."""

    def __init__(self, draw: random.Random, vocab: int, room: Room) -> None:
        self._draw = draw
        self._ids = range(vocab)
        self._room = room
        self._heads = [self._tokens(draw.choice([5, 64, 100, 130, 200])) for _ in range(2)]
        self._classes = draw.choice(CLASSES)
        self._told: list[list[int]] = []  # prompts with their answers
        self._again: list[Asked] = []

    def next(self) -> Asked:
        """The next request."""
        if self._again:
            return self._again.pop()
        draw = self._draw
        prompt = self._prompt()
        asked = Asked(
            prompt,
            self._marks(prompt),
            tokens_max=draw.choice([1, 2, None, draw.randint(1, 150)] + [draw.randint(1, 32)] * 6),
            stop_ids=frozenset(draw.sample(self._ids, draw.choice([0, 0, 1, 2]))),
            request_class=draw.choice(self._classes),
        )
        if draw.random() < 0.1:
            self._again = [asked] * draw.randint(1, 3)
        return asked

    def told(self, prompt: list[int], answer: list[int]) -> None:
        """An answer that a later prompt may go on from."""
        if len(self._told) < 8:
            self._told.append(prompt + answer)
        else:
            self._told[self._draw.randrange(8)] = prompt + answer

    def _prompt(self) -> list[int]:
        """The lengths of the first kind are those around a page's edge and the context's."""
        draw, context = self._draw, self._room.context_tokens_max
        kind = draw.random()
        if kind < 0.25:
            lengths = [1, 63, 64, 65, context - 1, context] + [draw.randint(1, 24)] * 20
            return self._tokens(draw.choice(lengths))
        if kind < 0.6 and self._told:
            prompt = draw.choice(self._told) + self._tokens(draw.randint(1, 20))
        else:
            prompt = draw.choice(self._heads) + self._tokens(draw.randint(1, 40))
        return prompt if len(prompt) < context else prompt[: draw.randint(1, context - 1)]

    def _marks(self, prompt: list[int]) -> tuple[Mark, ...]:
        """As the server places them; sometimes none, sometimes where none may be."""
        draw, length = self._draw, len(prompt)
        marks = []
        if length > PAGE_TOKENS and draw.random() < 0.8:
            pages = min((length - 1) // PAGE_TOKENS, draw.randint(1, 3))
            marks.append(Mark(pages * PAGE_TOKENS, "prefix"))
        if draw.random() < 0.8:
            position = max(length - draw.randint(0, 3), 0)
            if not marks or position > marks[0].position:
                marks.append(Mark(position, "checkpoint"))
        return tuple(marks)

    def _tokens(self, count: int) -> list[int]:
        return self._draw.choices(self._ids, k=count)
