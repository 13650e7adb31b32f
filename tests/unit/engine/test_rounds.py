"""What is done between two rounds, and what beside the next one."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ignis.admission import reserve
from ignis.admission.reservation import Room
from ignis.engine import EngineFailed, QueueFull, SamplingParams, SequenceRequest
from ignis.engine.rounds import RoundRunner
from ignis.engine.scheduler import SchedulerLimits
from ignis.engine.seats import State
from ignis.engine.sequence import Handover, Sequence
from ignis.engine.thread import EngineThread
from tests.simulation.reference_engine import ReferenceEngine, reference_core
from tests.simulation.reference_lanes import ReferenceOut
from tests.unit.engine.recorder import Recorder, expected, make_gated, make_service, read, request
from tests.unit.engine.recorder import until as eventually
from tests.unit.engine.stage import GREEDY, Stage


@dataclass
class LoggingEngine(ReferenceEngine):
    """Says what it is asked, in order, and may fail."""

    log: list[str] = field(default_factory=list)
    fail_begin: int = -1  # number of the round
    fail_finish: int = -1

    def begin_round(self, *arguments: object) -> bool:
        self.log.append("begin")
        super().begin_round(*arguments)  # type: ignore[arg-type]
        if self.rounds + 1 == self.fail_begin:
            self._begun = None
            raise RuntimeError("it would not start")
        return self.starts

    def finish_round(self, out: ReferenceOut) -> int:
        self.log.append("finish")
        if self.rounds + 1 == self.fail_finish:
            raise RuntimeError("it stopped half way")
        return super().finish_round(out)

    def advance(self, wait_us: int) -> list[tuple[int, int, bool, str]]:
        self.log.append("advance")
        return super().advance(wait_us)

    def release(self, lane: int) -> None:
        self.log.append("release")
        super().release(lane)

    def admit(self, *arguments: object, **named: object) -> None:
        self.log.append("admit")
        super().admit(*arguments, **named)  # type: ignore[arg-type]


def logging_engine(**sizes: object) -> LoggingEngine:
    return LoggingEngine(lanes_max=2, pages_total=8, chunk_tokens_max=16, **sizes)  # type: ignore[arg-type]


def sequence(
    key: int, prompt: list[int], tokens_max: int, stops: frozenset[int] = frozenset()
) -> Sequence:
    reservation = reserve(len(prompt), tokens_max, Room(512, 8, 64, 16))
    tokens = array("I", prompt)
    return Sequence(key, tokens, len(prompt), reservation, GREEDY, stops, "interactive")


Runner = RoundRunner[SamplingParams, ReferenceOut]


def runner_of(engine: ReferenceEngine) -> Runner:
    limits = SchedulerLimits(engine.lanes_max, engine.pages_total, 16, 8, 0)
    return RoundRunner(reference_core(engine), limits)


def turn(runner: Runner, between: Callable[[], object] = lambda: None) -> Handover:
    runner.finish()
    between()
    runner.begin()
    handover = runner.give()
    runner.advance()
    return handover


# --- the order --------------------------------------------------------------------------------


def run_thread(engine: LoggingEngine, *sequences: Sequence) -> list[Handover]:
    """The engine thread, until all have ended; hand-overs stand in the engine's log."""
    given: list[Handover] = []
    open_keys = {one.key for one in sequences}
    done = threading.Event()

    def hand_over(handover: Handover) -> None:
        tokens = sum(one.token is not None for one in handover.deliveries)
        engine.log.append(f"tokens {tokens}")
        given.append(handover)
        open_keys.difference_update(one.key for one in handover.deliveries if one.finish_reason)
        if not open_keys or handover.failure is not None:
            done.set()

    thread = EngineThread(runner_of(engine), hand_over, clock=lambda: 0.0)
    for one in sequences:
        thread.submit(one)
    thread.start()
    assert done.wait(10)
    thread.stop()
    thread.join()
    return given


