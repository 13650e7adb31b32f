"""What a client of the service is told of moves and of what was retained."""

from __future__ import annotations

import structlog

from ignis.engine import EngineOptions, EngineService, Fact, Mark
from tests.simulation.reference_engine import reference_core
from tests.unit.engine.recorder import (
    Recorder,
    expected,
    make_engine,
    make_gated,
    make_service,
    read,
    request,
    until,
)


async def test_a_client_is_told_what_of_its_prompt_was_not_computed() -> None:
    recorder = Recorder()
    asked = request(prompt=(7,) * 90, marks=(Mark(80, "checkpoint"),), request_id="abc")
    with structlog.testing.capture_logs() as events:
        async with make_service(make_engine(slots=1), recorder) as service:
            first = service.submit(asked)
            await read(first)
            second = service.submit(asked)
            await read(second)
    assert (first.cached_tokens, first.reuse_source) == (0, None)
    assert (second.cached_tokens, second.reuse_source) == (80, "device")
    done = [event for event in events if event["event"] == "ignis.request.done"]
    assert "reused_prompt_tokens" not in done[0]
    assert (done[1]["reused_prompt_tokens"], done[1]["reuse_source"]) == (80, "device")
    assert Fact("retained_reused_tokens", "device", "checkpoint", 80) in recorder.facts
    assert recorder.rounds[-1].retained_slots_used == 1


async def test_without_prompt_reuse_a_checkpoint_is_not_kept() -> None:
    engine = make_engine(slots=1)
    options = EngineOptions(512, 16, 32, 8, 25, reuse_prompt=False)
    asked = request(prompt=(7,) * 90, marks=(Mark(80, "checkpoint"),))
    async with EngineService(reference_core(engine), options) as service:
        for _ in range(2):
            stream = service.submit(asked)
            await read(stream)
            assert stream.cached_tokens == 0


async def test_a_client_whose_sequence_moved_is_told_so() -> None:
    engine, recorder = make_gated(lanes_max=1, ram_windows=4), Recorder()
    moved = request(max_tokens=40, request_class="agent", request_id="moved")
    with structlog.testing.capture_logs() as events:
        async with make_service(engine, recorder) as service:
            stream = service.submit(moved)
            engine.permit(5)
            await until(lambda: stream.generated == 5)
            other = service.submit(request(max_tokens=3))
            engine.permit(500)
            assert await read(stream) == (*expected(moved, engine), None)
            await read(other)
    assert (stream.moves, stream.prefilled_again) == (1, 0)
    ways = [(one["way"], one["tier"]) for one in events if one["event"].endswith("scheduler.moved")]
    assert ways == [("out", "kv_ram"), ("in", "kv_ram")]
    (done,) = (
        one
        for one in events
        if one["event"] == "ignis.request.done" and one["request_id"] == "moved"
    )
    assert done["moves"] == 1
    assert [fact.name for fact in recorder.facts] == ["evicted", "resumed"]
    assert max(stats.parked for stats in recorder.rounds) == 1
    assert max(stats.kv_ram_windows_used for stats in recorder.rounds) == 1
    assert recorder.rounds[-1].kv_ram_windows_used == 0
    assert recorder.admitted == 2, "a return is no second admission"
