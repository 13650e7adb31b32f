"""What a client of the service sees, on the naive engine."""

from __future__ import annotations

import asyncio
import time

import pytest
import structlog

from ignis.engine import Draining, EngineFailed, NeverFits, QueueFull
from ignis.errors import RequestError
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


async def test_a_stream_gives_the_text_and_then_its_finish_reason() -> None:
    engine = make_engine()
    asked = request(max_tokens=9)
    async with make_service(engine) as service, service.submit(asked) as stream:
        tokens, reason, error = await read(stream)
    assert (tokens, reason) == expected(asked, engine)
    assert (reason, error, stream.finish_reason) == ("length", None, "length")
    assert engine.pages_free() == engine.pages_total


async def test_a_stop_token_is_reported_and_ends_the_sequence() -> None:
    engine = make_engine()
    text, _ = expected(request(max_tokens=9), engine)
    asked = request(max_tokens=9, stop_ids=frozenset({text[3]}))
    async with make_service(engine) as service, service.submit(asked) as stream:
        assert await read(stream) == (text[: text.index(text[3]) + 1], "stop", None)


async def test_alternatives_are_given_only_where_asked() -> None:
    engine = make_engine()
    async with make_service(engine) as service:
        async with service.submit(request(max_tokens=1, logprobs=2)) as stream:
            batch = await anext(stream)
        (token,) = batch.tokens
        assert token.logprob == -0.5
        assert token.top == ((token.token, -0.5), ((token.token + 1) % engine.vocab, -1.5))
        async with service.submit(request(max_tokens=1)) as stream:
            (token,) = (await anext(stream)).tokens
        assert (token.logprob, token.top) == (0.0, ())


async def test_no_cap_means_the_default() -> None:
    asked = request(max_tokens=None)
    async with make_service(make_engine()) as service, service.submit(asked) as stream:
        assert stream.tokens_max == 32
        tokens, reason, _ = await read(stream)
    assert (len(tokens), reason) == (32, "length")


async def test_a_request_that_fills_the_pool_runs() -> None:
    engine = make_engine(lanes_max=2, pages_total=2)
    asked = request(prompt=tuple(range(90)), max_tokens=38)
    async with make_service(engine) as service:
        streams = [service.submit(asked) for _ in range(3)]
        results = await asyncio.gather(*(read(stream) for stream in streams))
    assert [(tokens, reason) for tokens, reason, _ in results] == [expected(asked, engine)] * 3


@pytest.mark.parametrize("extra", [0, 1, 5000])
async def test_what_never_fits_is_refused_at_submit_and_leaves_nothing(extra: int) -> None:
    recorder = Recorder()
    async with make_service(make_engine(), recorder) as service:
        with pytest.raises(NeverFits) as refused:
            service.submit(request(prompt=(1,) * (8 * 64 + extra)))
        assert (refused.value.needed, refused.value.limit) == (512 + extra, 512)
        assert service.open_count == 0
    assert recorder.refused == {"never_fits": 1}
    assert recorder.submitted == 0


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (request(prompt=()), "prompt"),
        (request(prompt=(1, 97)), "prompt"),
        (request(prompt=(-1, 2)), "prompt"),
        (request(prompt=(1, 1 << 70)), "prompt"),
        (request(max_tokens=0), "max_tokens"),
        (request(max_tokens=-5), "max_tokens"),
    ],
)
async def test_what_makes_no_sense_names_its_field(asked: object, param: str) -> None:
    async with make_service(make_engine()) as service:
        with pytest.raises(RequestError) as refused:
            service.submit(asked)  # type: ignore[arg-type]
        assert refused.value.param == param


async def test_a_full_queue_refuses_and_opens_again_when_a_stream_is_read() -> None:
    engine, recorder = make_gated(lanes_max=2), Recorder()
    async with make_service(engine, recorder, queue_max=1) as service:
        streams = [service.submit(request(max_tokens=2)) for _ in range(3)]
        with pytest.raises(QueueFull) as refused:
            service.submit(request())
        assert (refused.value.open_count, refused.value.open_max) == (3, 3)
        engine.permit(100)
        await read(streams[0])
        streams.append(service.submit(request(max_tokens=1)))
        await asyncio.gather(*(read(stream) for stream in streams[1:]))
    assert recorder.refused == {"queue_full": 1}
    assert recorder.outcomes == {"length": 4}


