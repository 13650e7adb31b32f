"""Hides what must not become a token while a template runs.

Text of a client that spells a control token (`<|im_end|>`) goes through the template as one
private-use character that occurs nowhere else in the request, and is put back afterwards. So every
control token found in the template's output was written by the template. One character survives
trimming, case changes, slicing and JSON; a template that looks for such a token inside client text
does not find it, which is the point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar, cast

from ignis.errors import RequestError
from ignis.text.segments import AddedMatcher, Segment

JsonT = TypeVar("JsonT")

_PLANES = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_PRIVATE = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")


class Shield:
    """The stand-ins of one request."""

    def __init__(self, *taken: object) -> None:
        """`taken` is everything that goes into the render; none of its characters is used."""
        self._taken = {char for value in taken for text in _texts(value) for char in _private(text)}
        self._free = (chr(code) for plane in _PLANES for code in plane)
        self._stand_in: dict[str, str] = {}
        self._text_of: dict[int, str] = {}

    def hide(self, value: JsonT, reserved: AddedMatcher) -> JsonT:
        """A copy of a JSON value in which no text spells a token that `reserved` finds."""
        return cast("JsonT", self._hide(value, reserved))

    def split(self, rendered: str, reserved: AddedMatcher) -> list[Segment]:
        """A template's output as the tokens it wrote and plain text with everything put back."""
        return [
            segment if segment.token is not None else Segment(segment.text.translate(self._text_of))
            for segment in reserved.split(rendered)
        ]

    def _hide(self, value: object, reserved: AddedMatcher) -> object:
        match value:
            case str():
                return self._hide_text(value, reserved)
            case list():
                return [self._hide(item, reserved) for item in value]
            case dict():
                return {
                    self._hide_text(key, reserved): self._hide(item, reserved)
                    for key, item in value.items()
                }
        return value

    def _hide_text(self, text: str, reserved: AddedMatcher) -> str:
        parts: list[str] = []
        start = 0
        for match in reserved.texts_in(text):
            parts += text[start : match.start()], self._stand_in_of(match[0])
            start = match.end()
        return "".join([*parts, text[start:]]) if parts else text

    def _stand_in_of(self, token: str) -> str:
        if token not in self._stand_in:
            char = next((char for char in self._free if char not in self._taken), None)
            if char is None:
                raise RequestError("the request uses every private-use character of Unicode")
            self._stand_in[token] = char
            self._text_of[ord(char)] = token
        return self._stand_in[token]


def _texts(value: object) -> Iterator[str]:
    """Every text inside a JSON value, keys included."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from _texts(item)


def _private(text: str) -> list[str]:
    return [] if text.isascii() else _PRIVATE.findall(text)
