"""Retained state under pressure: what gives way to whom, and its copies in the tiers."""

from __future__ import annotations

import pytest

from ignis.engine.actions import Adopt, MoveIn, Spill
from ignis.engine.api import Mark
from ignis.engine.rounds import ReuseOptions
from ignis.engine.seats import State
from ignis.reuse.entry import DEVICE, DISK, KV_RAM
from tests.simulation.reference_engine import restarted
from tests.unit.engine.stage import Stage

HEAD = [7] * 130  # two whole pages and two tokens


def checkpoint(position: int) -> tuple[Mark, ...]:
    return (Mark(position, "checkpoint"),)


def kept(stage: Stage) -> list[tuple[str, int]]:
    return sorted((entry.kind, entry.position) for entry in stage.runner.ledger.index)


def test_what_is_retained_gives_way_to_a_request_that_fills_the_pool() -> None:
    stage = Stage(lanes=1, pages=4, slots=2)
    for at in range(2):
        stage.submit([at] * 70, 2, marks=checkpoint(69))
        stage.finish()
    stage.submit([9] * 200, 56)
    stage.finish()
    assert stage.facts["retained_discard device"] == 2


def test_no_more_is_given_up_than_is_needed() -> None:
    stage = Stage(lanes=1, pages=8, slots=4)
    for at in range(3):
        stage.submit([at] * 70, 2, marks=checkpoint(69))
        stage.finish()
    assert stage.engine.pages_free() == 2
    stage.submit([9] * 200, 20)
    stage.finish()
    assert stage.facts["retained_discard device"] == 1


def test_what_running_sequences_share_is_given_up_last_for_pages() -> None:
    """It would free hardly a page, though it is the least recently used."""
    stage = Stage(lanes=2, pages=8, slots=2)
    running = stage.submit([1] * 130, 60, "agent", marks=checkpoint(129))  # three pages
    stage.rounds(4)
    stage.submit([2] * 130, 2, marks=checkpoint(129))
    while len(stage.ended) < 1:
        stage.round()
    assert stage.engine.pages_free() == 2
    stage.submit([3] * 200, 20)  # four pages
    stage.rounds(5)
    assert running not in stage.ended
    (entry,) = stage.runner.ledger.index
    assert entry.tokens[0] == 1
    stage.finish()


def test_an_adopted_entry_takes_the_place_of_the_claim_before_it() -> None:
    stage = Stage(lanes=2, pages=20, slots=3)
    stage.submit(HEAD, 1, marks=(Mark(64, "prefix"),))
    stage.finish()
    keys = [stage.submit(HEAD, 9, marks=checkpoint(129)) for _ in range(2)]
    while not any(isinstance(action, Adopt) for action in stage.actions):
        stage.round()
    (adopted,) = stage.seat(keys[1]).shares
    assert adopted.position == 129
    stage.finish()
    assert all(entry.sharers == 0 for entry in stage.runner.ledger.index)


def test_a_slot_that_is_being_copied_gives_way_before_anyone_moves() -> None:
    stage = Stage(lanes=2, pages=8, slots=1, disk=30)
    stage.submit([1] * 70, 2, marks=checkpoint(69))
    stage.engine.tiers.waits = lambda tier: True  # type: ignore[method-assign]
    stage.rounds(6)
    agent = stage.submit([2] * 100, 60, "agent")
    stage.rounds(4)
    head = stage.submit([3] * 150, 60)  # four pages; free and retained, there are five
    agent_again = stage.submit([4] * 10, 3, "agent")
    stage.rounds(3)
    assert stage.state(agent) is State.RUNNING
    stage.engine.tiers.waits = lambda tier: False  # type: ignore[method-assign]
    stage.until(head, State.RUNNING)
    assert stage.state(agent) is State.RUNNING
    assert agent_again not in stage.ended
    stage.finish()
    assert stage.facts["evicted disk"] == 0


def test_nothing_retained_is_given_up_for_a_head_that_cannot_enter_anyway() -> None:
    stage = Stage(lanes=2, pages=8, slots=4)
    stage.submit([1] * 70, 2, marks=checkpoint(69))
    stage.finish()
    running = stage.submit([2] * 200, 50)
    stage.rounds(6)
    stage.submit([3] * 300, 20)
    stage.rounds(5)
    assert kept(stage) == [("checkpoint", 69)]
    assert stage.state(running) is State.RUNNING
    stage.finish()


def test_a_match_that_stands_in_its_own_way_is_given_up() -> None:
    """The slot's last page and the whole reservation are one page more than the pool has."""
    stage = Stage(lanes=1, pages=3, slots=1)
    stage.submit(HEAD, 20, marks=checkpoint(129))
    stage.finish()
    key = stage.submit(HEAD, 60)
    stage.finish()
    assert stage.reused(key) == 0


@pytest.mark.parametrize(("sizes", "tier"), [({"ram": 20}, "kv_ram"), ({"disk": 20}, "disk")])
def test_what_gives_way_for_pages_is_copied_down_and_claimed_from_there(
    sizes: dict[str, int], tier: str
) -> None:
    stage = Stage(lanes=1, pages=4, slots=1, **sizes)
    stage.submit(HEAD, 4, marks=checkpoint(129))
    stage.rounds(8)
    stage.submit([9] * 200, 20)
    stage.finish()
    (entry,) = (one for one in stage.runner.ledger.index)
    assert entry.copies[DEVICE] == -1
    key = stage.submit(HEAD, 4)
    stage.finish()
    assert stage.reused(key) == 129
    assert stage.facts[f"retained_spill {tier}"] == 1
    assert stage.facts[f"retained_restore {tier}"] == 1
    assert stage.facts["retained_discard device"] == 0
    assert entry.protected
    assert entry.copies[DEVICE] >= 0, "it is brought back once, and shared from there"


