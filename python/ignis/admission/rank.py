"""Rank: the one order in which sequences wait, are seated and prefill.

A rank is the class, interactive before agent, then the arrival. It is given once, at submit, and
kept for the sequence's life. Ranks are unique, so every comparison has one answer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

RequestClass = Literal["interactive", "agent"]

# Best first; a rank holds the place in this list, so that tuples compare.
CLASSES: tuple[RequestClass, ...] = ("interactive", "agent")


class Rank(NamedTuple):
    """Lower is better: `Rank(0, 7) < Rank(0, 8) < Rank(1, 0)`."""

    class_index: int  # place in CLASSES
    arrival: int  # 0, 1, 2 ... in order of submit, over both classes

    @classmethod
    def of(cls, request_class: RequestClass, arrival: int) -> Rank:
        """The rank of the sequence which arrived as number `arrival`."""
        return cls(CLASSES.index(request_class), arrival)
