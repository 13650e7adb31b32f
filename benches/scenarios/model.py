"""A loaded model in this process, and what it was seen to do: requests by token ids.

Scenarios compare token ids, which HTTP does not tell; the prompts, their marks and the service are
those of the server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from ignis.config import load_config
from ignis.engine.api import RequestClass, SamplingParams, SequenceRequest
from ignis.engine.metrics import Fact, NoMetrics, RoundStats
from ignis.server.conversation import conversation_prompt
from ignis.server.field_tables import CHAT
from ignis.server.loading import plan_model, running_model
from ignis.server.prompts import Prompt
from ignis.server.serving import LoadedModel


class Recorder(NoMetrics):
    """What the engine reported, with times in seconds since the recorder was made."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.facts: Counter[str] = Counter()
        self.rounds: list[tuple[float, RoundStats]] = []
        self.gaps_moving: list[float] = []  # between tokens, while a window moved in the round
        self.gaps_still: list[float] = []
        self._gaps: list[float] = []

    def fact(self, fact: Fact) -> None:
        """Count it under its name, and under its name with tier and kind."""
        self.facts[fact.name] += fact.amount
        label = ", ".join(word for word in (fact.tier, fact.kind) if word)
        if label:
            self.facts[f"{fact.name} ({label})"] += fact.amount

    def token_gap(self, request_class: RequestClass, gap_s: float) -> None:
        """Kept until the round that ended it tells whether something moved."""
        self._gaps.append(gap_s)

    def round_done(self, stats: RoundStats) -> None:
        """Sort the gaps, keep the state."""
        moved = stats.moving_out or stats.moving_in
        (self.gaps_moving if moved else self.gaps_still).extend(self._gaps)
        self._gaps.clear()
        self.rounds.append((time.monotonic() - self.began, stats))


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its answer."""

    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int
    request_class: RequestClass
    ids: tuple[int, ...]
    outcome: str
    ttft_s: float
    cached_tokens: int
    moves: int
    prefilled_again: int

    @property
    def question(self) -> tuple[object, ...]:
        """What its answer is a function of."""
        return self.prompt.ids, self.sampling, self.max_tokens


@dataclass(slots=True)
class Run:
    """A model that serves, and all that it was asked."""

    model: LoadedModel
    recorder: Recorder
    pages_total: int
    asked: list[Asked] = field(default_factory=list)

    async def chat(
        self, messages: list[dict[str, str]], sampling: SamplingParams, max_tokens: int, cls: str
    ) -> str:
        """Ask a conversation; returns the answer's text."""
        fields = CHAT.parse({"model": self.model.id, "messages": messages})
        prompt = await conversation_prompt(fields, self.model)
        answer = await self.ask(prompt, sampling, max_tokens, cls)
        return self.model.tokenizer.decode(list(answer.ids))

    async def ask(
        self, prompt: Prompt, sampling: SamplingParams, max_tokens: int, cls: str
    ) -> Asked:
        """Ask a prompt and keep the answer; nothing but its cap ends it."""
        request = SequenceRequest(
            request_id=f"{cls} {len(self.asked)}",
            prompt=prompt.ids,
            max_tokens=max_tokens,
            sampling=sampling,
            request_class="agent" if cls == "agent" else "interactive",
            marks=prompt.marks,
        )
        ids: list[int] = []
        outcome = "error"
        async with self.model.service.submit(request) as stream:
            async for batch in stream:
                ids += [token.token for token in batch.tokens]
                outcome = batch.finish_reason or outcome
        times = stream.times
        assert times.first_token is not None, f"{request.request_id}: {outcome}"
        asked = Asked(
            prompt=prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            request_class=request.request_class,
            ids=tuple(ids),
            outcome=outcome,
            ttft_s=times.first_token - times.submitted,
            cached_tokens=stream.cached_tokens,
            moves=stream.moves,
            prefilled_again=stream.prefilled_again,
        )
        self.asked.append(asked)
        return asked


@asynccontextmanager
async def loaded(options: Mapping[str, object]) -> AsyncIterator[Run]:
    """A model loaded with these options, keys as in a configuration file, until the block ends."""
    config = load_config({key: str(value) for key, value in options.items()}, environ={})
    console = Console(stderr=True, quiet=True)
    plan = plan_model(config, console)
    recorder = Recorder()
    async with running_model(config, plan, recorder, console) as (model, _):
        run = Run(model, recorder, plan.pages)
        yield run
        del run.model  # its memory is needed for the next one; what was asked stays


def percentiles(seconds: list[float]) -> dict[str, Any]:
    """Count, median, 99th percentile and maximum, in milliseconds."""
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3)

    return {"count": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}
