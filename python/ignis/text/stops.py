"""Stop strings, found wherever tokens happen to cut them.

The one definition, streamed or not: text ends at the stop string that *starts* first; of several
that start there, the shortest is reported. Text that may yet turn out to be part of a stop string
is held back, so nothing that is cut was ever sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from ignis.errors import RequestError
from ignis.text.json_values import check_text

STOPS_MAX = 16
"""Most stop strings one request may have."""


def stops_of(value: object, *, param: str = "stop") -> tuple[str, ...]:
    """The stop strings of a request's `stop` field: null, one text, or a list of them.

    Raises RequestError for anything else, an empty or invalid text, or more than STOPS_MAX.
    """
    if value is None:
        return ()
    texts = value if isinstance(value, list | tuple) else [value]
    if len(texts) > STOPS_MAX:
        raise RequestError(f"{len(texts)} stop strings, at most {STOPS_MAX} are allowed", param)
    for index, text in enumerate(texts):
        where = param if texts is not value else f"{param}[{index}]"
        if not isinstance(text, str):
            raise RequestError("a stop string must be a text", where, "invalid_type")
        if not text:
            raise RequestError("a stop string must not be empty", where)
        check_text(text, where)
    return tuple(dict.fromkeys(texts))


class StopMatcher:
    """Cuts one text at its first stop string, given piece by piece.

    The cut does not depend on how the text is cut into pieces. Holds back at most the longest stop
    string's length less one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Precondition: no stop string is empty (see `stops_of`)."""
        self._stops = tuple(stops)
        self._held = ""
        self._longest = max(map(len, self._stops), default=0)

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be sent now, and the stop string that ends the answer, if one does.

        After a stop string was returned there is nothing more to push.
        """
        held = self._held + text
        pending = self._pending_start(held)
        match = self._first_match(held)
        # A match counts only once no stop string that starts before it can still come true.
        if match is not None and match[0] <= pending:
            self._held = ""
            return held[: match[0]], match[1]
        self._held = held[pending:]
        return held[:pending], None

    def finish(self) -> tuple[str, str | None]:
        """The rest at the end of generation: what was held back, up to a stop string in it."""
        rest, self._held = self._held, ""
        match = self._first_match(rest)
        return (rest, None) if match is None else (rest[: match[0]], match[1])

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found, key=lambda match: (match[0], len(match[1])), default=None)

    def _pending_start(self, text: str) -> int:
        """Where the first suffix begins that a stop string could still continue."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return len(text)
