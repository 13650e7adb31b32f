"""A small model with recurrent state, served in this process over a KV-disk in a folder."""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignis.config import load_config
from ignis.engine import EngineOptions, EngineService, SamplingParams, SequenceRequest, native_core
from ignis.engine.api import Mark, RequestClass
from ignis.engine.load import load_engine
from ignis.engine.metrics import Fact, NoMetrics, RoundStats
from ignis.plan import make_plan

GOLDENS = Path(__file__).parents[1] / "golden"
HYBRID = GOLDENS / "qwen3_5"
DENSE = GOLDENS / "qwen3"
FILE = "kv-disk.ignis"
VOCAB = 512


class Recorder(NoMetrics):
    """Facts by name, and the state after the last round."""

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()
        self.last: RoundStats | None = None

    def fact(self, fact: Fact) -> None:
        """Count it."""
        self.facts[fact.name] += fact.amount

    def round_done(self, stats: RoundStats) -> None:
        """Keep the last."""
        self.last = stats


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was given."""

    ids: list[int]
    outcome: str | None
    cached_tokens: int
    source: str | None
    moves: int
    prefilled_again: int


@dataclass(slots=True)
class Served:
    """A running service."""

    service: Any
    engine: Any
    recorder: Recorder = field(default_factory=Recorder)

    async def ask(
        self,
        prompt: list[int],
        tokens: int,
        request_class: RequestClass = "interactive",
        marks: tuple[Mark, ...] = (),
    ) -> Answer:
        """A request with a seed and penalties, so that all of its state matters."""
        request = SequenceRequest(
            request_id=f"{request_class} {len(prompt)}",
            prompt=tuple(prompt),
            max_tokens=tokens,
            sampling=SamplingParams(
                temperature=0.8, seed=5, repetition_penalty=1.1, frequency_penalty=0.1
            ),
            request_class=request_class,
            marks=marks,
        )
        ids: list[int] = []
        outcome = None
        async with self.service.submit(request) as stream:
            async for batch in stream:
                ids += [token.token for token in batch.tokens]
                outcome = batch.finish_reason or outcome
        return Answer(
            ids,
            outcome,
            stream.cached_tokens,
            stream.reuse_source,
            stream.moves,
            stream.prefilled_again,
        )

    async def until(self, state: Callable[[RoundStats], bool], seconds: float = 20.0) -> None:
        """Wait for a state after some round."""
        async with asyncio.timeout(seconds):
            while self.recorder.last is None or not state(self.recorder.last):
                await asyncio.sleep(0.0005)

    def is_idle(self) -> bool:
        """Whether nothing is held that requests hold."""
        last = self.recorder.last
        assert last is not None
        return (last.running, last.waiting, last.parked) == (0, 0, 0)


@asynccontextmanager
async def serving(folder: Path, model: Path = HYBRID, **options: str) -> AsyncIterator[Served]:
    """Two lanes of 512 tokens and, unless named, a pool of one sequence and KV-disk alone."""
    given = {
        "model.path": str(model),
        "model.max_context": "512",
        "model.lanes": "2",
        "model.prefill_chunk": "64",
        "vram.kv_pool_bytes": "512tok",
        "reuse.prompt": "off",
        "reuse.kv_host_pool_bytes": "0",
        "kv_disk.bytes": "32M",
        "kv_disk.path": str(folder),
        "kv_disk.margin_bytes": "64M",
    }
    given |= {key.replace("__", "."): value for key, value in options.items()}
    config = load_config(given, environ={})
    plan = make_plan(config, model)
    engine = load_engine(plan)
    options_of_engine = EngineOptions(
        context_tokens_max=plan.context_tokens,
        chunk_tokens_max=plan.chunk_tokens,
        default_tokens_max=64,
        queue_max=16,
        decode_share_percent=50,
        reuse_prompt=config.reuse.prompt,
    )
    recorder = Recorder()
    async with EngineService(native_core(engine), options_of_engine, recorder) as service:
        served = Served(service, engine, recorder)
        yield served
        assert engine.plan_allocations_after_seal() == 0
    # The file is locked as long as anyone holds the engine, and the test still holds `served`.
    served.service = served.engine = None
    del engine, service
    await asyncio.sleep(0.01)  # what the engine thread handed over last is read, and let go
    gc.collect()


def prompt(length: int, salt: int = 0) -> list[int]:
    """Ids that look random and are the same in every run."""
    state, ids = 12345 + salt, array("I")
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(state % VOCAB)
    return list(ids)


async def alone(folder: Path, ids: list[int], tokens: int, model: Path = HYBRID) -> list[int]:
    """The answer of a service that keeps nothing and was asked nothing else."""
    async with serving(folder, model, kv_disk__bytes="0", vram__kv_pool_bytes="1024tok") as served:
        return (await served.ask(ids, tokens)).ids
