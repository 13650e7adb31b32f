"""Perplexity of a text by four procedures, so that a figure can be compared with anyone's.

Each procedure is a list of windows over the text's tokens (no BOS is added); a window is one
prompt, and a token is scored by its log-probability given the tokens before it in the window.

| procedure | windows | scored in each |
| --- | --- | --- |
| chunks of 512 | whole chunks, no overlap | token 257 (counted from 0) to the last |
| chunks of 2048 | whole chunks, no overlap | token 1025 to the last |
| windows of 1024, stride 512 | overlapping, the last one cut short | each token of the text once |
| one context of 8192 | the first 8,192 tokens | from the second token |
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ignis._native import Engine, Sampling


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `start..end` of the text as one prompt, of which `first..end` are scored."""

    start: int
    end: int
    first: int

    def scored(self) -> int:
        """Tokens that count."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Procedure:
    """A named way to cut a text; `windows` maps a token count to the windows."""

    name: str
    windows: Callable[[int], list[Window]]


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one procedure."""

    procedure: str
    tokens_scored: int
    perplexity: float


def chunks(size: int) -> Procedure:
    """Whole chunks of `size` tokens; the second half of each is scored, less its first token."""

    def windows(tokens: int) -> list[Window]:
        starts = range(0, tokens - size + 1, size)
        return [Window(start, start + size, start + size // 2 + 1) for start in starts]

    return Procedure(f"chunks of {size}", windows)


def sliding(size: int, stride: int) -> Procedure:
    """Overlapping windows; each token but the text's first is scored once, early."""

    def windows(tokens: int) -> list[Window]:
        cut: list[Window] = []
        done = 1
        for start in range(0, tokens, stride):
            end = min(start + size, tokens)
            if end > done:
                cut.append(Window(start, end, done))
            done = end
            if end == tokens:
                break
        return cut

    return Procedure(f"windows of {size}, stride {stride}", windows)


def whole(size: int) -> Procedure:
    """One prompt of the text's first `size` tokens, scored from the second."""

    def windows(tokens: int) -> list[Window]:
        return [Window(0, min(size, tokens), 1)] if tokens > 1 else []

    return Procedure(f"one context of {size}", windows)


PROCEDURES = (chunks(512), chunks(2048), sliding(1024, 512), whole(8192))
LONGEST = 8192


def score(
    engine: Engine, procedure: Procedure, tokens: Sequence[int], chunk_tokens: int
) -> Score | None:
    """Perplexity of `tokens`; None where the text is too short for one window. Uses lane 0."""
    total, scored = 0.0, 0
    for window in procedure.windows(len(tokens)):
        logprobs = _window_logprobs(engine, tokens[window.start : window.end], chunk_tokens)
        # Entry i belongs to token i + 1: the first token of a window has no prediction.
        used = logprobs[window.first - window.start - 1 :]
        total += math.fsum(used)
        scored += len(used)
    if scored == 0:
        return None
    return Score(procedure.name, scored, math.exp(-total / scored))


def _window_logprobs(engine: Engine, prompt: Sequence[int], chunk_tokens: int) -> list[float]:
    pages = -(-(len(prompt) + 1) // engine.page_tokens)
    engine.admit(0, array("I", prompt), pages, Sampling(temperature=0.0))
    found: list[float] = []
    out = array("f", [0.0] * chunk_tokens)
    try:
        for start in range(0, len(prompt), chunk_tokens):
            count = min(chunk_tokens, len(prompt) - start)
            found.extend(out[: engine.score(0, count, out)])
    finally:
        engine.release(0)
    return found
