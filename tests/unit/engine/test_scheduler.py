"""The scheduler's guarantees, one by one."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignis.admission.rank import Rank, RequestClass
from ignis.engine.actions import Admit, Release
from ignis.engine.errors import QueueFull
from ignis.engine.scheduler import Round, SchedulerLimits
from tests.unit.engine.counting_view import Counted


def limits(
    lanes: int = 2, pages: int = 8, chunk: int = 4, queue: int = 100, share: int = 0
) -> SchedulerLimits:
    return SchedulerLimits(lanes, pages, chunk, queue, share)


@dataclass
class Work:
    """A sequence of a scripted workload."""

    request_class: RequestClass
    arrives: int  # round number
    prompt_tokens: int
    tokens_max: int
    pages: int
    generated: int = 0
    submitted_round: int = -1
    admitted_round: int = -1
    rank: Rank = field(default_factory=lambda: Rank(0, 0))
    ahead: list[int] = field(default_factory=list)  # ran when it came


def run(limits: SchedulerLimits, script: list[Work], duration_us: int = 100) -> list[Round]:
    """Play the script to its end; each sequence ends at its cap."""
    counted = Counted(limits)
    scheduler, in_lane = counted.scheduler, counted.view.keys
    rounds: list[Round] = []
    arrivals = sorted(range(len(script)), key=lambda key: script[key].arrives)
    now = 0
    while arrivals or scheduler.has_work:
        while arrivals and script[arrivals[0]].arrives <= now:
            key = arrivals.pop(0)
            work = script[key]
            work.ahead = list(in_lane.values())
            work.submitted_round = now
            rank = counted.submit(key, work.request_class, work.prompt_tokens, work.pages)
            assert isinstance(rank, Rank)
            work.rank = rank
        for action in counted.act():
            if isinstance(action, Admit):
                script[action.key].admitted_round = now
        decided = scheduler.next_round()
        if decided.runs:
            rounds.append(decided)
            sampled = list(decided.decode_lanes)
            if decided.prefill_lane >= 0:
                work = script[in_lane[decided.prefill_lane]]
                work.prompt_tokens -= decided.prefill_tokens
                if not work.prompt_tokens:
                    sampled.append(decided.prefill_lane)
            scheduler.round_done(duration_us)
            for lane in sampled:
                key = in_lane[lane]
                script[key].generated += 1
                if script[key].generated == script[key].tokens_max:
                    counted.end(key)
        now += 1
        assert now < 100_000, "the script does not end"
    assert counted.view.pages_free() == limits.pages_total
    return rounds


WORK = st.builds(
    Work,
    request_class=st.sampled_from(["interactive", "agent"]),
    arrives=st.integers(0, 30),
    prompt_tokens=st.integers(1, 12),
    tokens_max=st.integers(1, 8),
    pages=st.integers(1, 8),
)
LIMITS = st.builds(
    limits,
    lanes=st.integers(1, 4),
    pages=st.just(8),
    chunk=st.integers(1, 5),
    share=st.sampled_from([0, 25, 50, 90]),
)


@settings(deadline=None)
@given(limits=LIMITS, script=st.lists(WORK, max_size=25))
def test_everyone_finishes_and_nobody_is_overtaken(
    limits: SchedulerLimits, script: list[Work]
) -> None:
    run(limits, script)
    for work in script:
        assert work.generated == work.tokens_max
    for above in script:
        for below in script:
            if above.rank < below.rank and above.submitted_round <= below.admitted_round:
                assert above.admitted_round <= below.admitted_round


@settings(deadline=None)
@given(limits=LIMITS, script=st.lists(WORK, max_size=25))
def test_a_wait_is_bounded_by_the_work_of_those_ahead(
    limits: SchedulerLimits, script: list[Work]
) -> None:
    """Each round that it waits does a chunk or a token of who ran when it came or ranks above."""
    work_of = {
        key: -(-work.prompt_tokens // limits.chunk_tokens_max) + work.tokens_max
        for key, work in enumerate(script)
    }
    run(limits, script)
    for work in script:
        ahead = {key for key, other in enumerate(script) if other.rank < work.rank}
        bound = sum(work_of[key] for key in ahead | set(work.ahead))
        assert work.admitted_round - work.submitted_round <= bound


def test_a_blocked_head_is_not_passed_by_what_would_fit() -> None:
    counted = Counted(limits(lanes=4, pages=8))
    counted.submit(0, "interactive", 1, 6)
    assert counted.act() == [Admit(0, 0, 6, -1)]
    counted.run()
    counted.submit(1, "interactive", 1, 8)
    counted.submit(2, "interactive", 1, 1)
    assert counted.act() == []
    counted.end(0)
    assert counted.act() == [Admit(1, 0, 8, -1)]


def test_an_interactive_request_passes_waiting_agents_but_no_running_one() -> None:
    counted = Counted(limits(lanes=1))
    for key in range(3):
        counted.submit(key, "agent", 1, 1)
    assert counted.act() == [Admit(0, 0, 1, -1)]
    counted.run()
    counted.submit(3, "interactive", 1, 1)
    assert counted.act() == []
    counted.end(0)
    assert counted.act() == [Admit(3, 0, 1, -1)]


def test_what_has_computed_nothing_lets_go_of_its_lane_for_who_ranks_above() -> None:
    """Nothing is lost by that, so it needs no tier to go to."""
    counted = Counted(limits(lanes=1))
    counted.submit(0, "agent", 4, 2)
    assert counted.act() == [Admit(0, 0, 2, -1)]
    counted.submit(1, "interactive", 1, 1)
    assert counted.act() == [Release(0), Admit(1, 0, 1, -1)]
    counted.end(1)
    assert counted.act() == [Admit(0, 0, 2, -1)]
    assert counted.run().prefill_tokens == 4


def test_nobody_lets_go_of_a_lane_where_that_is_not_enough() -> None:
    counted = Counted(limits(lanes=2, pages=8))
    counted.submit(0, "interactive", 1, 5)
    counted.submit(1, "agent", 1, 2)
    counted.act()
    counted.run()
    counted.submit(2, "interactive", 1, 4)
    assert counted.act() == []


def test_an_interactive_prompt_passes_a_half_done_agent_prompt() -> None:
    counted = Counted(limits(lanes=2, chunk=4))
    counted.submit(0, "agent", 100, 2)
    assert counted.next_round().prefill_lane == 0
    counted.scheduler.round_done(1)
    counted.submit(1, "interactive", 4, 1)
    assert counted.next_round().prefill_lane == 1
    counted.scheduler.round_done(1)
    decided = counted.next_round()
    assert (decided.prefill_lane, decided.decode_lanes) == (0, (1,))


def test_a_request_that_fills_the_pool_runs() -> None:
    script = [Work("interactive", 0, 3, 2, pages=8), Work("interactive", 0, 3, 2, pages=8)]
    run(limits(lanes=2, pages=8), script)
    assert [work.generated for work in script] == [2, 2]
    assert script[1].admitted_round > script[0].admitted_round


def test_the_queue_holds_queue_max_beyond_the_lanes() -> None:
    counted = Counted(limits(lanes=2, queue=3))
    for key in range(5):
        counted.submit(key, "interactive", 1, 1)
    with pytest.raises(QueueFull) as refused:
        counted.submit(5, "interactive", 1, 1)
    assert (refused.value.open_count, refused.value.open_max) == (5, 5)
    counted.end(4)
    counted.submit(5, "interactive", 1, 1)


@pytest.mark.parametrize("state", ["waiting", "seated", "half prefilled", "decoding"])
def test_what_ends_gives_back_its_lane_and_pages_by_the_next_round(state: str) -> None:
    counted = Counted(limits(lanes=1, pages=4, chunk=2))
    counted.submit(0, "interactive", 4, 4)
    if state != "waiting":
        counted.act()
    for _ in range(["waiting", "seated", "half prefilled", "decoding"].index(state) - 1):
        counted.run()
    counted.submit(1, "interactive", 1, 4)
    counted.end(0)
    assert counted.view.pages_free() == 4
    assert counted.act() == [Admit(1, 0, 4, -1)]


def test_every_round_decodes_every_ready_lane() -> None:
    """So a decoding lane waits one round, with one chunk in it, for its next token."""
    counted = Counted(limits(lanes=4, pages=100, chunk=4))
    for key in range(3):
        counted.submit(key, "interactive", 4, 1)
        counted.run()
    counted.submit(3, "interactive", 10_000, 90)
    for _ in range(2_500):
        decided = counted.next_round()
        assert decided.decode_lanes == (0, 1, 2)
        assert decided.prefill_tokens == 4
        counted.scheduler.round_done(1)
    assert counted.next_round().decode_lanes == (0, 1, 2, 3)


@settings(deadline=None)
@given(
    share=st.integers(0, 99),
    durations=st.lists(st.integers(1, 100_000), min_size=60, max_size=60),
)
def test_decode_gets_its_share_and_prefill_waits_no_longer(
    share: int, durations: list[int]
) -> None:
    counted = Counted(limits(lanes=2, pages=100, chunk=1, share=share))
    counted.submit(0, "interactive", 1, 1)
    counted.run(0)
    counted.submit(1, "interactive", 1_000, 90)
    owed_us = waited_us = 0
    last_us = 0  # of the last round without a chunk
    for duration_us in durations:
        decided = counted.next_round()
        if decided.prefill_lane >= 0:
            assert waited_us >= owed_us, "a chunk came before its time"
            assert waited_us - last_us < max(owed_us, 1), "a chunk came later than it might"
            owed_us = duration_us * share // (100 - share)
            waited_us = last_us = 0
        else:
            waited_us += duration_us
            last_us = duration_us
        counted.scheduler.round_done(duration_us)


def test_prefill_does_not_wait_where_nobody_decodes() -> None:
    counted = Counted(limits(lanes=2, pages=100, chunk=1, share=99))
    counted.submit(0, "interactive", 1_000, 90)
    for _ in range(1_000):
        assert counted.next_round().prefill_lane == 0
        counted.scheduler.round_done(50_000)
    assert counted.next_round().decode_lanes == (0,)


def test_a_decision_can_be_made_again_after_a_sequence_was_refused() -> None:
    counted = Counted(limits(lanes=1))
    counted.submit(0, "interactive", 4, 1)
    counted.submit(1, "interactive", 3, 1)
    assert counted.act() == [Admit(0, 0, 1, -1)]
    counted.end(0)
    decided = counted.next_round()
    assert (decided.prefill_lane, decided.prefill_tokens) == (0, 3)


def test_a_round_with_a_thousand_waiting_costs_under_100_us() -> None:
    generator = random.Random(7)
    counted = Counted(limits(lanes=8, pages=64, chunk=512, queue=1_000, share=25))
    keys = iter(range(10**9))

    def arrive() -> None:
        request_class: RequestClass = generator.choice(["interactive", "agent"])
        prompt_tokens = generator.randint(1, 2_000)
        counted.submit(next(keys), request_class, prompt_tokens, generator.randint(1, 16))

    for _ in range(1_008):
        arrive()
    costs_us = []
    for _ in range(2_000):
        begin = time.perf_counter()
        counted.run(1_000)
        costs_us.append((time.perf_counter() - begin) * 1e6)
        if generator.random() < 0.2:
            counted.end(generator.choice(list(counted.view.keys.values())))
            arrive()
    assert counted.scheduler.waiting_count > 990
    assert statistics.median(costs_us) < 100
