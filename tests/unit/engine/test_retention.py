"""Retention: what is kept of a prompt, and who goes on from it."""

from __future__ import annotations

import pytest

from ignis.engine.actions import Adopt, Capture
from ignis.engine.api import Mark
from ignis.engine.rounds import ReuseOptions
from ignis.engine.seats import State
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
