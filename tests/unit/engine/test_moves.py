"""Moves: who gives way to whom, where it goes, and that nobody's text or rank is changed by it."""

from __future__ import annotations

import pytest

from ignis.engine.actions import AbandonOut, Admit, DropImage, MoveIn, MoveOut
from ignis.engine.api import Mark
from ignis.engine.seats import State
from tests.unit.engine.stage import Stage

PROMPT = [1, 2, 3, 4, 5]


def pressed(**sizes: int) -> tuple[Stage, int, int]:
    """One lane; an agent decodes in it, and an interactive request has just come."""
    stage = Stage(lanes=1, pages=4, **sizes)
    agent = stage.submit(PROMPT, 100, "agent")
    stage.rounds(5)
    head = stage.submit([9, 9], 6)
    return stage, agent, head


@pytest.mark.parametrize(("sizes", "tier"), [({"ram": 8}, "kv_ram"), ({"disk": 8}, "disk")])
def test_an_agent_moves_for_an_interactive_request_and_goes_on_where_it_was(
    sizes: dict[str, int], tier: str
) -> None:
    stage, agent, head = pressed(**sizes)
    stage.until(agent, State.PARKED)
    stage.until(head, State.RUNNING)
    stage.finish()
    assert stage.facts == {f"evicted {tier}": 1, f"resumed {tier}": 1}
    position = 5 + 5 - 1  # the last token of a decoding sequence is not stored
    moves = [(one.key, one.what, one.tokens) for one in stage.notes]
    assert moves == [(agent, "evicted", position), (agent, "resumed", position)]


def test_a_half_prefilled_prompt_moves_and_goes_on_from_its_last_chunk() -> None:
    stage = Stage(lanes=1, pages=8, chunk=64, ram=8)
    agent = stage.submit([3] * 400, 20, "agent")
    stage.rounds(3)
    assert stage.seat(agent).position == 192
    stage.submit([9], 3)
    stage.until(agent, State.PARKED)
    assert stage.seat(agent).position == 192
    stage.finish()
    assert stage.facts["prefilled_again"] == 0


def test_kv_ram_comes_before_kv_disk_and_kv_disk_takes_what_it_cannot() -> None:
    stage = Stage(lanes=2, pages=8, ram=1, disk=8)
    agents = [stage.submit([at] * 5, 100, "agent") for at in (1, 2)]
    stage.rounds(4)
    for at in (3, 4):
        stage.submit([at], 50)
    stage.until(agents[0], State.PARKED)
    assert [stage.seat(agent).tier for agent in agents] == [1, 0]
    stage.finish()


def test_the_lowest_ranked_gives_way_and_no_more_than_needed() -> None:
    stage = Stage(lanes=3, pages=9, ram=30)
    keys = [stage.submit([at] * 5, 100, kind) for at, kind in enumerate(("agent",) * 3)]
    stage.rounds(3)
    head = stage.submit([7] * 5, 4)
    stage.until(head, State.RUNNING)
    states = [stage.state(key) for key in keys]
    assert states == [State.RUNNING, State.RUNNING, State.PARKED]
    stage.finish()
    assert stage.facts["evicted kv_ram"] == 1


def test_an_agent_moves_neither_an_interactive_request_nor_an_older_agent() -> None:
    for first in ("interactive", "agent"):
        stage = Stage(lanes=1, pages=4, ram=8)
        stage.submit(PROMPT, 30, first)  # type: ignore[arg-type]
        stage.rounds(2)
        stage.submit(PROMPT, 4, "agent")
        stage.finish()
        assert not stage.facts


def test_nobody_moves_where_it_would_not_be_enough() -> None:
    stage = Stage(lanes=4, pages=8, ram=30)
    stage.submit([1] * 300, 20)  # holds five pages and outranks the head
    agent = stage.submit([2] * 100, 20, "agent")
    stage.rounds(8)
    head = stage.submit([3] * 200, 50)  # needs four
    stage.rounds(5)
    assert stage.state(agent) is State.RUNNING
    assert stage.state(head) is State.WAITING
    stage.finish()