@pytest.mark.parametrize("starts", [True, False])
def test_tokens_are_handed_over_after_the_next_round_began_and_before_it_is_finished(
    starts: bool,
) -> None:
    engine = logging_engine()
    engine.starts = starts
    run_thread(engine, sequence(0, [1], 3))
    assert engine.log[: engine.log.index("release") + 2] == [
        *("admit", "begin", "tokens 0", "finish"),
        *("begin", "tokens 1", "finish"),
        *("begin", "tokens 1", "finish"),
        *("release", "tokens 1"),
    ]


def test_a_transfer_is_advanced_beside_a_round_and_told_with_the_next_hand_over() -> None:
    engine = logging_engine(ram_windows=8)
    stage = Stage(engine=engine)
    for at in range(2):
        stage.submit([at], 60, "agent")
    stage.rounds(3)
    stage.submit([9], 2)
    engine.log.clear()
    assert turn(stage.runner).facts == ()
    assert engine.log == ["begin", "advance"]
    handover = turn(stage.runner)
    assert [fact.name for fact in handover.facts] == ["evicted"]
    assert [note.what for note in handover.notes] == ["evicted"]
    assert engine.log == ["begin", "advance", "finish", "admit", "begin"]


def test_who_comes_during_a_round_is_seated_after_it() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    runner.submit(sequence(0, [1], 9))
    turn(runner)
    runner.submit(sequence(1, [2], 9))
    assert engine.log.count("admit") == 1
    handover = turn(runner)
    assert engine.log.count("admit") == 2
    assert handover.admitted == (1,)
    assert [one.key for one in handover.deliveries] == [0]


def test_who_comes_while_the_thread_waits_for_a_round_is_in_the_next() -> None:
    runner = runner_of(logging_engine())
    runner.submit(sequence(0, [1], 9))
    turn(runner)
    assert turn(runner, lambda: runner.submit(sequence(1, [2], 9))).admitted == (1,)


# --- who leaves, and who ends -----------------------------------------------------------------


def test_a_cancel_during_its_round_frees_the_lane_at_the_end_of_it_and_drops_the_token() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    for key in range(2):
        runner.submit(sequence(key, [key], 9))
    for _ in range(3):
        turn(runner)
    runner.cancel(0)
    runner.cancel(0)
    assert engine.log[-1] == "begin", "not before the round is done"
    assert [one.key for one in turn(runner).deliveries] == [1]
    assert engine.log[-3:] == ["finish", "release", "begin"]
    assert engine.pages_free() == 7


def test_a_cancel_during_a_round_that_it_is_not_in_counts_at_once() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    for key in range(3):
        runner.submit(sequence(key, [key], 9))
    turn(runner)
    runner.cancel(2)
    assert runner.scheduler.waiting_count == 0
    runner.cancel(1)  # seated, and its prompt is not the one in the round
    assert engine.log[-1] == "release"
    assert runner.scheduler.open_count == 1


def test_who_leaves_with_its_round_holds_no_place_in_the_queue() -> None:
    runner = runner_of(logging_engine())
    for key in range(10):
        runner.submit(sequence(key, [key], 9))
    turn(runner)
    with pytest.raises(QueueFull):
        runner.submit(sequence(10, [1], 9))
    runner.cancel(0)
    runner.submit(sequence(10, [1], 9))
    with pytest.raises(QueueFull):
        runner.submit(sequence(11, [1], 9))


def test_a_cancel_between_two_rounds_counts_for_the_next() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    runner.submit(sequence(0, [1], 9))
    turn(runner)
    turn(runner, lambda: runner.cancel(0))
    assert engine.log[-1] == "release"
    assert not runner.has_work


def test_a_prompt_that_is_cancelled_in_its_last_chunk_leaves_nothing() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    runner.submit(sequence(0, [1] * 20, 9))
    turn(runner)
    turn(runner)
    runner.cancel(0)
    assert turn(runner).deliveries == ()
    assert engine.pages_free() == 8
    assert not runner.has_work


def test_a_stop_in_the_last_round_ends_the_sequence_and_the_engine_rests() -> None:
    engine = logging_engine()
    text, _ = expected(request(prompt=(5,), max_tokens=9), engine)
    given = run_thread(engine, sequence(0, [5], 9, frozenset({text[2]})))
    ends = [one for handover in given for one in handover.deliveries if one.finish_reason]
    assert [(one.token and one.token.token, one.finish_reason) for one in ends] == [
        (text[2], "stop")
    ]
    assert engine.rounds == text.index(text[2]) + 1, "no round was begun for who had stopped"
    assert engine.log.count("begin") == engine.log.count("finish") == engine.rounds


