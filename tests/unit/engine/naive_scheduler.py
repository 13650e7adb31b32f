"""The scheduler as a naive twin: one list, sorted and counted anew for every question."""

from __future__ import annotations

from dataclasses import dataclass

from ignis.engine.actions import Action, Admit, Release
from ignis.engine.scheduler import Round, SchedulerLimits


@dataclass
class Item:
    agent: bool
    arrival: int
    key: int
    prompt_left: int
    pages: int
    lane: int = -1
    computed: bool = False

    def order(self) -> tuple[bool, int]:
        return self.agent, self.arrival


class NaiveScheduler:
    """Equal events must give equal decisions. Without slots and tiers, nothing moves."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.items: list[Item] = []
        self.arrivals = 0
        self.owed_us = 0
        self.last: Round | None = None

    def waiting(self) -> list[Item]:
        return sorted((i for i in self.items if i.lane == -1), key=Item.order)

    def seated(self) -> list[Item]:
        return sorted((i for i in self.items if i.lane != -1), key=Item.order)

    def pages_free(self) -> int:
        return self.limits.pages_total - sum(i.pages for i in self.seated())

    def lanes_free(self) -> list[int]:
        return sorted(set(range(self.limits.lanes_max)) - {i.lane for i in self.seated()})

    def is_full(self) -> bool:
        return len(self.items) == self.limits.lanes_max + self.limits.queue_max

    def submit(self, key: int, agent: bool, prompt_tokens: int, pages: int) -> None:
        self.items.append(Item(agent, self.arrivals, key, prompt_tokens, pages))
        self.arrivals += 1

    def end(self, key: int) -> None:
        (item,) = (i for i in self.items if i.key == key)
        self.items.remove(item)

    def act(self) -> list[Action]:
        actions: list[Action] = []
        while self.waiting():
            head = self.waiting()[0]
            if self.lanes_free() and head.pages <= self.pages_free():
                head.lane = self.lanes_free()[0]
                actions.append(Admit(head.key, head.lane, head.pages, -1))
                continue
            above = [i for i in self.seated() if i.order() < head.order()]
            below = [i for i in self.seated() if i.order() > head.order()]
            pages_max = self.limits.pages_total - sum(i.pages for i in above)
            if len(above) == self.limits.lanes_max or head.pages > pages_max:
                break
            if not below or below[-1].computed:
                break
            actions.append(Release(below[-1].lane))
            below[-1].lane = -1
        return actions

    def next_round(self) -> Round:
        decode = tuple(sorted(i.lane for i in self.seated() if i.prompt_left == 0))
        chunk_of = [i for i in self.seated() if i.prompt_left > 0]
        prefill_lane, prefill_tokens = -1, 0
        if chunk_of and (not decode or self.owed_us == 0):
            prefill_lane = chunk_of[0].lane
            prefill_tokens = min(chunk_of[0].prompt_left, self.limits.chunk_tokens_max)
        self.last = Round(prefill_lane, prefill_tokens, decode)
        return self.last

    def round_done(self, duration_us: int) -> None:
        assert self.last is not None
        if self.last.prefill_lane == -1:
            self.owed_us = max(self.owed_us - duration_us, 0)
            return
        share = self.limits.decode_share_percent
        self.owed_us = int(duration_us * share / (100 - share))
        (item,) = (i for i in self.seated() if i.lane == self.last.prefill_lane)
        item.prompt_left -= self.last.prefill_tokens
        item.computed = True
