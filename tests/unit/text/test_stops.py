from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.errors import RequestError
from ignis.text import STOPS_MAX, StopMatcher, stops_of

# Few letters, so that stop strings overlap, repeat and begin one another.
TEXT = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the match that starts first, the shortest of those."""
    starts = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not starts:
        return text, None
    start, _, stop = min(starts)
    return text[:start], stop


def streamed(chunks: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    sent = []
    for chunk in chunks:
        emit, stop = matcher.push(chunk)
        sent.append(emit)
        if stop is not None:
            return sent, stop
    emit, stop = matcher.finish()
    return [*sent, emit], stop


@given(TEXT, STOPS, st.data())
def test_stream_is_cut_where_the_whole_text_is(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    points = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *points, len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    sent, stop = streamed(chunks, stops)
    assert ("".join(sent), stop) == cut(text, stops)


@given(TEXT, STOPS)
def test_little_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    longest = max(map(len, stops), default=0)
    sent = 0
    for count, char in enumerate(text, 1):
        emit, stop = matcher.push(char)
        sent += len(emit)
        if stop is not None:
            return
        assert count - sent <= max(0, longest - 1)


def test_stop_across_tokens_does_not_leak() -> None:
    assert streamed(["ABC", "DE", "FGH", "IJK"], ["DEFGHIJ"]) == (["ABC", "", "", ""], "DEFGHIJ")


def test_false_start_is_sent_once_it_cannot_match() -> None:
    assert streamed(["a\nUs", "ual"], ["\nUser:"]) == (["a", "\nUsual", ""], None)


def test_match_waits_for_one_that_starts_before_it() -> None:
    assert streamed(["abc", "x"], ["abcd", "c"]) == (["", "ab"], "c")
    assert streamed(["abc", "d"], ["abcd", "c"]) == (["", ""], "abcd")
    assert streamed(["abc"], ["abcd", "c"]) == (["", "ab"], "c")


def test_prefix_of_another_stop_wins_as_soon_as_it_is_there() -> None:
    assert streamed(["xab"], ["abc", "ab"]) == (["x"], "ab")


def test_no_stops_hold_nothing() -> None:
    assert streamed(["a", "b"], []) == (["a", "b", ""], None)


@pytest.mark.parametrize(
    ("value", "stops"),
    [(None, ()), ("a", ("a",)), (["a", "b", "a"], ("a", "b")), ([], ())],
)
def test_stop_field_is_read(value: object, stops: tuple[str, ...]) -> None:
    assert stops_of(value) == stops


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("", "stop"),
        (["a", ""], "stop[1]"),
        (5, "stop"),
        ([None], "stop[0]"),
        ("\ud800", "stop"),
        ([str(i) for i in range(STOPS_MAX + 1)], "stop"),
    ],
)
def test_wrong_stop_field_is_refused(value: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        stops_of(value)
    assert caught.value.param == param