def test_without_work_a_turn_begins_nothing() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    assert not runner.has_work
    handover = turn(runner)
    assert (handover.deliveries, engine.log) == ((), [])
    assert handover.stats is not None
    assert (handover.stats.duration_s, handover.stats.gap_s) == (0.0, None)


def test_only_a_round_right_after_another_has_a_gap() -> None:
    runner = runner_of(logging_engine())
    gaps = []
    for _ in range(2):
        runner.submit(sequence(0, [1], 3))
        while runner.has_work:
            stats = turn(runner).stats
            assert stats is not None
            if stats.tokens:
                gaps.append(stats.gap_s)
    assert [gap is None for gap in gaps] == [True, False, False] * 2
    assert all(gap is None or gap > 0 for gap in gaps)


def test_a_closed_runner_has_finished_its_round() -> None:
    engine = logging_engine()
    runner = runner_of(engine)
    runner.submit(sequence(0, [1], 9))
    turn(runner)
    runner.close()
    assert engine.log[-2:] == ["finish", "release"]
    assert engine.pages_free() == 8


async def test_a_stop_gives_what_the_round_in_hand_gave() -> None:
    engine, recorder = make_gated(), Recorder()
    service = make_service(engine, recorder)
    service.start()
    stream = service.submit(request(max_tokens=50))
    engine.permit(2)
    await eventually(lambda: stream.generated == 2)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.01)
    engine.permit(1)
    await stopping
    tokens, reason, _ = await read(stream)
    assert (len(tokens), reason) == (3, "error")
    assert engine.rounds == 3


# --- what has landed beside a round -----------------------------------------------------------


def test_who_lands_beside_a_round_has_not_computed_in_it() -> None:
    """Else it could be moved again before it did anything, and never get on."""
    stage = Stage(lanes=2, pages=8, ram=8)
    agent = stage.submit([1] * 5, 60, "agent")
    steady = stage.submit([2], 100)
    stage.rounds(4)
    stage.submit([3], 3)
    stage.until(agent, State.PARKED)
    runner = stage.runner
    while stage.state(agent) is not State.RUNNING:
        handover = turn(runner)
        for key, token, _, _ in handover.deliveries:
            assert token is not None
            stage.text[key].append(token.token)
    assert stage.seat(agent).fresh
    before = len(stage.seat(agent).tokens)
    runner.finish()
    assert stage.seat(agent).fresh
    stage.submit([4], 2)
    runner.begin()
    assert stage.state(agent) is State.RUNNING, "it computes first"
    runner.finish()
    assert len(stage.seat(agent).tokens) == before + 1
    assert not stage.seat(agent).fresh
    assert stage.state(steady) is State.RUNNING


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["fail_begin", "fail_finish"])
async def test_a_fault_ends_every_stream_after_what_was_drawn_before_it(at: str) -> None:
    engine, recorder = logging_engine(**{at: 4}), Recorder()
    asked = SequenceRequest("r", (1, 2), 50, GREEDY)
    async with make_service(engine, recorder) as service:
        stream = service.submit(asked)
        tokens, reason, error = await read(stream)
        assert not service.healthy
        with pytest.raises(EngineFailed):
            service.submit(asked)
    assert tokens == expected(asked, engine)[0][:3]
    assert reason == "error"
    assert error is not None
    assert error.startswith("the engine stopped: RuntimeError: it ")
    assert recorder.outcomes == {"error": 1}


async def test_who_ended_in_the_round_before_a_fault_has_ended_well() -> None:
    engine = logging_engine(fail_begin=3)
    async with make_service(engine) as service:
        streams = [
            service.submit(request((at,), max_tokens=tokens)) for at, tokens in ((1, 1), (2, 9))
        ]
        results = await asyncio.gather(*map(read, streams))
    assert [reason for _, reason, _ in results] == ["length", "error"]
