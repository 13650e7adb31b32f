"""Retention: what is kept of a prompt, who goes on from it, and what gives way to whom."""

from __future__ import annotations

import pytest

from ignis.engine.actions import Adopt, Capture, MoveIn, Spill
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


def test_the_same_prompt_is_computed_from_its_checkpoint_on() -> None:
    stage = Stage(slots=2)
    for _ in range(2):
        stage.submit([*HEAD, 1, 2], 4, marks=checkpoint(131))
        stage.finish()
    assert [stage.reused(key) for key in (0, 1)] == [0, 131]
    assert stage.facts == {
        "retained_miss device": 1,
        "retained_hit device": 1,
        "retained_reused_tokens device": 131,
    }


def test_a_chunk_ends_at_every_mark() -> None:
    stage = Stage(slots=4, chunk=50)
    stage.submit(HEAD, 2, marks=(Mark(64, "prefix"), Mark(128, "checkpoint")))
    chunks = []
    while stage.runner.has_work:
        stats = stage.round().stats
        assert stats is not None
        chunks.append(stats.prefill_tokens)
    assert [chunk for chunk in chunks if chunk] == [50, 14, 50, 14, 2]
    assert kept(stage) == [("checkpoint", 128), ("prefix", 64)]


@pytest.mark.parametrize("position", [-1, 0, 130, 131])
def test_a_mark_outside_the_prompt_is_ignored(position: int) -> None:
    stage = Stage(slots=2)
    stage.submit(HEAD, 2, marks=checkpoint(position))
    stage.finish()
    assert kept(stage) == []


def test_the_last_prompt_token_is_always_computed() -> None:
    """O23: a prompt equal to, or shorter than, what is kept."""
    stage = Stage(slots=4)
    stage.submit(HEAD, 2, marks=checkpoint(129))
    stage.finish()
    for prompt, reused in ((HEAD, 129), (HEAD[:129], 0), (HEAD[:1], 0), ([*HEAD[:129], 8], 129)):
        key = stage.submit(prompt, 3)
        stage.finish()
        assert stage.reused(key) == reused


def test_each_turn_of_a_conversation_goes_on_from_the_one_before() -> None:
    stage = Stage(lanes=1, pages=16, slots=8)
    prompt = [5] * 70
    for turn in range(5):
        key = stage.submit(prompt, 6, marks=checkpoint(len(prompt) - 1))
        stage.finish()
        assert (stage.reused(key) > 0) == (turn > 0)
        prompt = prompt + stage.text[key] + [turn] * 20
    assert len(kept(stage)) == 2, "a conversation keeps its two latest checkpoints"


def test_the_longest_match_wins() -> None:
    stage = Stage(slots=4)
    stage.submit(HEAD, 2, marks=(Mark(64, "prefix"), Mark(100, "checkpoint")))
    stage.finish()
    key = stage.submit([*HEAD[:110], 3], 2)
    stage.finish()
    assert stage.reused(key) == 100


def test_siblings_of_one_prompt_cost_one_prefill() -> None:
    stage = Stage(lanes=4, pages=20, slots=2)
    for _ in range(4):
        stage.submit(HEAD, 4, marks=checkpoint(129))
    computed = 0
    while stage.runner.has_work:
        stats = stage.round().stats
        assert stats is not None
        computed += stats.prefill_tokens
    assert computed == 130 + 3 * 1
    assert sum(isinstance(action, Adopt) for action in stage.actions) == 3
    assert stage.facts["retained_miss device"] == 1


def test_sequences_seated_from_one_prefix_still_share_what_the_first_computes() -> None:
    stage = Stage(lanes=4, pages=40, slots=3)
    stage.submit(HEAD[:100], 1, marks=(Mark(64, "prefix"),))
    stage.finish()
    computed = 0
    for _ in range(4):
        stage.submit(HEAD, 3, marks=checkpoint(129))
    while stage.runner.has_work:
        stats = stage.round().stats
        assert stats is not None
        computed += stats.prefill_tokens
    assert computed == (130 - 64) + 3 * 1
    assert stage.facts["retained_hit device"] == 4
    assert stage.facts["retained_reused_tokens device"] == 4 * 64 + 3 * (129 - 64)