def test_with_neither_tier_the_head_waits() -> None:
    stage, agent, head = pressed()
    stage.rounds(10)
    assert (stage.state(agent), stage.state(head)) == (State.RUNNING, State.WAITING)
    stage.finish()
    assert not stage.facts


def test_what_fits_no_tier_does_not_move() -> None:
    stage = Stage(lanes=1, pages=24, ram=2)
    agent = stage.submit([1] * 1_200, 20, "agent")
    stage.rounds(20)
    assert stage.engine.windows_for(1_200) > 2
    stage.submit([2], 4)
    stage.rounds(5)
    assert stage.state(agent) is State.RUNNING
    stage.finish()


def test_a_sequence_that_moved_returns_before_anything_below_it_enters() -> None:
    stage, agent, _ = pressed(ram=8)
    later = [stage.submit([at], 3, "agent") for at in (20, 21)]
    stage.finish()
    entered = [one.key for one in stage.actions if isinstance(one, Admit | MoveIn)]
    assert entered == [0, 1, agent, *later]


def test_while_one_leaves_nothing_below_it_enters() -> None:
    stage = Stage(lanes=2, pages=4, disk=8)
    stage.engine.tiers.waits = lambda tier: True  # type: ignore[method-assign]
    stage.submit([1] * 60, 3, "agent")
    agent = stage.submit([2] * 60, 60, "agent")
    stage.rounds(3)
    stage.submit([3] * 150, 20)
    stage.rounds(1)
    assert stage.state(agent) is State.LEAVING
    below = stage.submit([4], 3, "agent")
    stage.rounds(10)
    assert stage.state(below) is State.WAITING
    stage.engine.tiers.waits = lambda tier: False  # type: ignore[method-assign]
    stage.finish()


def test_a_parked_head_moves_nobody() -> None:
    stage = Stage(lanes=1, pages=4, ram=8)
    older = stage.submit([1] * 5, 60, "agent")
    stage.rounds(3)
    stage.submit([2], 3)
    stage.until(older, State.PARKED)
    stage.finish()
    moved = [one for one in stage.actions if isinstance(one, MoveOut)]
    assert len(moved) == 1


def test_every_return_computes_before_its_sequence_moves_again() -> None:
    stage, _, _ = pressed(ram=8)
    for at in range(30):
        stage.submit([30 + at], 2)
        stage.rounds(3)
    stage.finish()
    positions = [one.tokens for one in stage.notes if one.what == "evicted"]
    assert len(positions) > 1
    assert positions == sorted(set(positions)), "each move finds it further on"


def test_a_prompt_that_returned_gets_one_chunk_first_when_it_is_to_give_way_again() -> None:
    """So who needs its lane waits for one chunk, and not for every better prompt."""
    stage = Stage(lanes=2, pages=60, chunk=64, ram=60)
    agent = stage.submit([2] * 640, 4, "agent")
    stage.rounds(2)
    stage.submit([3], 8)
    stage.rounds(1)
    long = stage.submit([1] * 2_000, 4)
    stage.until(agent, State.PARKED)
    stage.until(agent, State.RUNNING)
    left = stage.seat(agent).left
    stage.rounds(3)
    assert stage.seat(agent).left == left, "the better prompt is computed first"
    head = stage.submit([4], 2)
    stage.round()
    assert stage.seat(agent).left == left - 64
    stage.until(head, State.RUNNING)
    assert stage.seat(long).left > 64
    stage.finish()


def test_other_lanes_decode_in_every_round_of_a_move() -> None:
    stage = Stage(lanes=2, pages=24, chunk=64, ram=30)
    steady = stage.submit([1], 60)
    agent = stage.submit([2] * 1_000, 40, "agent")
    stage.rounds(20)
    stage.submit([3] * 600, 30)
    before = len(stage.text[steady])
    rounds = 0
    while stage.state(agent) is not State.PARKED:
        stage.round()
        rounds += 1
    assert rounds > 2, "the move takes several windows"
    assert len(stage.text[steady]) == before + rounds
    stage.finish()


