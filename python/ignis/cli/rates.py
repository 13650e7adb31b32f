"""Prefill and decode rates of a loaded engine: scenarios, defined to the token, and their clock.

A scenario seats `lanes` sequences of seeded random tokens and times one of two phases:

- prefill: from the first chunk to the end of the round that samples the first token. The rate is
  prompt tokens a second. One lane.
- decode: `decode_tokens` rounds after a prefill of `depth` tokens that is not timed (one token when
  the depth is 0, since a sequence cannot be empty). The rate is tokens of all lanes a second.

Sampling is greedy. A round over all lanes is one native call, as in serving. Leaves out: text, HTTP
and the scheduler.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ignis._native import Engine, RoundOut, Sampling

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table."""

    name: str
    phase: Phase
    why: str
    depth: int  # prompt tokens of each lane
    decode_tokens: int = 0
    lanes: int = 1

    def pages(self, page_tokens: int) -> int:
        """Pages of one lane: the prompt, and what decode appends."""
        return -(-(max(1, self.depth) + self.decode_tokens + 1) // page_tokens)


def prefill(tokens: int, why: str) -> Scenario:
    """Prefill of one prompt of `tokens`."""
    return Scenario(f"pp{tokens}", "prefill", why, tokens)


def decode(tokens: int, depth: int, why: str, lanes: int = 1) -> Scenario:
    """`tokens` decode rounds of `lanes` sequences that stand at `depth`."""
    suffix = f" @ d{depth}" if depth else ""
    name = f"tg{tokens}{suffix}" + (f" x{lanes}" if lanes > 1 else "")
    return Scenario(name, "decode", why, depth, tokens, lanes)


SCENARIOS = (
    prefill(128, "a short question: one small product a weight"),
    prefill(512, "the usual point of comparison"),
    prefill(2048, "a pasted document: attention begins to count"),
    decode(64, 0, "the memory's speed over the weights' size"),
    decode(64, 512, "a conversation under way"),
    decode(64, 2048, "reading keys and values costs as much as reading weights"),
    decode(64, 0, "eight clients share each read of the weights", lanes=8),
)

SMALL = (
    prefill(96, "one whole page and a part"),
    decode(4, 0, "an empty context"),
    decode(4, 70, "a page edge behind it"),
    decode(4, 0, "three lanes in one round", lanes=3),
)


@dataclass(slots=True)
class Rate:
    """Repetitions of one scenario, in tokens a second."""

    scenario: Scenario
    samples: list[float] = field(default_factory=list)

    def mean(self) -> float:
        """Mean of the repetitions."""
        return statistics.fmean(self.samples)

    def deviation(self) -> float:
        """Their standard deviation; 0 for one repetition."""
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0


class Bench:
    """Runs scenarios on one engine, whose lanes must all be empty."""

    def __init__(
        self,
        engine: Engine,
        chunk_tokens: int,
        seed: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._chunk_tokens = chunk_tokens
        self._out = RoundOut(engine.lanes_max)
        self._lanes = array("I", range(engine.lanes_max))
        self._no_lanes = array("I", [0] * engine.lanes_max)
        self._greedy = Sampling(temperature=0.0)
        self._random = random.Random(seed)
        self._clock = clock

    def run(self, scenarios: tuple[Scenario, ...], repetitions: int) -> Iterator[Rate]:
        """Each scenario once without a clock, then `repetitions` times with it."""
        for scenario in scenarios:
            self.once(scenario)
            rate = Rate(scenario)
            for _ in range(repetitions):
                rate.samples.append(self.once(scenario))
            yield rate

    def once(self, scenario: Scenario) -> float:
        """One repetition; tokens a second."""
        for lane in range(scenario.lanes):
            self._seat(lane, scenario)
        try:
            if scenario.phase == "prefill":
                return scenario.depth / self._timed(lambda: self._prefill(0, scenario.depth))
            for lane in range(scenario.lanes):
                self._prefill(lane, max(1, scenario.depth))
            seconds = self._timed(lambda: self._decode(scenario.lanes, scenario.decode_tokens))
            return scenario.lanes * scenario.decode_tokens / seconds
        finally:
            for lane in range(scenario.lanes):
                self._engine.release(lane)

    def _seat(self, lane: int, scenario: Scenario) -> None:
        vocab = self._engine.vocab
        prompt = array("I", (self._random.randrange(vocab) for _ in range(max(1, scenario.depth))))
        pages = scenario.pages(self._engine.page_tokens)
        self._engine.admit(lane, prompt, pages, self._greedy)

    def _prefill(self, lane: int, tokens: int) -> None:
        for start in range(0, tokens, self._chunk_tokens):
            count = min(self._chunk_tokens, tokens - start)
            self._engine.round(lane, count, self._no_lanes, 0, self._out)

    def _decode(self, lanes: int, rounds: int) -> None:
        for _ in range(rounds):
            self._engine.round(-1, 0, self._lanes, lanes, self._out)

    def _timed(self, work: Callable[[], None]) -> float:
        start = self._clock()
        work()
        return self._clock() - start