async def test_a_slow_reader_holds_up_nobody_and_gets_all_at_once() -> None:
    engine = make_engine()
    asked = request(prompt=(7,), max_tokens=300)
    async with make_service(engine) as service:
        slow = service.submit(asked)
        tokens, reason, _ = await read(service.submit(request(max_tokens=200)))
        assert (len(tokens), reason) == (200, "length")
        await until(lambda: slow.ended)
        assert slow.buffered == 300 == slow.tokens_max
        # Its lane went to others long ago, though nothing of it was read.
        for _ in range(3):
            await read(service.submit(request()))
        batch = await anext(slow)
        assert ([token.token for token in batch.tokens], batch.finish_reason) == expected(
            asked, engine
        )
        with pytest.raises(StopAsyncIteration):
            await anext(slow)


async def test_an_unread_stream_counts_as_open_until_it_is_left() -> None:
    """So that what lies unread in all streams together has a maximum."""
    async with make_service(make_engine(lanes_max=1), queue_max=0) as service:
        unread = service.submit(request())
        await until(lambda: unread.ended)
        with pytest.raises(QueueFull):
            service.submit(request())
        unread.cancel()
        await read(service.submit(request()))


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "ended"])
async def test_a_cancel_frees_lane_and_pages_by_the_next_round(state: str) -> None:
    engine, recorder = make_gated(lanes_max=1, pages_total=2), Recorder()
    async with make_service(engine, recorder) as service:
        first = service.submit(request(max_tokens=2)) if state == "waiting" else None
        stream = service.submit(request(prompt=(1,) * 100, max_tokens=28))
        rounds = {"waiting": 0, "prefilling": 3, "decoding": 10, "ended": 7 + 27}[state]
        engine.permit(rounds)
        await until(lambda: sum(stats.duration_s > 0 for stats in recorder.rounds) == rounds)
        assert stream.ended == (state == "ended")
        stream.cancel()
        stream.cancel()
        assert await read(stream) == ([], "cancelled", None)
        after = service.submit(request(max_tokens=1))
        engine.permit(100)
        await read(after)
        if first is not None:
            await read(first)
    assert recorder.outcomes["cancelled"] == 1
    assert recorder.submitted == recorder.outcomes.total()
    assert engine.pages_free() == 2


async def test_after_a_cancel_no_gauge_is_stuck() -> None:
    engine, recorder = make_gated(), Recorder()
    async with make_service(engine, recorder) as service:
        stream = service.submit(request(max_tokens=50))
        engine.permit(3)
        await until(lambda: stream.generated == 3)
        stream.cancel()
        engine.permit(1)
        await until(lambda: recorder.rounds[-1].running == 0)
        last = recorder.rounds[-1]
        assert (last.waiting, last.pages_free) == (0, engine.pages_total)


