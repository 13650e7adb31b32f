"""Rank and reservation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.admission import NeverFits, Rank, Room, reserve

ROOM = Room(context_tokens_max=1024, pages_total=12, page_tokens=64, default_tokens_max=256)


def test_interactive_ranks_before_agent_then_arrival_decides() -> None:
    ranks = [Rank.of("agent", 0), Rank.of("interactive", 3), Rank.of("interactive", 1)]
    assert sorted(ranks) == [ranks[2], ranks[1], ranks[0]]


@pytest.mark.parametrize(
    ("prompt_tokens", "tokens_max", "pages"),
    [(1, 1, 1), (1, 63, 1), (1, 64, 2), (63, 1, 1), (64, 1, 2), (127, 1, 2), (128, 1, 3)],
)
def test_pages_hold_prompt_and_cap(prompt_tokens: int, tokens_max: int, pages: int) -> None:
    assert reserve(prompt_tokens, tokens_max, ROOM).pages == pages


def test_no_cap_means_the_default() -> None:
    assert reserve(100, None, ROOM).tokens_max == 256


def test_default_zero_means_up_to_the_context() -> None:
    room = Room(context_tokens_max=512, pages_total=8, page_tokens=64, default_tokens_max=0)
    reservation = reserve(100, None, room)
    assert (reservation.tokens_max, reservation.pages) == (412, 8)


@pytest.mark.parametrize("tokens_max", [None, 256, 1 << 62])
def test_a_cap_past_the_context_is_clamped_not_refused(tokens_max: int | None) -> None:
    room = Room(context_tokens_max=512, pages_total=8, page_tokens=64, default_tokens_max=256)
    assert reserve(500, tokens_max, room).tokens_max == 12


def test_the_longest_prompt_leaves_one_token() -> None:
    room = Room(context_tokens_max=512, pages_total=8, page_tokens=64, default_tokens_max=0)
    assert reserve(511, None, room).tokens_max == 1


@pytest.mark.parametrize("prompt_tokens", [1024, 1025, 10240])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(prompt_tokens: int) -> None:
    with pytest.raises(NeverFits) as refused:
        reserve(prompt_tokens, 1, ROOM)
    assert refused.value.code == "context_exceeded"
    assert (refused.value.needed, refused.value.limit) == (prompt_tokens, 1024)
    assert str(prompt_tokens) in str(refused.value)
    assert "1024" in str(refused.value)


def test_what_fills_the_pool_exactly_fits() -> None:
    assert reserve(12 * 64 - 8, 8, ROOM).pages == 12


def test_one_token_more_than_the_pool_is_refused_with_both_numbers() -> None:
    with pytest.raises(NeverFits) as refused:
        reserve(12 * 64 - 8, 9, ROOM)
    assert refused.value.code == "oversized"
    assert (refused.value.needed, refused.value.limit) == (13, 12)
    assert "13 pages" in str(refused.value)
    assert "12 pages" in str(refused.value)


@given(
    prompt_tokens=st.integers(1, 3000),
    tokens_max=st.none() | st.integers(1, 1 << 64),
    context=st.integers(1, 2048),
    pages_total=st.integers(1, 40),
    default=st.integers(0, 4096),
)
def test_a_reservation_holds_its_tokens_and_no_whole_page_more(
    prompt_tokens: int, tokens_max: int | None, context: int, pages_total: int, default: int
) -> None:
    room = Room(context, pages_total, 64, default)
    cap = min(tokens_max or default or context, context - prompt_tokens)
    if cap < 1 or prompt_tokens + cap > pages_total * 64:
        with pytest.raises(NeverFits):
            reserve(prompt_tokens, tokens_max, room)
        return
    reservation = reserve(prompt_tokens, tokens_max, room)
    assert reservation.tokens_max == cap
    assert 0 <= reservation.pages * 64 - (prompt_tokens + cap) < 64
