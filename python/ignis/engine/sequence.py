"""A sequence on the engine's side, and what a round hands over about it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from ignis.admission.reservation import Reservation
from ignis.engine.actions import Note
from ignis.engine.api import FinishReason, Mark, RequestClass, SamplingParams, TokenOut
from ignis.engine.metrics import Fact, RoundStats


@dataclass(slots=True, eq=False)
class Sequence:
    """One run of tokens. `tokens` is the prompt and, for the sequence's life, what it generated."""

    key: int
    tokens: array[int]  # "I"
    prompt_tokens: int
    reservation: Reservation
    sampling: SamplingParams
    stop_ids: frozenset[int]
    request_class: RequestClass
    marks: tuple[Mark, ...] = ()
    tokens_end: int = 0  # length of `tokens` at which its cap is reached
    admitted: bool = False  # it has had a lane

    def __post_init__(self) -> None:
        self.tokens_end = self.prompt_tokens + self.reservation.tokens_max


class Delivery(NamedTuple):
    """What a round gave one sequence: a token, its end, or both."""

    key: int
    token: TokenOut | None
    finish_reason: FinishReason | None
    error: str | None = None


class Handover(NamedTuple):
    """All that one round gave, and what was done since, handed over at once.

    Times are monotonic seconds. The next round may have begun before it is handed over.
    """

    began: float  # sequences in `admitted` got their first lane now, those refused ended
    ended: float  # tokens in `deliveries` were sampled now
    admitted: tuple[int, ...]  # keys
    deliveries: tuple[Delivery, ...]
    stats: RoundStats | None  # None only beside a failure
    failure: str | None = None  # the engine stopped; every open sequence is lost
    facts: tuple[Fact, ...] = ()
    notes: tuple[Note, ...] = ()
