"""Metrics that remember, an engine that waits for leave, and what the service tests share."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field

from ignis.engine import (
    EngineOptions,
    EngineService,
    Fact,
    FinishReason,
    Mark,
    RefusalReason,
    RequestClass,
    RoundStats,
    SamplingParams,
    SequenceRequest,
    Stream,
)
from tests.simulation.reference_engine import ReferenceEngine, ReferenceOut, reference_core
from tests.simulation.witness import witness_text

Service = EngineService[SamplingParams, ReferenceOut]


@dataclass
class Recorder:
    """Fulfils EngineMetrics."""

    submitted: int = 0
    admitted: int = 0
    gaps: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    rounds: list[RoundStats] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def request_submitted(self, request_class: RequestClass) -> None:
        self.submitted += 1

    def request_refused(self, reason: RefusalReason) -> None:
        self.refused[reason] += 1

    def request_admitted(self, request_class: RequestClass, queued_s: float) -> None:
        assert queued_s >= 0
        self.admitted += 1

    def first_token(self, request_class: RequestClass, ttft_s: float) -> None:
        self.ttft_s.append(ttft_s)

    def token_gap(self, request_class: RequestClass, gap_s: float) -> None:
        assert gap_s >= 0
        self.gaps += 1

    def request_done(
        self,
        request_class: RequestClass,
        outcome: FinishReason,
        prompt_tokens: int,
        completion_tokens: int,
        duration_s: float,
    ) -> None:
        assert duration_s >= 0
        self.outcomes[outcome] += 1
        self.completion_tokens += completion_tokens

    def round_done(self, stats: RoundStats) -> None:
        self.rounds.append(stats)

    def fact(self, fact: Fact) -> None:
        self.facts.append(fact)


@dataclass
class GatedEngine(ReferenceEngine):
    """Runs a round for each `permit`, so that a test knows where it stands."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate = threading.Semaphore(0)

    def permit(self, rounds: int) -> None:
        for _ in range(rounds):
            self.gate.release()

    def finish_round(self, out: ReferenceOut) -> int:
        assert self.gate.acquire(timeout=20), "no leave to run"
        return super().finish_round(out)


def make_engine(
    lanes_max: int = 2, pages_total: int = 8, *, slots: int = 0, ram_windows: int = 0
) -> ReferenceEngine:
    return ReferenceEngine(
        lanes_max, pages_total, chunk_tokens_max=16, retained_slots=slots, ram_windows=ram_windows
    )


def make_gated(
    lanes_max: int = 2, pages_total: int = 8, *, slots: int = 0, ram_windows: int = 0
) -> GatedEngine:
    return GatedEngine(
        lanes_max, pages_total, chunk_tokens_max=16, retained_slots=slots, ram_windows=ram_windows
    )


def make_service(
    engine: ReferenceEngine, recorder: Recorder | None = None, queue_max: int = 8
) -> Service:
    options = EngineOptions(
        context_tokens_max=engine.pages_total * engine.page_tokens,
        chunk_tokens_max=engine.chunk_tokens_max,
        default_tokens_max=32,
        queue_max=queue_max,
        decode_share_percent=25,
    )
    return EngineService(reference_core(engine), options, recorder)


def request(
    prompt: tuple[int, ...] = (1, 2, 3),
    *,
    max_tokens: int | None = 5,
    stop_ids: frozenset[int] = frozenset(),
    request_id: str = "r",
    logprobs: int | None = None,
    request_class: RequestClass = "interactive",
    marks: tuple[Mark, ...] = (),
) -> SequenceRequest:
    return SequenceRequest(
        request_id,
        prompt,
        max_tokens,
        SamplingParams(temperature=0.0, logprobs=logprobs),
        stop_ids,
        request_class,
        marks,
    )


def expected(asked: SequenceRequest, engine: ReferenceEngine) -> tuple[list[int], str]:
    """The witness's answer."""
    tokens_max = 32 if asked.max_tokens is None else asked.max_tokens
    return witness_text(asked.prompt, tokens_max, asked.stop_ids, engine.vocab, engine.seed)


async def read(stream: Stream) -> tuple[list[int], str | None, str | None]:
    """All tokens, the finish reason and the error."""
    tokens: list[int] = []
    reason = error = None
    async for batch in stream:
        assert reason is None, "nothing follows the last batch"
        tokens += [token.token for token in batch.tokens]
        reason, error = batch.finish_reason, batch.error
    return tokens, reason, error


async def until(condition: object, timeout_s: float = 10.0) -> None:
    """Wait for a callable to be true; what it waits for is a thread's doing."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)