def test_the_victim_holds_its_pages_until_its_last_window_has_landed() -> None:
    stage = Stage(lanes=2, pages=20, chunk=128, ram=30)
    agent = stage.submit([2] * 1_000, 40, "agent")
    stage.rounds(10)
    head = stage.submit([3] * 600, 30)
    stage.round()
    while stage.state(agent) is State.LEAVING:
        assert stage.state(head) is State.WAITING
        assert stage.engine.pages_free() == 20 - 17
        stage.round()
    assert stage.engine.pages_free() == 20
    stage.finish()


def test_kv_ram_gives_up_its_lowest_for_a_newer_one_and_that_is_computed_again() -> None:
    stage = Stage(lanes=2, pages=8, ram=1)
    agents = [stage.submit([at] * 5, 100, "agent") for at in (1, 2)]
    stage.rounds(4)
    stage.submit([3], 50)
    stage.until(agents[1], State.PARKED)
    stage.submit([4], 50)
    stage.until(agents[0], State.PARKED)
    assert stage.state(agents[1]) is State.WAITING
    computed = stage.seat(agents[1]).tokens[:-1]
    stage.finish()
    assert stage.facts["live_dropped kv_ram"] == 1
    assert stage.facts["prefilled_again"] == len(computed)
    assert [one.key for one in stage.notes if one.what == "restarted"] == [agents[1]]


def test_kv_ram_gives_up_nothing_that_ranks_above_the_newer_one() -> None:
    stage = Stage(lanes=2, pages=8, ram=1)
    parked = stage.submit([1] * 5, 100, "agent")
    stage.rounds(2)
    heads = [stage.submit([at], 60) for at in (3, 4)]
    stage.until(parked, State.PARKED)
    stage.rounds(3)
    assert all(stage.state(head) is State.RUNNING for head in heads)
    stage.finish()
    assert stage.facts["live_dropped kv_ram"] == 0


def test_with_kv_disk_on_no_work_is_lost_and_what_finds_no_room_does_not_move() -> None:
    stage = Stage(lanes=3, pages=12, ram=1, disk=1)
    agents = [stage.submit([at] * 5, 60, "agent") for at in (1, 2, 3)]
    stage.rounds(4)
    heads = [stage.submit([10 + at], 40) for at in range(3)]
    for key in (agents[2], agents[1]):
        stage.until(key, State.PARKED)
    stage.rounds(5)
    states = [stage.state(key) for key in (*agents, *heads)]
    parked, running, waiting = State.PARKED, State.RUNNING, State.WAITING
    assert states == [running, parked, parked, running, running, waiting]
    stage.finish()
    assert stage.facts["prefilled_again"] == 0


def test_after_a_failed_move_out_the_sequence_runs_on_and_none_begins_for_a_second() -> None:
    stage, agent, head = pressed(disk=8)
    stage.break_disk()
    stage.rounds(1)
    assert stage.facts == {"move_refused_write disk": 1}
    assert stage.state(agent) is State.RUNNING
    stage.break_disk(False)
    before = len(stage.text[agent])
    stage.now = 0.999
    stage.rounds(6)
    assert len(stage.text[agent]) == before + 6
    assert stage.state(head) is State.WAITING
    stage.now = 1.1
    stage.until(agent, State.PARKED)
    stage.finish()


def test_after_a_failed_move_in_the_sequence_is_computed_again_from_its_tokens() -> None:
    stage, agent, _ = pressed(disk=8)
    stage.until(agent, State.PARKED)
    position = stage.seat(agent).position
    stage.break_disk()
    while not stage.facts["move_refused_read disk"]:
        stage.round()
    assert stage.state(agent) is State.WAITING
    stage.break_disk(False)
    stage.finish()
    assert stage.facts["prefilled_again"] == position