async def test_a_reader_whose_task_is_cancelled_leaves() -> None:
    engine, recorder = make_gated(), Recorder()
    async with make_service(engine, recorder) as service:

        async def client() -> None:
            async with service.submit(request()) as stream:
                await read(stream)

        task = asyncio.create_task(client())
        await until(lambda: service.open_count == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.open_count == 0
        engine.permit(10)
    assert recorder.outcomes == {"cancelled": 1}


async def test_interactive_goes_before_agents_that_wait() -> None:
    engine = make_gated(lanes_max=1)
    order: list[str] = []
    async with make_service(engine) as service:

        async def client(name: str, kind: str) -> None:
            asked = request(request_class=kind)  # type: ignore[arg-type]
            await read(service.submit(asked))
            order.append(name)

        tasks = [asyncio.create_task(client(f"agent {at}", "agent")) for at in range(3)]
        await until(lambda: service.open_count == 3)
        tasks.append(asyncio.create_task(client("interactive", "interactive")))
        await until(lambda: service.open_count == 4)
        engine.permit(100)
        await asyncio.gather(*tasks)
    assert order[-2:] == ["agent 1", "agent 2"]
    assert set(order[:2]) == {"agent 0", "interactive"}


async def test_drain_finishes_what_is_open_and_refuses_what_comes() -> None:
    engine, recorder = make_gated(), Recorder()
    async with make_service(engine, recorder) as service:
        readers = [asyncio.create_task(read(service.submit(request()))) for _ in range(4)]
        await until(lambda: service.open_count == 4)
        drain = asyncio.create_task(service.drain(10.0))
        await until(lambda: service.draining)
        with pytest.raises(Draining):
            service.submit(request())
        engine.permit(100)
        assert await drain
        assert [reason for _, reason, _ in await asyncio.gather(*readers)] == ["length"] * 4
    assert recorder.refused == {"draining": 1}


async def test_a_drain_that_takes_too_long_says_so_and_stop_ends_the_rest() -> None:
    engine, recorder = make_gated(), Recorder()
    service = make_service(engine, recorder)
    service.start()
    stream = service.submit(request())
    assert not await service.drain(0.01)
    engine.permit(1)
    await service.stop()
    tokens, reason, error = await read(stream)
    assert reason == "error"
    assert error is not None
    assert "stopped" in error
    assert len(tokens) <= 1
    assert recorder.outcomes == {"error": 1}
    assert engine.pages_free() == engine.pages_total
    with pytest.raises(Draining):
        service.submit(request())


async def test_a_failed_round_ends_every_stream_and_nothing_hangs() -> None:
    engine, recorder = make_engine(), Recorder()
    engine.fail_at_round = 4
    async with make_service(engine, recorder) as service:
        streams = [service.submit(request(max_tokens=50)) for _ in range(5)]
        results = await asyncio.gather(*(read(stream) for stream in streams))
        for _, reason, error in results:
            assert reason == "error"
            assert error == "the engine stopped: RuntimeError: the device fell off the bus"
        assert not service.healthy
        assert service.failure == "RuntimeError: the device fell off the bus"
        with pytest.raises(EngineFailed):
            service.submit(request())
        assert await service.drain(1.0)
    assert recorder.outcomes == {"error": 5}
    assert recorder.refused == {"failed": 1}
    assert (recorder.rounds[-1].running, recorder.rounds[-1].waiting) == (0, 0)


async def test_a_sequence_that_the_engine_will_not_seat_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(lanes_max=2)
    admit = engine.admit

    def refuse_13(lane: int, tokens: object, *rest: object) -> None:
        if 13 in tokens:  # type: ignore[operator]
            raise ValueError("thirteen")
        admit(lane, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "admit", refuse_13)
    asked = [request(prompt=(at, 5)) for at in (12, 13, 14, 13, 15)]
    async with make_service(engine) as service:
        results = await asyncio.gather(*(read(service.submit(one)) for one in asked))
        assert service.healthy
    for one, (tokens, reason, error) in zip(asked, results, strict=True):
        if 13 in one.prompt:
            assert (tokens, reason) == ([], "error")
            assert error == "the engine refused the sequence: thirteen"
        else:
            assert (tokens, reason) == expected(one, engine)
    assert engine.pages_free() == engine.pages_total


async def test_without_work_the_engine_thread_sleeps() -> None:
    async with make_service(make_engine()) as service:
        await read(service.submit(request()))
        with pytest.raises(NeverFits):
            service.submit(request(prompt=(1,) * 1000))
        begin = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - begin < 0.05


async def test_a_round_is_handed_over_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, recorder = make_engine(lanes_max=4), Recorder()
    loop = asyncio.get_running_loop()
    calls = 0
    call_soon = loop.call_soon_threadsafe

    def counting(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return call_soon(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    async with make_service(engine, recorder) as service:
        streams = [service.submit(request(max_tokens=40)) for _ in range(4)]
        await asyncio.gather(*(read(stream) for stream in streams))
        # One more at most: a round that only empties lanes.
        assert calls <= engine.rounds + 1
    assert sum(stats.tokens for stats in recorder.rounds) == 160 > engine.rounds


async def test_times_and_log_events_follow_a_request() -> None:
    recorder = Recorder()
    with structlog.testing.capture_logs() as events:
        async with make_service(make_engine(), recorder) as service:
            stream = service.submit(request(request_id="abc", max_tokens=6))
            await read(stream)
    mine = [event for event in events if event.get("request_id") == "abc"]
    assert [event["event"] for event in mine] == [
        "ignis.request.admitted",
        "ignis.request.ttft",
        "ignis.request.done",
    ]
    assert (mine[2]["outcome"], mine[2]["completion_tokens"]) == ("length", 6)
    times = stream.times
    assert times.admitted is not None
    assert times.first_token is not None
    assert times.last_token is not None
    assert times.finished is not None
    assert times.submitted <= times.admitted <= times.first_token < times.last_token
    assert times.last_token == times.finished
    assert 0 < times.gap_max_s <= times.finished - times.first_token
    assert recorder.admitted == len(recorder.ttft_s) == 1
    assert recorder.gaps == 5
    assert recorder.completion_tokens == 6


async def test_a_stopped_service_was_perhaps_never_started() -> None:
    await make_service(make_engine()).stop()
