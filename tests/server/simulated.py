"""`ignis serve` with the simulated engine: the real process, socket, signals and routes.

`python -m tests.server.simulated BIND DRAIN_SECONDS ROUND_SECONDS LOAD_SECONDS`; a BIND of
`unix:PATH` works too. The model is the witness, so an answer is a function of its prompt.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from ignis.config import Config, load_config
from ignis.engine.api import EngineOptions
from ignis.engine.service import EngineService
from ignis.errors import IgnisError
from ignis.plan import CPU, Model, Plan
from ignis.plan.ask import Ask, Sizes
from ignis.plan.plan import ask_for, plan_ask
from ignis.server import run
from ignis.server.loading import facts_of
from ignis.server.serving import LoadedModel
from tests.simulation.reference_engine import ReferenceEngine, reference_core
from tests.unit.server.scripted import TOKENIZER, ScriptedService, loaded

MODEL = Model(
    path="tiny",
    name="tiny",
    architecture="llama",
    format="gguf",
    quantisation="F32 1",
    parameters=1,
    stored_bytes=1,
    layers=1,
    hidden=1,
    ffn=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    vocab=TOKENIZER.vocab_size,
    context_trained=4096,
)
FREE_BYTES = 1 << 33


class NoCore:
    """Free memory that never changes."""

    def free_bytes(self, device: str) -> int:
        return FREE_BYTES


class SlowEngine(ReferenceEngine):
    """The twin at a pace at which a test can watch."""

    round_seconds = 0.0

    def finish_round(self, *arguments: Any) -> int:
        time.sleep(self.round_seconds)
        return super().finish_round(*arguments)


def sizes_of(ask: Ask) -> Sizes:
    return Sizes((("weights", 1 << 20),), 1 << 16, 64)


def plan_model(config: Config, console: object) -> Plan:
    return plan_ask(ask_for(config, MODEL, CPU, FREE_BYTES), MODEL, CPU, sizes_of)


def main() -> int:
    bind, drain_seconds, round_seconds, load_seconds = sys.argv[1:]
    SlowEngine.round_seconds = float(round_seconds)

    @asynccontextmanager
    async def running_model(
        config: Config, plan: Plan, metrics: Any, console: object
    ) -> AsyncIterator[tuple[LoadedModel, EngineService[Any, Any]]]:
        await asyncio.sleep(float(load_seconds))
        engine = SlowEngine(plan.lanes, plan.pages, 512, vocab=TOKENIZER.vocab_size)
        options = EngineOptions(
            context_tokens_max=plan.context_tokens,
            chunk_tokens_max=512,
            default_tokens_max=8,
            queue_max=config.server.queue_max,
            decode_share_percent=50,
        )
        async with EngineService(reference_core(engine), options, metrics) as service:
            model = loaded(ScriptedService())
            yield replace(model, service=service, facts=facts_of(plan)), service

    vars(run).update(plan_model=plan_model, running_model=running_model, NativeCore=NoCore)
    flags = {"server.bind": bind, "server.drain_timeout": drain_seconds, "model.lanes": "4"}
    try:
        return run.serve(load_config(flags, environ={}))
    except IgnisError as error:
        print(f"ignis: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
