"""A stream: one sequence, as its reader sees it. Lives on the event loop.

The engine never waits for a reader. What a slow one has not taken lies here, at most as many tokens
as the sequence's cap, and is given all at once when it comes. A stream stays open until its last
batch is taken or it is cancelled, and open streams have a maximum, so the tokens that lie in all
streams together are bounded by `open_max` times the cap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ignis.engine.actions import Note
from ignis.engine.api import (
    FinishReason,
    ReuseSource,
    SequenceRequest,
    SequenceTimes,
    TokenBatch,
    TokenOut,
)


class Stream:
    """An async iterator of TokenBatch, for one reader; the last batch carries the finish reason.

    Used as `async with service.submit(request) as stream`, so that whoever leaves, for whatever
    cause, gives back what the sequence holds.
    """

    def __init__(
        self,
        request: SequenceRequest,
        tokens_max: int,
        times: SequenceTimes,
        settled: Callable[[Stream], None],
        cancelled: Callable[[], None],
    ) -> None:
        self.request_id = request.request_id
        self.request_class = request.request_class
        self.prompt_tokens = len(request.prompt)
        self.tokens_max = tokens_max  # the cap after clamping
        self.times = times
        self.generated = 0  # tokens the engine gave, taken or not
        self.cached_tokens = 0  # prompt tokens that were not computed when it was first seated
        self.reuse_source: ReuseSource | None = None  # where they came from
        self.moves = 0  # times that it moved out
        self.prefilled_again = 0  # times that it started over because its image was lost
        self.finish_reason: FinishReason | None = None  # as the reader was given it
        self._settled = settled
        self._cancelled = cancelled
        self._tokens: list[TokenOut] = []
        self._end: TokenBatch | None = None  # finish reason and error, until taken
        self._ready = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenBatch:
        """All that came since the last batch; waits until there is something."""
        while not self._tokens and self._end is None:
            if self.finish_reason is not None:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        end = self._end
        reason, error = (None, None) if end is None else (end.finish_reason, end.error)
        batch = TokenBatch(tuple(self._tokens), reason, error)
        self._tokens.clear()
        self._end = None
        self._settle(reason)
        return batch

    def cancel(self) -> None:
        """Leave. What was not taken is dropped; the lane is free by the next round.

        The reader, if it still reads, gets one batch with finish reason "cancelled". After the last
        batch was taken this does nothing.
        """
        self._leave("cancelled")

    def complete(self) -> None:
        """Leave because the answer is complete without its rest, as after a stop string.

        Like `cancel`, but the outcome that is counted is "stop".
        """
        self._leave("stop")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    @property
    def buffered(self) -> int:
        """Tokens that lie here untaken."""
        return len(self._tokens)

    def feed(
        self, token: TokenOut | None, finish_reason: FinishReason | None, error: str | None
    ) -> None:
        """The service's side: a token, the end, or both. Nothing follows an end."""
        assert not self.ended, "nothing follows an end"
        if token is not None:
            self._tokens.append(token)
            self.generated += 1
        if finish_reason is not None:
            self._end = TokenBatch((), finish_reason, error)
        self._ready.set()

    def noted(self, note: Note) -> None:
        """The service's side: what happened to the sequence between two rounds."""
        if note.what == "reused":
            self.cached_tokens, self.reuse_source = note.tokens, note.tier
        elif note.what == "evicted":
            self.moves += 1
        elif note.what == "restarted":
            self.prefilled_again += 1

    @property
    def ended(self) -> bool:
        """Whether the engine is done with it, though its reader may not be."""
        return self._end is not None or self.finish_reason is not None

    def _leave(self, reason: FinishReason) -> None:
        if self.finish_reason is not None:
            return
        self._tokens.clear()
        self._end = TokenBatch((), reason)
        self._ready.set()
        self._cancelled()
        self._settle(reason)

    def _settle(self, reason: FinishReason | None) -> None:
        if reason is not None and self.finish_reason is None:
            self.finish_reason = reason
            self._settled(self)
