"""The content index against a search through everything."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ignis.reuse import Entry, Index

PAGE = 4


def chain(tokens: array[int]) -> bytes:
    """Sixteen bytes a page; so weak that different pages often share a key."""
    pages = range(1, len(tokens) // PAGE + 1)
    return b"".join(bytes([sum(tokens[: PAGE * page]) % 3]) * 16 for page in pages)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=18).map(lambda ids: array("I", ids))


def filled(known: list[array[int]]) -> Index:
    index = Index(PAGE, chain)
    for slot, tokens in enumerate({bytes(tokens): tokens for tokens in known}.values()):
        key = index.key_of(len(tokens), chain(tokens))
        index.add(Entry(tokens, "checkpoint", 0, key, copies=[slot % 3 - 1, 1, -1]))
    return index


def naive(index: Index, tokens: array[int], fits: Callable[[Entry], bool]) -> Entry | None:
    return max(
        (
            entry
            for entry in index
            if entry.tokens == tokens[: entry.position] and entry.position < len(tokens)
            if fits(entry)
        ),
        key=lambda entry: entry.position,
        default=None,
    )


@given(known=st.lists(TOKENS, max_size=12), tokens=TOKENS)
def test_the_longest_that_a_prompt_begins_with_is_found(
    known: list[array[int]], tokens: array[int]
) -> None:
    index = filled(known)
    found = index.longest(tokens, len(tokens) - 1, chain(tokens))
    assert found is naive(index, tokens, lambda entry: True)


@given(known=st.lists(TOKENS, max_size=12), tokens=TOKENS)
def test_on_the_device_only_what_has_a_slot_is_found(
    known: list[array[int]], tokens: array[int]
) -> None:
    index = filled(known)
    found = index.longest(tokens, len(tokens) - 1, chain(tokens), on_device=True)
    assert found is naive(index, tokens, lambda entry: entry.copies[0] >= 0)


@given(known=st.lists(TOKENS, min_size=1, max_size=12), data=st.data())
def test_what_was_removed_is_found_no_more(known: list[array[int]], data: st.DataObject) -> None:
    index = filled(known)
    entry = data.draw(st.sampled_from(list(index)))
    position = entry.position
    assert index.exact(entry.tokens, position, chain(entry.tokens)) is entry
    index.remove(entry)
    assert index.exact(entry.tokens, position, chain(entry.tokens)) is None
    assert len(index) == len({bytes(tokens) for tokens in known}) - 1


def test_equal_hashes_of_other_tokens_are_no_match() -> None:
    index = filled([array("I", [1, 1, 1, 0])])
    other = array("I", [0, 1, 1, 1, 5])
    assert chain(other) == chain(array("I", [1, 1, 1, 0]))
    assert index.longest(other, 4, chain(other)) is None


def test_a_prompt_is_never_matched_to_its_last_token() -> None:
    tokens = array("I", [1, 0, 1, 0])
    index = filled([tokens])
    assert index.longest(tokens, len(tokens) - 1, chain(tokens)) is None
    longer = array("I", [*tokens, 1])
    assert index.longest(longer, len(longer) - 1, chain(longer)) is not None
