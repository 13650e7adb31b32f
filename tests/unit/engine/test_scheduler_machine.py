"""The scheduler against its naive twin, after every event, at limits so small that all is rare."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ignis.admission import RequestClass
from ignis.engine.errors import QueueFull
from ignis.engine.scheduler import SchedulerLimits
from tests.unit.engine.counting_view import Counted
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
        self.real = Counted(limits)
        self.twin = NaiveScheduler(limits)
        self.keys = 0
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
        assert self.real.act() == self.twin.act()
        decided = self.real.scheduler.next_round()
        assert decided == self.twin.next_round()
        lanes = [*decided.decode_lanes, decided.prefill_lane]
        assert len(set(lanes)) == len(lanes), "a lane is once in a round"
        self.round_open = decided.runs

    @precondition(lambda self: self.round_open)
    @rule(duration_us=st.integers(0, 2000))
    def run(self, duration_us: int) -> None:
        self.real.scheduler.round_done(duration_us)
        self.twin.round_done(duration_us)
        self.round_open = False

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "real"):
            return
        scheduler, view = self.real.scheduler, self.real.view
        assert view.keys == {item.lane: item.key for item in self.twin.seated()}
        assert view.pages_free() == self.twin.pages_free()
        assert scheduler.open_count == len(self.twin.items)
        assert scheduler.running_count == len(self.twin.seated())
        assert scheduler.waiting_count == len(self.twin.waiting())
        assert scheduler.has_work or not self.twin.items

    def teardown(self) -> None:
        """Everything ends: nothing is left over."""
        if not hasattr(self, "real"):
            return
        for item in list(self.twin.items):
            self.real.end(item.key)
        assert self.real.act() == []
        assert not self.real.scheduler.next_round().runs
        assert self.real.view.pages_free() == self.real.limits.pages_total
        assert not self.real.scheduler.has_work


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