def test_a_claim_from_below_leaves_the_image() -> None:
    stage = Stage(lanes=1, pages=4, slots=1, ram=20)
    stage.submit(HEAD, 4, marks=checkpoint(129))
    stage.finish()
    stage.submit([9] * 200, 20)
    stage.finish()
    (entry,) = stage.runner.ledger.index
    stage.submit(HEAD, 4)
    stage.finish()
    assert entry.copies[KV_RAM] >= 0


def test_a_damaged_image_is_dropped_and_the_prompt_computed() -> None:
    stage = Stage(lanes=1, pages=4, slots=1, disk=20)
    stage.submit(HEAD, 4, marks=checkpoint(129))
    stage.finish()
    stage.submit([9] * 200, 20)
    stage.finish()
    stage.break_disk()
    key = stage.submit(HEAD, 4)
    stage.finish()
    assert stage.reused(key) == 0
    assert stage.facts["move_refused_read disk"] == 1
    assert stage.facts["prefilled_again"] == 0, "it had computed nothing yet"


def test_the_next_capture_finds_its_victim_copied_to_kv_ram() -> None:
    stage = Stage(lanes=1, pages=16, slots=1, ram=20)
    for at in range(3):
        stage.submit([at] * 70, 4, marks=checkpoint(69))
        stage.finish()
        stage.rounds(4)
    assert stage.facts["retained_discard device"] == 0
    assert len(kept(stage)) == 3
    key = stage.submit([0] * 70, 4)
    stage.finish()
    assert stage.reused(key) == 69


def test_live_sequences_displace_what_is_retained_in_kv_ram() -> None:
    stage = Stage(lanes=1, pages=8, slots=1, ram=1)
    for at in range(2):
        stage.submit([at] * 70, 4, "agent", marks=checkpoint(69))
        stage.finish()
    stage.rounds(4)
    assert stage.engine.tiers.used[0] == 1
    agent = stage.submit([5] * 5, 60, "agent")
    stage.rounds(3)
    stage.submit([6], 3)
    stage.until(agent, State.PARKED)
    (entry,) = stage.runner.ledger.index
    assert entry.copies[KV_RAM] == -1
    assert entry.copies[DEVICE] >= 0
    stage.finish()


def test_everything_retained_gets_a_copy_on_kv_disk_prefixes_first() -> None:
    stage = Stage(lanes=1, pages=16, slots=4, disk=20)
    stage.submit(HEAD, 4, marks=(Mark(64, "prefix"), Mark(129, "checkpoint")))
    stage.finish()
    kinds = [action.kind for action in stage.actions if isinstance(action, Spill)]
    assert kinds == [2, 1]
    assert all(entry.copies[DISK] >= 0 for entry in stage.runner.ledger.index)


def test_the_next_process_finds_what_was_retained_on_kv_disk() -> None:
    stage = Stage(lanes=1, pages=16, slots=4, disk=20)
    stage.submit(HEAD, 4, marks=(Mark(64, "prefix"), Mark(129, "checkpoint")))
    stage.finish()
    stage.runner.close()
    again = Stage(engine=restarted(stage.engine))
    key = again.submit([*HEAD, 5], 4)
    again.finish()
    assert again.reused(key) == 129
    assert again.facts["retained_restore disk"] == 1


def test_found_checkpoints_are_dropped_where_prompt_reuse_is_off() -> None:
    stage = Stage(lanes=1, pages=16, slots=4, disk=20)
    stage.submit(HEAD, 4, marks=(Mark(64, "prefix"), Mark(129, "checkpoint")))
    stage.finish()
    stage.runner.close()
    again = Stage(engine=restarted(stage.engine), reuse=ReuseOptions(checkpoints=False))
    assert kept(again) == [("prefix", 64)]
    again.finish()


def test_on_a_full_disk_the_least_recently_used_copy_gives_way() -> None:
    stage = Stage(lanes=1, pages=16, slots=4, disk=2)
    for at in range(4):
        stage.submit([at] * 70, 2, marks=checkpoint(69))
        stage.finish()
    on_disk = sorted(entry.tokens[0] for entry in stage.runner.ledger.entries(DISK))
    assert on_disk == [2, 3]


def test_a_failing_disk_costs_no_text_and_is_not_asked_without_end() -> None:
    stage = Stage(lanes=1, pages=16, slots=4, disk=20)
    stage.break_disk()
    for at in range(3):
        stage.submit([at] * 70, 2, marks=checkpoint(69))
        stage.finish()
    assert stage.facts["move_refused_write disk"] == 1, "the second waits for the pause to pass"
    stage.now = 5.0
    stage.submit([9], 2)
    stage.finish()
    assert stage.facts["move_refused_write disk"] == 2, "all wait until they are of use again"
    stage.break_disk(False)
    stage.now = 10.0
    key = stage.submit([2] * 70, 2)
    stage.finish()
    assert stage.reused(key) == 69
    assert stage.facts["retained_spill disk"] == 1


def test_a_sequence_that_moved_counts_what_it_reused_once() -> None:
    stage = Stage(lanes=1, pages=8, slots=2, ram=20)
    stage.submit(HEAD, 2, marks=checkpoint(129))
    stage.finish()
    agent = stage.submit(HEAD, 40, "agent")
    stage.rounds(4)
    stage.submit([1], 2)
    stage.finish()
    assert stage.reused(agent) == 129
    assert stage.facts["retained_hit device"] == 1
    assert sum(isinstance(action, MoveIn) for action in stage.actions) == 1
