"""The content index: which entry is the longest that a prompt begins with.

Entries lie under the hash of their whole pages, so a prompt asks once for each number of pages that
it has; what is found there is compared token by token, so a collision costs time and never gives
another's state. The hashes are seeded and come from outside.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from ignis.reuse.entry import Entry

KEY_BYTES = 16


def page_keys(chain: bytes, pages: int) -> bytes:
    """The key of the first `pages` whole pages, from a prompt's hash chain; empty for none."""
    return chain[KEY_BYTES * (pages - 1) : KEY_BYTES * pages] if pages else b""


class Index:
    """Entries by content. `chain` gives 16 bytes for each whole page of its tokens."""

    def __init__(self, page_tokens: int, chain: Callable[[array[int]], bytes]) -> None:
        self.page_tokens = page_tokens
        self.chain = chain
        self._entries: dict[bytes, list[Entry]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to be found."""
        return bool(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entries in self._entries.values() for entry in entries)

    def key_of(self, position: int, chain: bytes) -> bytes:
        """Where an entry of the first `position` tokens lies, by its prompt's chain."""
        return page_keys(chain, position // self.page_tokens)

    def add(self, entry: Entry) -> None:
        """Let it be found. No entry of the same tokens may be there."""
        self._entries.setdefault(entry.page_key, []).append(entry)

    def remove(self, entry: Entry) -> None:
        """Let it be found no more."""
        entries = self._entries[entry.page_key]
        entries.remove(entry)
        if not entries:
            del self._entries[entry.page_key]

    def exact(self, tokens: array[int], position: int, chain: bytes) -> Entry | None:
        """The entry of exactly the first `position` tokens."""
        for entry in self._entries.get(self.key_of(position, chain), ()):
            if entry.position == position and entry.tokens == tokens[:position]:
                return entry
        return None

    def matches(self, tokens: array[int], position_max: int, chain: bytes) -> Iterator[Entry]:
        """Entries of at most `position_max` tokens that `tokens` begin with, longest first."""
        if not self._entries:
            return
        for pages in range(position_max // self.page_tokens, -1, -1):
            found = [
                entry
                for entry in self._entries.get(page_keys(chain, pages), ())
                if entry.position <= position_max
                # Keys of other lengths may be the same: each entry is found at its own.
                and entry.position // self.page_tokens == pages
                and entry.tokens == tokens[: entry.position]
            ]
            yield from sorted(found, key=lambda entry: -entry.position)
