"""The JSON of the two completion routes, streamed and whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ignis.engine.api import TokenOut
from ignis.server.logprobs import CompletionLogprobs, chat_logprobs
from ignis.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Whole:
    """One answer sent at once."""

    text: str
    tokens: list[TokenOut]
    finish: str


class Shape(Protocol):
    """How one route writes its answers."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of answer `index`, None if the route has none."""

    def text(self, index: int, text: str, tokens: Sequence[TokenOut]) -> dict[str, Any]:
        """A chunk of text."""
        ...

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        """The chunk that ends answer `index`."""
        ...

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk of token counts, which has no choices."""
        ...

    def whole(self, answers: Sequence[Whole], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...


@dataclass(slots=True)
class _Frame:
    """What every body and chunk of one request begins with."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatShape:
    """`/v1/chat/completions`."""

    def __init__(
        self, request_id: str, model: str, tokenizer: Tokenizer, *, logprobs: bool, usage: bool
    ) -> None:
        """`usage`: chunks carry `usage: null`, as a chunk of counts will follow."""
        self._frame = _Frame(request_id, model)
        self._tokenizer = tokenizer
        self._with_logprobs = logprobs
        self._with_usage = usage

    def opening(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def text(self, index: int, text: str, tokens: Sequence[TokenOut]) -> dict[str, Any]:
        return self._chunk(index, {"content": text}, self._logprobs(tokens))

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        return self._chunk(index, {}, finish=reason)

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._frame.of("chat.completion.chunk", []) | {"usage": usage}

    def whole(self, answers: Sequence[Whole], usage: dict[str, Any]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.tokens),
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        return self._frame.of("chat.completion", choices) | {"usage": usage}

    def _logprobs(self, tokens: Sequence[TokenOut]) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, tokens) if self._with_logprobs else None

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._frame.of("chat.completion.chunk", [choice])
        return chunk | {"usage": None} if self._with_usage else chunk


class CompletionShape:
    """`/v1/completions`. `echoes` holds the text to repeat before each answer, often empty."""

    def __init__(
        self,
        request_id: str,
        model: str,
        tokenizer: Tokenizer,
        echoes: Sequence[str],
        *,
        logprobs: bool,
        usage: bool,
    ) -> None:
        self._frame = _Frame(request_id, model)
        self._echoes = echoes
        self._logprobs = [
            CompletionLogprobs(tokenizer, len(echo)) if logprobs else None for echo in echoes
        ]
        self._with_usage = usage

    def opening(self, index: int) -> dict[str, Any] | None:
        echo = self._echoes[index]
        return self._chunk(self._choice(index, echo, (), None)) if echo else None

    def text(self, index: int, text: str, tokens: Sequence[TokenOut]) -> dict[str, Any]:
        return self._chunk(self._choice(index, text, tokens, None))

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        return self._chunk(self._choice(index, "", (), reason))

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._frame.of("text_completion", []) | {"usage": usage}

    def whole(self, answers: Sequence[Whole], usage: dict[str, Any]) -> dict[str, Any]:
        choices = [
            self._choice(index, self._echoes[index] + answer.text, answer.tokens, answer.finish)
            for index, answer in enumerate(answers)
        ]
        return self._frame.of("text_completion", choices) | {"usage": usage}

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenOut], finish: str | None
    ) -> dict[str, Any]:
        entries = self._logprobs[index]
        return {
            "index": index,
            "text": text,
            "logprobs": entries.take(tokens) if entries is not None and tokens else None,
            "finish_reason": finish,
        }

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._frame.of("text_completion", [choice])
        return chunk | {"usage": None} if self._with_usage else chunk
