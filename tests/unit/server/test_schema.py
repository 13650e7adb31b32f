"""Whatever our own description allows or forbids, the server answers as it describes.

The engine is the simulated one, so that a real scheduler and real pages are behind the routes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from ignis.engine.api import EngineOptions
from ignis.engine.service import EngineService
from ignis.server import openapi
from ignis.server.app import build_app
from ignis.server.serving import ServerSettings, Serving
from tests.simulation.reference_engine import ReferenceEngine, reference_core
from tests.unit.server.scripted import CONTEXT, TOKENIZER, NoMetrics, ScriptedService, loaded

CHECKS: list[schemathesis.CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    negative_data_rejection,
    status_code_conformance,
    response_schema_conformance,
]

pytestmark = pytest.mark.slow

schema = schemathesis.openapi.from_dict(openapi.describe("1"))


@dataclass
class Running:
    """A server on a loop of its own, in a thread."""

    loop: asyncio.AbstractEventLoop
    port: int = 0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server over the simulated engine."""
    running = Running(asyncio.new_event_loop())
    started, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        engine = ReferenceEngine(4, 64, 64, vocab=TOKENIZER.vocab_size)
        options = EngineOptions(
            chunk_tokens_max=64,
            context_tokens_max=CONTEXT,
            default_tokens_max=8,
            queue_max=64,
            decode_share_percent=50,
        )
        async with EngineService(reference_core(engine), options) as service:
            serving = Serving(ServerSettings(), NoMetrics(), "0.0.0")
            serving.loaded = replace(loaded(ScriptedService()), service=service)
            runner = web.AppRunner(build_app(serving), handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            running.port = runner.addresses[0][1]
            started.set()
            await stop.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: running.loop.run_until_complete(main()))
    thread.start()
    assert started.wait(10)
    yield f"http://127.0.0.1:{running.port}"
    running.loop.call_soon_threadsafe(stop.set)
    thread.join()


@schema.parametrize()
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_server_answers_as_described(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=10)
