"""Prompts: token ids, and the places in them whose state is worth keeping.

A completion's `prompt` is text, token ids, or a list of either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from ignis.engine.api import Mark
from ignis.errors import RequestError
from ignis.server.field_tables import PROMPTS_MAX
from ignis.server.values import wrong_type
from ignis.text import PromptMark, Tokenizer, marks_of_text


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and their marks, ascending."""

    ids: tuple[int, ...]
    marks: tuple[Mark, ...] = ()

    @classmethod
    def marked(cls, ids: Iterable[int], marks: Iterable[PromptMark]) -> Self:
        """A prompt with the marks that its text gave."""
        return cls(tuple(ids), tuple(Mark(mark.position, mark.kind) for mark in marks))

    def prefixes_alone(self) -> Self:
        """The same prompt without its checkpoints."""
        return replace(self, marks=tuple(mark for mark in self.marks if mark.kind == "prefix"))

    def shared(self) -> Self:
        """The same prompt for several answers: all but its last token is computed once."""
        last = len(self.ids) - 1
        if last < 1 or any(mark.position == last for mark in self.marks):
            return self
        return replace(self, marks=(*self.marks, Mark(last, "checkpoint")))


def prompts_of(value: object, tokenizer: Tokenizer) -> list[Prompt]:
    """Each prompt in `value`, none of them empty.

    Raises RequestError naming the prompt that is empty, mixed or outside the vocabulary.
    """
    prompts = _ids_of(value, tokenizer)
    return [Prompt.marked(ids, marks_of_text(len(ids))) for ids in prompts]


def _ids_of(value: object, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    if isinstance(value, str):
        return [_encoded(value, "prompt", tokenizer)]
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or a list", value)
    if not value:
        raise RequestError("prompt must not be empty", "prompt")
    if isinstance(value[0], int):
        return [_checked(value, "prompt", tokenizer)]
    if len(value) > PROMPTS_MAX:
        raise RequestError(
            f"prompt may hold at most {PROMPTS_MAX} prompts, got {len(value)}", "prompt"
        )
    first = type(value[0])
    return [_one(entry, first, f"prompt[{index}]", tokenizer) for index, entry in enumerate(value)]


def _one(entry: object, expected: type[Any], param: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if isinstance(entry, expected) and isinstance(entry, str):
        return _encoded(entry, param, tokenizer)
    if isinstance(entry, expected) and isinstance(entry, list):
        return _checked(entry, param, tokenizer)
    alike = {"str": "a string like the first", "list": "a list of token ids like the first"}
    raise wrong_type(param, alike.get(expected.__name__, "a string or token ids"), entry)


def _encoded(text: str, param: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not text:
        raise RequestError(f"{param} must not be empty", param)
    return tuple(tokenizer.encode_prompt(text))


def _checked(ids: list[object], param: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not ids:
        raise RequestError(f"{param} must not be empty", param)
    vocab_size = tokenizer.vocab_size
    if set(map(type, ids)) == {int}:  # the usual case, without a step for each id
        numbers = cast("list[int]", ids)
        if min(numbers) >= 0 and max(numbers) < vocab_size:
            return tuple(numbers)
    for index, token in enumerate(ids):
        where = f"{param}[{index}]"
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type(where, "a token id", token)
        if not 0 <= token < vocab_size:
            raise RequestError(f"{where} is {token}; the vocabulary has {vocab_size} tokens", where)
    raise AssertionError("one of the ids is wrong")


def text_size(value: object) -> int:
    """Characters of all texts in `value`, whatever its shape."""
    if isinstance(value, str):
        return len(value)
    entries = value if isinstance(value, list) else []
    return sum(len(entry) for entry in entries if isinstance(entry, str))
