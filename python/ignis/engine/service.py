"""The engine as the server uses it: submit a sequence, read its stream, drain, stop.

One engine thread runs the rounds; everything here lives on one event loop. A round's results come
over in one call, when the next round has begun, and are first given to the streams, then counted
and logged.

A request is refused only here and only at submit: it could never fit (NeverFits), as many are open
as may be (QueueFull), the service drains (Draining) or has failed (EngineFailed). For room it
waits.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self

import structlog

from ignis.admission.reservation import NeverFits, Room, reserve
from ignis.engine.actions import Note
from ignis.engine.api import EngineOptions, SequenceRequest, SequenceTimes
from ignis.engine.errors import Draining, EngineFailed, QueueFull
from ignis.engine.metrics import EngineMetrics, NoMetrics, RoundStats
from ignis.engine.native import Core, OutT, SamplingT
from ignis.engine.rounds import ReuseOptions, RoundRunner
from ignis.engine.scheduler import SchedulerLimits
from ignis.engine.sequence import Handover, Sequence
from ignis.engine.stream import Stream
from ignis.engine.thread import EngineThread
from ignis.errors import RequestError

log = structlog.get_logger("ignis.engine")


class EngineService(Generic[SamplingT, OutT]):
    """Serves the sequences of one loaded engine. Used as `async with EngineService(...)`."""

    def __init__(
        self,
        core: Core[SamplingT, OutT],
        options: EngineOptions,
        metrics: EngineMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        engine = core.engine
        self.limits = SchedulerLimits(
            lanes_max=engine.lanes_max,
            pages_total=engine.pages_total,
            chunk_tokens_max=options.chunk_tokens_max,
            queue_max=options.queue_max,
            decode_share_percent=options.decode_share_percent,
        )
        self.room = Room(
            context_tokens_max=options.context_tokens_max,
            pages_total=engine.pages_total,
            page_tokens=engine.page_tokens,
            default_tokens_max=options.default_tokens_max,
        )
        self.failure: str | None = None  # why nothing runs any more
        self._vocab = engine.vocab
        self._metrics: EngineMetrics = NoMetrics() if metrics is None else metrics
        self._clock = clock
        self._keys = itertools.count()
        self._streams: dict[int, Stream] = {}  # open ones
        self._nothing_open = asyncio.Event()
        self._nothing_open.set()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        reuse = ReuseOptions(
            checkpoints=options.reuse_prompt,
            interactive_ttl_us=round(options.retained_interactive_ttl_s * 1e6),
        )
        runner = RoundRunner(core, self.limits, clock, reuse)
        self._thread = EngineThread(runner, self._hand_over, clock)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread; called once, on the event loop that will use the service."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing new, and wait until every stream was read to its end or left.

        False if some are still open after `timeout_s`; they go on, until `stop`.
        """
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nothing_open.wait(), timeout_s)
        return not self._streams

    async def stop(self) -> None:
        """End the thread after the round in hand; what is still open ends with an error."""
        self._draining = True
        self._thread.stop()
        # What the thread handed over before it ended comes first in the loop's queue.
        await asyncio.to_thread(self._thread.join)
        self._end_all("the server stopped before the answer was complete")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # --- use --------------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> Stream:
        """Take in a request; it waits in rank order until it has a lane and all its pages.

        Raises NeverFits, QueueFull, Draining, EngineFailed, or RequestError for what the server
        should have refused: an empty prompt, an id outside the vocabulary, a cap below 1.
        """
        assert self._loop is not None, "start comes first"
        if self.failure is not None:
            self._metrics.request_refused("failed")
            raise EngineFailed(self.failure)
        if self._draining:
            self._metrics.request_refused("draining")
            raise Draining
        self._check(request)
        try:
            reservation = reserve(len(request.prompt), request.max_tokens, self.room)
        except NeverFits:
            self._metrics.request_refused("never_fits")
            raise
        if len(self._streams) >= self.limits.open_max:
            self._metrics.request_refused("queue_full")
            raise QueueFull(len(self._streams), self.limits.open_max)
        key = next(self._keys)
        stream = Stream(
            request,
            reservation.tokens_max,
            SequenceTimes(submitted=self._clock()),
            settled=lambda stream: self._settled(key, stream),
            cancelled=lambda: self._thread.cancel(key),
        )
        self._streams[key] = stream
        self._nothing_open.clear()
        self._thread.submit(
            Sequence(
                key=key,
                tokens=array("I", request.prompt),
                prompt_tokens=len(request.prompt),
                reservation=reservation,
                sampling=request.sampling,
                stop_ids=request.stop_ids,
                request_class=request.request_class,
                marks=request.marks,
            )
        )
        self._metrics.request_submitted(request.request_class)
        return stream

    @property
    def healthy(self) -> bool:
        """Whether rounds run; `failure` says why not."""
        return self.failure is None

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the service is about to end."""
        return self._draining

    @property
    def open_count(self) -> int:
        """Streams not yet read to their end or left."""
        return len(self._streams)

    def _check(self, request: SequenceRequest) -> None:
        if not request.prompt:
            raise RequestError("the prompt has no tokens", "prompt")
        low, high = min(request.prompt), max(request.prompt)
        if low < 0 or high >= self._vocab:
            wrong = low if low < 0 else high
            raise RequestError(
                f"token id {wrong} is outside the vocabulary of {self._vocab} ids", "prompt"
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise RequestError(f"max_tokens is {request.max_tokens}, the least is 1", "max_tokens")

    # --- what comes back --------------------------------------------------------------------------

    def _hand_over(self, handover: Handover) -> None:
        """On the engine thread."""
        assert self._loop is not None
        # A closed loop has no readers left: there is nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, handover)

    def _receive(self, handover: Handover) -> None:
        for key, token, finish_reason, error in handover.deliveries:
            stream = self._streams.get(key)
            if stream is not None:
                stream.feed(token, finish_reason, error)
        if handover.failure is not None:
            self.failure = handover.failure
            self._end_all(str(EngineFailed(handover.failure)))
            # Nothing runs or waits any more, and that is what a gauge should say.
            self._metrics.round_done(RoundStats(0.0, 0, 0, 0, 0, 0, self.limits.pages_total, 0))
        self._observe(handover)

    def _end_all(self, message: str) -> None:
        for stream in self._streams.values():
            if not stream.ended:
                stream.feed(None, "error", message)

    def _observe(self, handover: Handover) -> None:
        for note in handover.notes:
            stream = self._streams.get(note.key)
            if stream is not None:
                stream.noted(note)
                self._noted(stream, note)
        for fact in handover.facts:
            self._metrics.fact(fact)
        for key in handover.admitted:
            stream = self._streams.get(key)
            if stream is not None:
                self._admitted(stream, handover.began)
        for key, token, finish_reason, _ in handover.deliveries:
            stream = self._streams.get(key)
            if stream is None:
                continue
            if token is not None:
                self._sampled(stream, handover.ended)
            if finish_reason is not None:
                stream.times.finished = handover.began if token is None else handover.ended
        if handover.stats is not None:
            self._metrics.round_done(handover.stats)

    def _noted(self, stream: Stream, note: Note) -> None:
        if note.what in {"evicted", "resumed"}:
            log.debug(
                "ignis.scheduler.moved",
                request_id=stream.request_id,
                way="out" if note.what == "evicted" else "in",
                tier=note.tier,
                tokens=note.tokens,
                ms=note.ms,
            )
        elif note.what == "restarted":
            log.warning(
                "ignis.scheduler.prefilled_again",
                request_id=stream.request_id,
                tier=note.tier,
                tokens=note.tokens,
            )

    def _admitted(self, stream: Stream, now: float) -> None:
        times = stream.times
        times.admitted = now
        queued_s = now - times.submitted
        self._metrics.request_admitted(stream.request_class, queued_s)
        log.info(
            "ignis.request.admitted",
            request_id=stream.request_id,
            request_class=stream.request_class,
            prompt_tokens=stream.prompt_tokens,
            tokens_max=stream.tokens_max,
            queued_ms=round(queued_s * 1e3, 3),
        )

    def _sampled(self, stream: Stream, now: float) -> None:
        times = stream.times
        before, times.last_token = times.last_token, now
        if before is None:
            times.first_token = now
            ttft_s = now - times.submitted
            self._metrics.first_token(stream.request_class, ttft_s)
            log.info(
                "ignis.request.ttft",
                request_id=stream.request_id,
                ttft_ms=round(ttft_s * 1e3, 3),
            )
            return
        gap_s = now - before
        times.gap_max_s = max(times.gap_max_s, gap_s)
        self._metrics.token_gap(stream.request_class, gap_s)

    def _settled(self, key: int, stream: Stream) -> None:
        """A reader took its last batch, or left: the one moment that counts its outcome."""
        del self._streams[key]
        if not self._streams:
            self._nothing_open.set()
        assert stream.finish_reason is not None
        now = self._clock()
        if stream.times.finished is None:
            stream.times.finished = now
        duration_s = stream.times.finished - stream.times.submitted
        self._metrics.request_done(
            stream.request_class,
            stream.finish_reason,
            stream.prompt_tokens,
            stream.generated,
            duration_s,
        )
        figures: dict[str, object] = {
            "reuse_source": stream.reuse_source,
            "reused_prompt_tokens": stream.cached_tokens,
            "moves": stream.moves,
            "prefilled_again": stream.prefilled_again,
        }
        log.info(
            "ignis.request.done",
            request_id=stream.request_id,
            outcome=stream.finish_reason,
            prompt_tokens=stream.prompt_tokens,
            completion_tokens=stream.generated,
            duration_ms=round(duration_s * 1e3, 3),
            **{name: figure for name, figure in figures.items() if figure},
        )
