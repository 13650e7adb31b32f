"""Many clients at once on the engine thread: some read slowly, some leave, all totals agree."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from ignis.engine import (
    EngineFailed,
    EngineOptions,
    EngineService,
    Mark,
    QueueFull,
    SequenceRequest,
)
from tests.simulation import cores
from tests.simulation.driver import GREEDY, CoreFactory
from tests.simulation.shapes import Shape
from tests.simulation.witness import witness_text
from tests.unit.engine.recorder import Recorder

SHAPE = Shape(
    lanes_max=4,
    pages_total=12,
    chunk_tokens_max=32,
    context_tokens_max=512,
    vocab=101,
    seed=11,
)
HEAD = tuple(range(100))  # what prompts have in common
TIERED = replace(SHAPE, retained_device=1, retained_host=2, ram_windows=6, disk_windows=12)
CORES = [cores.native, cores.reference]


@pytest.mark.parametrize("make_core", CORES)
@pytest.mark.parametrize("shape", [SHAPE, TIERED])
@pytest.mark.parametrize("seed", range(3))
async def test_many_clients_get_their_text_and_every_outcome_is_counted(
    make_core: CoreFactory, shape: Shape, seed: int
) -> None:
    draw = random.Random(seed)
    core, recorder = make_core(shape), Recorder()
    options = EngineOptions(
        context_tokens_max=256,
        chunk_tokens_max=32,
        default_tokens_max=24,
        queue_max=16,
        decode_share_percent=25,
    )
    seen: Counter[str] = Counter()

    async def client(name: int) -> None:
        length = draw.choice([1, 20, 63, 64, 65, 200])
        prompt = (*HEAD[: length // 2], *(draw.randrange(101) for _ in range(-(-length // 2))))
        stop_ids = frozenset(draw.sample(range(101), 2))
        asked = SequenceRequest(
            f"client {name}",
            prompt,
            draw.choice([1, 7, 40, None]),
            GREEDY,
            stop_ids,
            draw.choice(["interactive", "agent"]),
            (Mark(64, "prefix"), Mark(length - 1, "checkpoint")),
        )
        kind = draw.choice(["fast", "slow", "leaves", "leaves at once"])
        text: list[int] = []
        reason: str | None = None
        await asyncio.sleep(draw.random() * 0.2)
        while True:
            try:
                stream = service.submit(asked)
                break
            except QueueFull:
                seen["full"] += 1
                await asyncio.sleep(0.005)
        async with stream:
            if kind == "leaves at once":
                stream.cancel()
            async for batch in stream:
                text += [token.token for token in batch.tokens]
                reason = batch.finish_reason
                if kind == "slow":
                    await asyncio.sleep(0.01)
                if kind == "leaves" and reason is None and draw.random() < 0.3:
                    reason = "cancelled"
                    break
        assert reason is not None
        seen[reason] += 1
        assert stream.finish_reason == reason
        right = witness_text(prompt, stream.tokens_max, stop_ids, SHAPE.vocab, SHAPE.seed)
        if reason == "cancelled":
            assert text == right[0][: len(text)]
        else:
            assert (text, reason) == right

    async with EngineService(core, options, recorder) as service:
        await asyncio.gather(*(client(name) for name in range(150)))
        assert service.open_count == 0
        assert await service.drain(5.0)
    full = seen.pop("full", 0)
    assert recorder.outcomes == seen
    assert recorder.refused["queue_full"] == full
    assert recorder.submitted == 150
    assert core.engine.pages_free() == SHAPE.pages_total
    assert core.engine.windows_free(0) == core.engine.windows_total(0)
    assert (shape is TIERED) == any(fact.name == "retained_hit" for fact in recorder.facts)


@pytest.mark.parametrize("make_core", CORES)
async def test_sixteen_equal_prompts_half_of_them_left_leave_no_page(
    make_core: CoreFactory,
) -> None:
    core = make_core(SHAPE)
    options = EngineOptions(256, 32, 24, 16, 25)
    prompt = tuple(range(100))
    async with EngineService(core, options) as service:
        streams = [
            service.submit(SequenceRequest(f"r{at}", prompt, 20, GREEDY)) for at in range(16)
        ]
        await asyncio.sleep(0.002)
        for stream in streams[::2]:
            stream.cancel()
        right = witness_text(prompt, 20, frozenset(), SHAPE.vocab, SHAPE.seed)
        for stream in streams[1::2]:
            text = [token.token async for batch in stream for token in batch.tokens]
            assert (text, stream.finish_reason) == right
    assert core.engine.pages_free() == SHAPE.pages_total


@pytest.mark.parametrize("seed", range(4))
async def test_a_device_fault_ends_every_stream_and_nothing_hangs(seed: int) -> None:
    recorder = Recorder()
    core = cores.native(replace(SHAPE, seed=seed), fault_ppm=10_000)
    options = EngineOptions(512, 32, 24, 16, 25)
    async with EngineService(core, options, recorder) as service, asyncio.timeout(30):
        refused = 0
        while service.healthy:
            streams = []
            for at in range(16):
                try:
                    streams.append(service.submit(SequenceRequest(f"{at}", (at,), 20, GREEDY)))
                except EngineFailed:
                    refused += 1
            for stream in streams:
                async for batch in stream:
                    assert (batch.error is None) == (batch.finish_reason != "error")
        assert service.failure is not None
        assert service.failure.startswith("DeviceFaultError")
        with pytest.raises(EngineFailed):
            service.submit(SequenceRequest("late", (1,), 20, GREEDY))
        assert await service.drain(1.0)
    assert recorder.outcomes["error"] > 0
    assert recorder.outcomes.total() == recorder.submitted
    assert recorder.refused["failed"] == refused + 1


@pytest.mark.parametrize("make_core", CORES)
async def test_eight_requests_of_four_tenths_of_the_pool_all_finish(
    make_core: CoreFactory,
) -> None:
    core, recorder = make_core(SHAPE), Recorder()
    options = EngineOptions(512, 32, 24, 16, 25)
    async with EngineService(core, options, recorder) as service:
        streams = [
            service.submit(SequenceRequest(f"r{at}", (at,) * 200, 100, GREEDY)) for at in range(8)
        ]
        for stream in streams:
            async for _ in stream:
                pass
    assert recorder.outcomes == {"length": 8}
    assert max(stats.running for stats in recorder.rounds) == 2