def test_an_adoption_frees_the_pages_that_are_shared_now() -> None:
    stage = Stage(lanes=2, pages=8, slots=1, chunk=130)
    for _ in range(2):
        stage.submit(HEAD, 20, marks=checkpoint(129))
    stage.round()
    assert stage.engine.pages_free() == 8 - 6
    stage.rounds(3)
    assert stage.engine.pages_free() == 8 - 4
    stage.finish()


def test_a_claim_takes_only_the_pages_that_it_does_not_share() -> None:
    stage = Stage(lanes=2, pages=4, slots=1)
    stage.submit(HEAD, 40, marks=checkpoint(129))
    stage.rounds(4)
    key = stage.submit(HEAD, 40)
    stage.rounds(2)
    assert stage.state(key) is State.RUNNING
    assert stage.engine.pages_free() == 0
    stage.finish()


def test_what_was_captured_stays_when_its_sequence_is_cancelled() -> None:
    stage = Stage(slots=1)
    key = stage.submit(HEAD, 40, marks=checkpoint(129))
    while not any(isinstance(action, Capture) for action in stage.actions):
        stage.round()
    stage.cancel(key)
    stage.finish()
    assert kept(stage) == [("checkpoint", 129)]


def test_without_a_free_slot_the_least_recently_used_checkpoint_goes() -> None:
    stage = Stage(slots=2)
    prompts = [[at] * 70 for at in range(3)]
    for prompt in (*prompts[:2], prompts[0], prompts[2]):
        stage.submit(prompt, 2, marks=checkpoint(69))
        stage.finish()
    assert sorted(entry.tokens[0] for entry in stage.runner.ledger.index) == [0, 2]
    assert stage.facts["retained_discard device"] == 1


def test_checkpoints_go_before_prefixes_and_agents_before_interactive_ones() -> None:
    stage = Stage(lanes=1, pages=16, slots=3)
    stage.submit([1] * 70, 2, marks=(Mark(64, "prefix"),))
    stage.finish()
    stage.submit([2] * 70, 2, marks=checkpoint(69))
    stage.finish()
    stage.submit([3] * 70, 2, "agent", marks=checkpoint(69))
    stage.finish()
    stage.submit([4] * 70, 2, "agent", marks=checkpoint(69))
    stage.finish()
    assert sorted(entry.tokens[0] for entry in stage.runner.ledger.index) == [1, 2, 4]


def test_a_capture_that_finds_every_slot_in_use_is_skipped_and_counted() -> None:
    stage = Stage(lanes=2, pages=16, slots=1, ram=30)
    stage.submit([1] * 70, 2, marks=checkpoint(69))
    stage.finish()
    (entry,) = stage.runner.ledger.index
    entry.claims = 1
    stage.submit([2] * 70, 2, marks=checkpoint(69))
    stage.submit([3] * 70, 2, marks=(Mark(64, "prefix"),))
    stage.finish()
    entry.claims = 0
    assert stage.facts["skipped_capture_no_slot"] == 1
    assert stage.facts["skipped_publish_no_slot"] == 1


def test_with_no_slots_at_all_prompts_are_not_even_cut() -> None:
    stage = Stage(slots=0, chunk=130)
    stage.submit(HEAD, 2, marks=checkpoint(100))
    stats = stage.round().stats
    assert stats is not None
    assert stats.prefill_tokens == 130
    stage.finish()


def test_with_prompt_reuse_off_only_prefixes_are_kept() -> None:
    stage = Stage(slots=4, reuse=ReuseOptions(checkpoints=False, seed=bytes(16)))
    stage.submit(HEAD, 2, marks=(Mark(64, "prefix"), Mark(129, "checkpoint")))
    stage.finish()
    assert kept(stage) == [("prefix", 64)]


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
    assert stage.facts["retained_discard kv_ram"] <= 1
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