def test_a_sequence_that_is_computed_again_may_move_again() -> None:
    stage, agent, _ = pressed(disk=8)
    stage.until(agent, State.PARKED)
    stage.break_disk()
    while not stage.facts["move_refused_read disk"]:
        stage.round()
    stage.break_disk(False)
    stage.until(agent, State.RUNNING)
    stage.rounds(2)
    stage.submit([7], 3)
    stage.until(agent, State.PARKED)
    stage.finish()
    assert stage.facts["evicted disk"] == 2


def test_what_is_computed_again_up_to_its_last_token_decodes_when_it_returns() -> None:
    stage = Stage(lanes=1, pages=4, chunk=64, disk=8)
    agent = stage.submit(PROMPT, 100, "agent")
    stage.rounds(60)
    assert len(stage.seat(agent).tokens) == 65
    stage.submit([6], 2)
    stage.until(agent, State.PARKED)
    stage.break_disk()
    while not stage.facts["move_refused_read disk"]:
        stage.round()
    stage.break_disk(False)
    stage.until(agent, State.RUNNING)
    while stage.seat(agent).left > 1:
        stage.round()
    assert stage.seat(agent).left == 1
    stage.submit([7], 2)
    stage.until(agent, State.PARKED)
    stage.until(agent, State.RUNNING)
    assert stage.seat(agent).left == 0
    stage.finish()


STATES = [State.WAITING, State.RUNNING, State.LEAVING, State.PARKED, State.ARRIVING]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("sizes", [{"ram": 30}, {"disk": 30}])
def test_a_cancel_in_any_state_gives_back_lane_pages_and_windows(
    state: State, sizes: dict[str, int]
) -> None:
    stage = Stage(lanes=1, pages=20, chunk=128, **sizes)
    agent = stage.submit([2] * 1_000, 60, "agent")
    if state is not State.WAITING:
        stage.rounds(10)
    if state not in {State.WAITING, State.RUNNING}:
        stage.submit([3] * 5, 5)
    stage.until(agent, state)
    stage.cancel(agent)
    held = stage.runner.scheduler.running_count  # the head has one page
    assert stage.engine.pages_free() == 20 - held
    stage.finish()
    assert stage.engine.tiers.used == [0, 0]
    assert stage.engine.pages_free() == 20


def test_an_arriving_sequence_gives_way_at_once_and_keeps_its_image() -> None:
    stage, agent, head = pressed(disk=8)
    stage.until(agent, State.PARKED)
    stage.engine.tiers.waits = lambda tier: True  # type: ignore[method-assign]
    while head not in stage.ended:
        stage.round()
    stage.until(agent, State.ARRIVING)
    better = stage.submit([8], 3)
    stage.until(better, State.RUNNING)
    assert stage.state(agent) is State.PARKED
    stage.engine.tiers.waits = lambda tier: False  # type: ignore[method-assign]
    stage.finish()
    assert stage.facts["evicted disk"] == 1


def test_a_copy_that_nobody_waits_for_is_abandoned_for_a_sequence_that_leaves() -> None:
    stage = Stage(lanes=1, pages=8, slots=2, disk=30)
    agent = stage.submit([1] * 200, 100, "agent", (Mark(100, "checkpoint"),))
    stage.engine.tiers.waits = lambda tier: True  # type: ignore[method-assign]
    stage.rounds(6)
    assert stage.runner.scheduler.transfers.out is not None
    stage.submit([2], 3)
    stage.round()
    assert AbandonOut() in stage.actions
    assert stage.state(agent) is State.LEAVING
    stage.engine.tiers.waits = lambda tier: False  # type: ignore[method-assign]
    stage.finish()
    assert stage.facts["retained_spill disk"] == 1, "it is made later"


def test_an_image_is_freed_when_its_sequence_is_back() -> None:
    stage, agent, _ = pressed(ram=8)
    stage.until(agent, State.PARKED)
    stage.until(agent, State.RUNNING)
    stage.round()
    assert stage.engine.tiers.used == [0, 0]
    assert any(isinstance(one, DropImage) for one in stage.actions)
    stage.finish()
