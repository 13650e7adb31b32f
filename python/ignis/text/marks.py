"""Where in a prompt later prompts will part from it: the places whose state is worth keeping.

Two kinds. A `checkpoint` is the end of what a later turn of the same conversation renders in the
same way: right after the header of the answer, since a template may put more there (an opening
`<think>`) that it leaves out of earlier turns. A `prefix` is the end of the system and tools block
that many conversations share, in whole pages.

Templates are programs of somebody else's, so nothing is assumed about them: what a later turn
looks like is found by rendering one whose answer is a probe, and comparing. Text that has been
tokenized is not tokenized again, but for a few words around the place where texts part, and for a
block that was not seen before. Any failure means fewer marks, never an error. A mark that is
wrong, because an answer merges with its header in a way no probe showed, costs the reuse of one
prompt and nothing else: whoever reuses a prefix compares token ids.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Literal, NamedTuple

from ignis.errors import IgnisError
from ignis.text.messages import Message
from ignis.text.segments import Segment, text_of
from ignis.text.tokenizer import Tokenizer

REMEMBERED_MAX = 64
"""System blocks whose end is remembered."""

PROBE = "\ue000"
"""Stands for words that are not known yet; no template writes it, and trimming leaves it."""

# What may come where texts part; the white space is what merges with a header's own.
_FOLLOWING = ("\n", "\n\n", " ", " a", "\t", "a", "A", "1", ".", "é", "你", PROBE)
_WINDOWS = (64, 1024)  # tokens before that place that are encoded again; the larger on a mismatch

Render = Callable[[list[Message]], list[Segment]]


class PromptMark(NamedTuple):
    """A place in a prompt: `position` tokens lie before it."""

    position: int
    kind: Literal["checkpoint", "prefix"]


class Encoded(NamedTuple):
    """A rendered prompt and its ids; `edges` are those of `Tokenizer.encode_with_edges`."""

    segments: list[Segment]
    ids: list[int]
    edges: list[int]


class ChatMarks:
    """Finds the marks of conversations with one model. Safe to share between threads."""

    def __init__(
        self, tokenizer: Tokenizer, page_tokens: int, remembered_max: int = REMEMBERED_MAX
    ) -> None:
        self._tokenizer = tokenizer
        self._page_tokens = page_tokens
        self._remembered_max = remembered_max
        # By the rendered text: how many whole pages of tokens, and their digest.
        self._blocks: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self, messages: list[Message], prompt: Encoded, render: Render
    ) -> tuple[PromptMark, ...]:
        """The marks of `prompt`, ascending, each below its length.

        `render` renders messages as `prompt` was rendered from `messages`: with the same tools and
        variables.
        """
        marks = {PromptMark(at, "checkpoint") for at in self._turns(messages, prompt, render)}
        prefix = self._prefix(messages, prompt, render)
        # The state at one place is kept once, and as what it is to more readers.
        marks -= {PromptMark(prefix, "checkpoint")}
        marks |= {PromptMark(prefix, "prefix")}
        return tuple(sorted(mark for mark in marks if 0 < mark.position < len(prompt.ids)))

    def _turns(self, messages: list[Message], prompt: Encoded, render: Render) -> set[int]:
        """Where turns that follow part from the prompt.

        After tools were called there are two: templates drop the thoughts of a turn once its user
        speaks again, but not while its tools answer.
        """
        followings = [_user_follows()]
        if messages[-1]["role"] != "user":
            followings.append(_tool_follows())
        found = set()
        for following in followings:
            try:
                later = render([*messages, *following])
                found.add(_shared(self._tokenizer, prompt, later))
            except IgnisError:
                continue
        return {min(at, len(prompt.ids) - 1) for at in found}

    def _prefix(self, messages: list[Message], prompt: Encoded, render: Render) -> int:
        """The end of the prompt's system and tools block in whole pages; 0 if it has none."""
        system: list[Message] = []
        for message in messages:
            if message["role"] != "system":
                break
            system.append(message)
        try:
            block = render([*system, {"role": "user", "content": PROBE}])
            pages, digest = self._block(block)
        except IgnisError:
            return 0
        tokens = pages * self._page_tokens
        return tokens if _digest(prompt.ids[:tokens]) == digest else 0

    def _block(self, block: list[Segment]) -> tuple[int, bytes]:
        """Whole pages of a block, and the digest of their ids."""
        key = blake2b(text_of(block).encode(), digest_size=16).digest()
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key]
        segments = _before_probe(block)
        ids, edges = self._tokenizer.encode_with_edges(segments)
        tokens = _shared(self._tokenizer, Encoded(segments, ids, edges), block)
        pages = tokens // self._page_tokens
        found = pages, _digest(ids[: pages * self._page_tokens])
        with self._lock:
            self._blocks[key] = found
            while len(self._blocks) > self._remembered_max:
                self._blocks.popitem(last=False)
        return found


