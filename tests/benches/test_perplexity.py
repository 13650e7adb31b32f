"""The four procedures score exactly the tokens that the reference figures scored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ignis.cli import perplexity
from ignis.cli.perplexity import PROCEDURES, Procedure, Window

REFERENCE = json.loads(
    (Path(__file__).parents[2] / "benches/data/ppl.json").read_text(encoding="utf-8")
)
TEXT_TOKENS = 9_107


@pytest.mark.parametrize(
    ("procedure", "expected"),
    [
        (procedure, row["tokens_scored"])
        for procedure, row in zip(PROCEDURES, REFERENCE["procedures"], strict=True)
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_as_many_tokens_are_scored_as_in_the_reference(procedure: Procedure, expected: int) -> None:
    windows = procedure.windows(TEXT_TOKENS)
    assert sum(window.scored() for window in windows) == expected


def test_procedures_are_those_of_the_reference() -> None:
    assert [p.name for p in PROCEDURES] == [r["procedure"] for r in REFERENCE["procedures"]]


@pytest.mark.parametrize("tokens", [1, 2, 255, 511, 512, 513, 1023, 1024, 1025, 1537, 9107])
def test_sliding_windows_score_each_token_but_the_first_once(tokens: int) -> None:
    windows = perplexity.sliding(1024, 512).windows(tokens)
    scored = [at for window in windows for at in range(window.first, window.end)]
    assert scored == list(range(1, tokens))
    assert all(window.start < window.first < window.end for window in windows)


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda p: p.name)
def test_an_empty_text_has_no_window(procedure: Procedure) -> None:
    assert procedure.windows(0) == []
    assert procedure.windows(1) == []


class UniformEngine:
    """Gives each next token probability 1/8, or a half where the window's offset is marked."""

    page_tokens = 64

    def __init__(self) -> None:
        self.prompt: list[int] = []
        self.done = 0
        self.admitted_pages: list[int] = []

    def admit(self, lane: int, prompt: object, pages: int, sampling: object) -> None:
        assert not self.prompt
        self.prompt = list(prompt)  # type: ignore[call-overload]
        self.done = 0
        self.admitted_pages.append(pages)

    def score(self, lane: int, tokens: int, logprobs: object) -> int:
        written = 0
        for at in range(self.done, self.done + tokens):
            if at + 1 < len(self.prompt):
                nxt = self.prompt[at + 1]
                logprobs[written] = math.log(0.5 if nxt == 7 else 0.125)  # type: ignore[index]
                written += 1
        self.done += tokens
        return written

    def release(self, lane: int) -> None:
        self.prompt = []


@pytest.mark.parametrize("chunk", [1, 3, 64, 512])
def test_only_the_scored_tokens_count_whatever_the_chunk(chunk: int) -> None:
    """Eight tokens, of which 5 to 7 are scored; the marked ones before them must not count."""
    procedure = Procedure("test", lambda _: [Window(0, 8, 5)])
    engine = UniformEngine()
    found = perplexity.score(engine, procedure, [7, 7, 7, 7, 7, 1, 7, 1], chunk)  # type: ignore[arg-type]
    assert found is not None
    assert found.tokens_scored == 3
    assert found.perplexity == pytest.approx((8 * 2 * 8) ** (1 / 3))
    assert engine.admitted_pages == [1]


def test_a_text_too_short_for_a_window_has_no_figure() -> None:
    assert perplexity.score(UniformEngine(), PROCEDURES[0], [1] * 100, 64) is None  # type: ignore[arg-type]
