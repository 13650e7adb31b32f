"""The scheduler against its naive twin, after every event, at limits so small that all is rare."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ignis.admission import RequestClass
from ignis.engine.errors import QueueFull
from ignis.engine.scheduler import Round, Scheduler, SchedulerLimits
from tests.unit.engine.naive_scheduler import NaiveScheduler


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        limits=st.builds(
            SchedulerLimits,
            lanes_max=st.integers(1, 3),
            pages_total=st.integers(1, 6),
            chunk_tokens_max=st.integers(1, 3),
            queue_max=st.integers(0, 3),
            decode_share_percent=st.sampled_from([0, 25, 50, 90, 99]),
        )
    )
    def start(self, limits: SchedulerLimits) -> None:
        self.real = Scheduler(limits)
        self.twin = NaiveScheduler(limits)
        self.keys = 0
        self.lanes_held: dict[int, int] = {}  # lane -> key, as an engine that obeys would hold it
        self.round_open = False

    @rule(agent=st.booleans(), prompt_tokens=st.integers(1, 7), pages=st.integers(1, 6))
    def submit(self, agent: bool, prompt_tokens: int, pages: int) -> None:
        pages = min(pages, self.real.limits.pages_total)
        request_class: RequestClass = "agent" if agent else "interactive"
        if self.twin.is_full():
            with pytest.raises(QueueFull):
                self.real.submit(self.keys, request_class, prompt_tokens, pages)
            return
        self.real.submit(self.keys, request_class, prompt_tokens, pages)
        self.twin.submit(self.keys, agent, prompt_tokens, pages)
        self.keys += 1

    @precondition(lambda self: self.twin.items)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Also between a decision and its round, as when the engine will not seat a sequence."""
        key = data.draw(st.sampled_from([item.key for item in self.twin.items]))
        self.real.end(key)
        self.twin.end(key)
        self.round_open = False

    @rule()
    def decide(self) -> None:
        decided, expected = self.real.next_round(), self.twin.next_round()
        assert decided == expected
        self.obey(decided)
        self.round_open = decided.runs

    @precondition(lambda self: self.round_open)
    @rule(duration_us=st.integers(0, 2000))
    def run(self, duration_us: int) -> None:
        self.real.round_done(duration_us)
        self.twin.round_done(duration_us)
        self.round_open = False

    def obey(self, decided: Round) -> None:
        """Carry it out as an engine would, which refuses a lane twice."""
        for lane in decided.releases:
            del self.lanes_held[lane]
        for key, lane, _ in decided.admissions:
            assert lane not in self.lanes_held, "a lane is released before it is given again"
            self.lanes_held[lane] = key
        lanes = [*decided.decode_lanes, decided.prefill_lane]
        assert len(set(lanes)) == len(lanes), "a lane is once in a round"
        assert {lane for lane in lanes if lane >= 0} <= self.lanes_held.keys()
        seated = {item.key for item in self.twin.seated()}
        assert set(self.lanes_held.values()) == seated

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "real"):
            return
        assert self.real.pages_free == self.twin.pages_free()
        assert 0 <= self.real.pages_free <= self.real.limits.pages_total
        assert self.real.open_count == len(self.twin.items)
        assert self.real.running_count == len(self.twin.seated())
        assert self.real.waiting_count == len(self.twin.waiting())
        assert self.real.has_work == bool(self.twin.items or self.twin.ended_lanes)

    def teardown(self) -> None:
        """Everything ends: nothing is left over."""
        if not hasattr(self, "real"):
            return
        for item in list(self.twin.items):
            self.end_one(item.key)
        assert not self.real.next_round().runs
        assert self.real.pages_free == self.real.limits.pages_total
        assert not self.real.has_work

    def end_one(self, key: int) -> None:
        self.real.end(key)
        self.twin.end(key)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