def marks_of_text(tokens: int) -> tuple[PromptMark, ...]:
    """The mark of a raw prompt of so many tokens: all but its last, which is always computed."""
    return (PromptMark(tokens - 1, "checkpoint"),) if tokens > 1 else ()


def _user_follows() -> list[Message]:
    return [{"role": "assistant", "content": PROBE}, {"role": "user", "content": PROBE}]


def _tool_follows() -> list[Message]:
    name = "call00000"  # of the form that the strictest template asks for
    call = {
        "id": name,
        "type": "function",
        "function": {"name": PROBE, "arguments": {PROBE: PROBE}},
    }
    return [
        {"role": "assistant", "content": PROBE, "tool_calls": [call]},
        {"role": "tool", "content": PROBE, "tool_call_id": name, "name": PROBE},
    ]


def _before_probe(block: list[Segment]) -> list[Segment]:
    """What stands before the probe; nothing if the template left it out."""
    for at, segment in enumerate(block):
        if segment.token is None and PROBE in segment.text:
            text = segment.text[: segment.text.index(PROBE)]
            return [*block[:at], Segment(text)] if text else block[:at]
    return []


def _shared(tokenizer: Tokenizer, prompt: Encoded, later: list[Segment]) -> int:
    """How many ids of `prompt` stay the same in whatever goes on like `later`.

    Up to the place where the two part, whatever follows there.
    """
    segments, ids, edges = prompt
    at = _common(segments, later)
    if at == len(segments) or at == len(later):
        return edges[at]
    mine, theirs = segments[at], later[at]
    if mine.token is not None or theirs.token is not None:
        return edges[at]
    before, after = edges[at], edges[at + 1]
    text = mine.text[: _common(mine.text, theirs.text)]
    previous = ids[before - 1] if before else None
    return before + _kept(tokenizer, mine.text, ids[before:after], previous, text)


def _kept(
    tokenizer: Tokenizer, whole: str, ids: Sequence[int], previous: int | None, text: str
) -> int:
    """How many of `ids`, which spell `whole` after `previous`, stay whatever follows `text`.

    `text` is the beginning of `whole`. 0 where ids cannot be told apart by their bytes.
    """
    spelled = whole.encode()
    before = [previous, *ids[:-1]]
    ends = list(accumulate(len(tokenizer.piece(i, j)) for i, j in zip(ids, before, strict=True)))
    if not ends or ends[-1] != len(spelled):
        return 0
    limit = len(text.encode())
    inside = bisect_right(ends, limit)
    for window in _WINDOWS:
        start = max(0, inside - window)
        while start and b"\x80" <= spelled[ends[start - 1] : ends[start - 1] + 1] < b"\xc0":
            start -= 1  # never inside a character
        begin = ends[start - 1] if start else 0
        tail = spelled[begin:limit].decode("utf-8", "ignore")
        after = ids[start - 1] if start else previous
        expected = list(ids[start:inside])
        kept = min(
            _common(expected, tokenizer.encode_after(tail + next_, after)) for next_ in _FOLLOWING
        )
        if kept or not start:
            return start + kept
    return 0


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items two sequences have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(ids: Sequence[int]) -> bytes:
    return blake2b(array("I", ids).tobytes(), digest_size=16).digest()
