"""An engine that only counts: pages by lane, no retained slots and no tiers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ignis.engine.actions import Action, Admit, Release
from ignis.engine.scheduler import Round, Scheduler, SchedulerLimits
from ignis.reuse import Ledger


@dataclass
class CountingView:
    """Fulfils PoolView, and refuses what an engine would refuse."""

    lanes_max: int
    pages_total: int
    page_tokens: int = 64
    held: dict[int, int] = field(default_factory=dict)  # pages by lane
    keys: dict[int, int] = field(default_factory=dict)  # sequence by lane

    def pages_free(self) -> int:
        return self.pages_total - sum(self.held.values())

    def pages_held(self, lanes: array[int], count: int) -> int:
        return sum(self.held[lane] for lane in lanes[:count])

    def windows_for(self, position: int) -> int:
        return 1

    def windows_free(self, tier: int) -> int:
        return 0

    def windows_total(self, tier: int) -> int:
        return 0

    def carry(self, action: Action) -> None:
        match action:
            case Admit(key, lane, pages, slot):
                assert lane not in self.held, "a lane is empty before it is taken"
                assert pages <= self.pages_free(), "pages are free before they are taken"
                assert slot == -1
                self.held[lane], self.keys[lane] = pages, key
            case Release(lane):
                self.release(lane)
            case _:
                raise AssertionError(f"nothing else happens without slots and tiers: {action}")

    def release(self, lane: int) -> None:
        del self.held[lane], self.keys[lane]


@dataclass
class Counted:
    """A scheduler over a counting view: decisions are carried out at once."""

    limits: SchedulerLimits

    def __post_init__(self) -> None:
        self.view = CountingView(self.limits.lanes_max, self.limits.pages_total)
        ledger = Ledger(0, 64, lambda tokens: b"", 0)
        self.scheduler = Scheduler(self.limits, self.view, ledger)

    def submit(self, key: int, request_class: str, prompt_tokens: int, pages: int) -> object:
        tokens = array("I", [1] * prompt_tokens)
        return self.scheduler.submit(key, request_class, tokens, pages)  # type: ignore[arg-type]

    def end(self, key: int) -> None:
        lane = self.scheduler.end(key)
        if lane >= 0:
            self.view.release(lane)

    def act(self) -> list[Action]:
        """What is done before the next round."""
        actions = []
        while (action := self.scheduler.next_action(0)) is not None:
            self.view.carry(action)
            actions.append(action)
        return actions

    def next_round(self) -> Round:
        """The next round, after what comes before it."""
        self.act()
        return self.scheduler.next_round()

    def run(self, duration_us: int = 1) -> Round:
        """The next round, done."""
        decided = self.next_round()
        self.scheduler.round_done(duration_us)
        return decided
