"""Log-probabilities in the shapes of the two completion routes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ignis.engine.api import TokenOut
from ignis.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""What stands for minus infinity, which JSON cannot write."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[TokenOut]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": [_chat_entry(tokenizer, out) for out in tokens], "refusal": None}


def _chat_entry(tokenizer: Tokenizer, out: TokenOut) -> dict[str, Any]:
    entry = _described(tokenizer, out.token, out.logprob)
    entry["top_logprobs"] = [_described(tokenizer, token, value) for token, value in out.top]
    return entry


def _described(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    piece = tokenizer.id_to_bytes(token)
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": finite(logprob),
        "bytes": list(piece),
    }


class CompletionLogprobs:
    """The `logprobs` of a completion choice, whose text offsets count over the whole answer."""

    def __init__(self, tokenizer: Tokenizer, text_offset: int) -> None:
        self._tokenizer = tokenizer
        self._offset = text_offset

    def take(self, tokens: Iterable[TokenOut]) -> dict[str, Any]:
        """The entries of the next `tokens`."""
        texts, values, tops, offsets = [], [], [], []
        for out in tokens:
            text = self._text(out.token)
            texts.append(text)
            values.append(finite(out.logprob))
            tops.append({self._text(token): finite(value) for token, value in out.top})
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        """The token as text; bytes that are no whole character are spelled, as OpenAI does."""
        piece = self._tokenizer.id_to_bytes(token)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(logprob: float) -> float:
    """`logprob`, or LOWEST for what JSON cannot write."""
    return logprob if math.isfinite(logprob) else LOWEST
