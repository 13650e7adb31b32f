"""A prompt as plain text and added tokens, before it becomes ids.

A rendered chat is a run of segments. Only what the template itself wrote may be a control token;
everything else is plain text, whatever it spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ignis.text.vocabulary import AddedToken


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of plain text (`token` is None), or one added token and the text that spells it."""

    text: str
    token: int | None = None


def text_of(segments: Sequence[Segment]) -> str:
    """The prompt as a reader sees it: the texts of all segments, joined."""
    return "".join(segment.text for segment in segments)


class AddedMatcher:
    """Finds a fixed set of added tokens in text, the longest first."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._of_text = {token.text: token for token in tokens}
        ordered = sorted(self._of_text, key=len, reverse=True)
        # An empty alternation would match everywhere; `(?!)` matches nowhere.
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")

    def texts_in(self, text: str) -> Iterable[re.Match[str]]:
        """Every added token that `text` spells, left to right, without overlap."""
        return self._pattern.finditer(text)

    def split(self, text: str) -> list[Segment]:
        """`text` as plain runs, none empty or beside another, and added tokens.

        White space that a token swallows is dropped from the plain run beside it.
        """
        segments: list[Segment] = []
        before: AddedToken | None = None
        start = 0
        for match in self._pattern.finditer(text):
            token = self._of_text[match[0]]
            _add_plain(segments, text[start : match.start()], before, token)
            segments.append(Segment(token.text, token.id))
            before, start = token, match.end()
        _add_plain(segments, text[start:], before, None)
        return segments


def _add_plain(
    segments: list[Segment], text: str, before: AddedToken | None, after: AddedToken | None
) -> None:
    if before is not None and before.strip_right:
        text = text.lstrip()
    if after is not None and after.strip_left:
        text = text.rstrip()
    if text:
        segments.append(Segment(text))
