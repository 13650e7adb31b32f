"""Reservation: the pages a sequence takes when it is seated, all of them at once.

The whole of prompt and cap is reserved, so a sequence that runs can always go on: no round ever
looks for a page. The price is room for tokens that an early stop leaves unused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ignis.errors import RequestError


class NeverFits(RequestError):
    """No free page could ever make the request fit: `needed` against `limit`, both in `unit`.

    `code` is `context_exceeded` (the prompt leaves no token of the context) or `oversized` (prompt
    and cap need more pages than the whole pool has).
    """

    def __init__(
        self,
        message: str,
        *,
        code: Literal["context_exceeded", "oversized"],
        needed: int,
        limit: int,
        unit: Literal["tokens", "pages"],
    ) -> None:
        super().__init__(message, param=None, code=code)
        self.needed = needed
        self.limit = limit
        self.unit = unit


@dataclass(frozen=True, slots=True)
class Room:
    """What one sequence may take at most. `default_tokens_max` 0 means up to the context."""

    context_tokens_max: int
    pages_total: int
    page_tokens: int
    default_tokens_max: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """`tokens_max` new tokens at most, in `pages` pages together with the prompt."""

    tokens_max: int
    pages: int


def reserve(prompt_tokens: int, tokens_max: int | None, room: Room) -> Reservation:
    """The reservation of a prompt whose client asked for `tokens_max` new tokens.

    None asks for the default. Either is clamped to what the prompt leaves of the context; that is
    never a refusal. Raises NeverFits for what could not run even in an empty pool.
    """
    assert prompt_tokens > 0, "an empty prompt is refused before it gets here"
    assert tokens_max is None or tokens_max > 0, "a cap is validated where the request is parsed"
    tokens_left = room.context_tokens_max - prompt_tokens
    if tokens_left <= 0:
        raise NeverFits(
            f"the prompt has {prompt_tokens} tokens and the context holds "
            f"{room.context_tokens_max} tokens, of which at least 1 must be left for the answer",
            code="context_exceeded",
            needed=prompt_tokens,
            limit=room.context_tokens_max,
            unit="tokens",
        )
    cap = min(tokens_max or room.default_tokens_max or tokens_left, tokens_left)
    pages = -(-(prompt_tokens + cap) // room.page_tokens)
    if pages > room.pages_total:
        raise NeverFits(
            f"the prompt of {prompt_tokens} tokens and an answer of up to {cap} tokens need "
            f"{pages} pages, and the whole pool has {room.pages_total} pages of "
            f"{room.page_tokens} tokens",
            code="oversized",
            needed=pages,
            limit=room.pages_total,
            unit="pages",
        )
    return Reservation(tokens_max=cap, pages=pages)
