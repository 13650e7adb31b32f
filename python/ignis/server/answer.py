"""One sequence's tokens to the text its client reads.

Holds back what may still become a stop string or the rest of a character, drops the token that
ended the answer, and keeps each token's log-probability until its text is sent. Streamed or not,
an answer goes through here, so both are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ignis.engine.api import TokenBatch, TokenOut
from ignis.errors import EngineError
from ignis.text.detokenizer import Detokenizer
from ignis.text.stops import StopMatcher
from ignis.text.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that may be sent now, the tokens whose text begins in it, and how the answer ended."""

    text: str
    tokens: tuple[TokenOut, ...]
    finish: Finish | None = None


class AnswerCut(EngineError):
    """The engine ended the answer before it was done."""


class AnswerText:
    """The text of one answer. `completion_tokens` counts every token that it took, the one that
    ended it included."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        after: int | None,
        stops: Sequence[str],
        stop_ids: frozenset[int],
    ) -> None:
        """`after` is the prompt's last token."""
        self.completion_tokens = 0
        self.finish: Finish | None = None
        self._detokenizer = Detokenizer(tokenizer, after=after)
        self._matcher = StopMatcher(stops)
        self._stop_ids = stop_ids
        self._pushed = 0
        self._sent = 0
        self._waiting: deque[tuple[int, TokenOut]] = deque()

    def push(self, batch: TokenBatch) -> Delta:
        """What `batch` adds. Precondition: the answer has not ended.

        Raises AnswerCut if the engine gave up.
        """
        assert self.finish is None, "an answer that ended takes no more tokens"
        parts: list[str] = []
        for out in batch.tokens:
            self.completion_tokens += 1
            if out.token in self._stop_ids:
                break
            if self._take(self._detokenizer.push(out.token), parts, out):
                return self._delta(parts, "stop")
        match batch.finish_reason:
            case None:
                return self._delta(parts, None)
            case "stop" | "length" as reason:
                return self._end(parts, reason)
            case "cancelled":
                raise AnswerCut(batch.error or "the server stopped before the answer was done")
            case "error":
                raise AnswerCut(batch.error or "the engine failed")

    def _take(self, piece: str, parts: list[str], out: TokenOut | None) -> bool:
        """Take one piece of text; whether a stop string ended the answer."""
        if out is not None:
            self._waiting.append((self._pushed, out))
        self._pushed += len(piece)
        text, stop = self._matcher.push(piece)
        parts.append(text)
        return stop is not None

    def _end(self, parts: list[str], reason: Finish) -> Delta:
        if self._take(self._detokenizer.finish(), parts, None):
            return self._delta(parts, "stop")
        rest, stop = self._matcher.finish()
        parts.append(rest)
        if stop is not None:
            return self._delta(parts, "stop")
        return self._delta(parts, reason, all_tokens=True)

    def _delta(self, parts: list[str], finish: Finish | None, *, all_tokens: bool = False) -> Delta:
        text = "".join(parts)
        self._sent += len(text)
        tokens: list[TokenOut] = []
        while self._waiting and (all_tokens or self._waiting[0][0] < self._sent):
            tokens.append(self._waiting.popleft()[1])
        self.finish = finish
        return Delta(text, tuple(tokens), finish)
