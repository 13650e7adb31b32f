"""The scheduler as a naive twin: one list, sorted and counted anew for every question."""

from __future__ import annotations

from dataclasses import dataclass

from ignis.engine.scheduler import Admission, Round, SchedulerLimits


@dataclass
class Item:
    agent: bool
    arrival: int
    key: int
    prompt_left: int
    pages: int
    lane: int = -1

    def order(self) -> tuple[bool, int]:
        return self.agent, self.arrival


class NaiveScheduler:
    """Equal events must give equal rounds."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.items: list[Item] = []
        self.arrivals = 0
        self.ended_lanes: list[int] = []
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
        if item.lane != -1:
            self.ended_lanes.append(item.lane)
        self.items.remove(item)

    def next_round(self) -> Round:
        admissions = []
        for item in self.waiting():
            if not self.lanes_free() or item.pages > self.pages_free():
                break
            item.lane = self.lanes_free()[0]
            admissions.append(Admission(item.key, item.lane, item.pages))
        decode = tuple(sorted(i.lane for i in self.seated() if i.prompt_left == 0))
        chunk_of = [i for i in self.seated() if i.prompt_left > 0]
        prefill_lane, prefill_tokens = -1, 0
        if chunk_of and (not decode or self.owed_us == 0):
            prefill_lane = chunk_of[0].lane
            prefill_tokens = min(chunk_of[0].prompt_left, self.limits.chunk_tokens_max)
        releases, self.ended_lanes = tuple(self.ended_lanes), []
        self.last = Round(releases, tuple(admissions), prefill_lane, prefill_tokens, decode)
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
