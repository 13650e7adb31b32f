"""The content index against a search through everything."""

from __future__ import annotations

from array import array

from hypothesis import example, given
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


@given(known=st.lists(TOKENS, max_size=12), tokens=TOKENS)
@example(known=[array("I", [0] * 4)], tokens=array("I", [0] * 9))
def test_all_that_a_prompt_begins_with_is_found_longest_first(
    known: list[array[int]], tokens: array[int]
) -> None:
    index = filled(known)
    naive = sorted(
        (
            one
            for one in index
            if one.tokens == tokens[: one.position] and one.position < len(tokens)
        ),
        key=lambda e: -e.position,
    )
    assert list(index.matches(tokens, len(tokens) - 1, chain(tokens))) == naive


@given(known=st.lists(TOKENS, min_size=1, max_size=12), data=st.data())
def test_what_was_removed_is_found_no_more(known: list[array[int]], data: st.DataObject) -> None:
    index = filled(known)
    entry = data.draw(st.sampled_from(list(index)))
    position = entry.position
    assert index.exact(entry.tokens, position, chain(entry.tokens)) is entry
    index.remove(entry)
    assert index.exact(entry.tokens, position, chain(entry.tokens)) is None
    assert len(list(index)) == len({bytes(tokens) for tokens in known}) - 1
    assert bool(index) == bool(list(index))


def test_equal_hashes_of_other_tokens_are_no_match() -> None:
    index = filled([array("I", [1, 1, 1, 0])])
    other = array("I", [0, 1, 1, 1, 5])
    assert chain(other) == chain(array("I", [1, 1, 1, 0]))
    assert list(index.matches(other, 4, chain(other))) == []


def test_a_prompt_is_never_matched_to_its_last_token() -> None:
    tokens = array("I", [1, 0, 1, 0])
    index = filled([tokens])
    assert list(index.matches(tokens, len(tokens) - 1, chain(tokens))) == []
    longer = array("I", [*tokens, 1])
    assert len(list(index.matches(longer, len(longer) - 1, chain(longer)))) == 1
