"""What a card's driver counts after a load, beside the plan: told, refused or allowed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ignis.config import load_config
from ignis.engine.counted import SLACK_BYTES, compare, refuse_beyond
from ignis.errors import PlanRefused
from ignis.plan import Device, Plan, make_plan
from ignis.plan.report import print_refusal
from ignis.plan.units import exact
from tests.unit.plan.fake_core import FakeCore

HERE = Device("cuda", "cuda", "A card")
GIB = 1 << 30


def plan_of(**flags: str) -> Plan:
    options = {name.replace("__", "."): value for name, value in flags.items()}
    config = load_config({"reuse.kv_host_pool_bytes": "0"} | options, environ={})
    return make_plan(config, "m.gguf", device=HERE, core=FakeCore(free=8 * GIB))


@pytest.mark.parametrize("difference", [-4 << 20, 0, SLACK_BYTES])
def test_a_count_within_the_slack_passes(difference: int) -> None:
    plan = plan_of()
    counted = compare(plan, plan.total_bytes + difference)
    assert (counted.difference_bytes, counted.is_beyond) == (difference, False)
    refuse_beyond(counted, plan)


def test_a_count_beyond_the_slack_is_refused_in_one_sentence_with_its_remedy() -> None:
    plan = plan_of()
    more = SLACK_BYTES + 1
    counted = compare(plan, plan.total_bytes + more)
    assert counted.is_beyond
    with pytest.raises(PlanRefused) as refused:
        refuse_beyond(counted, plan)
    refusal = refused.value
    for figure in (plan.total_bytes + more, more, plan.total_bytes):
        assert exact(figure) in refusal.message
    budget = (plan.budget_bytes - more) >> 20
    remedy = f"--vram-budget-bytes {budget}M and --vram-allow-oversubscription on"
    assert refusal.message.endswith(remedy)
    assert "\n" not in refusal.message
    assert (refusal.plan, refusal.shortfall_bytes) == ("vram", more)
    assert (refusal.budget_bytes, refusal.planned_bytes) == (plan.budget_bytes, plan.total_bytes)
    assert [one.fits for one in refusal.together] == [f"{budget}M", "on"]


def test_the_remedy_of_a_refusal_starts_with_the_same_count() -> None:
    plan, more = plan_of(), 100 << 20
    with pytest.raises(PlanRefused) as refused:
        refuse_beyond(compare(plan, plan.total_bytes + more), plan)
    flags = {one.option.replace(".", "__"): one.fits for one in refused.value.together}
    followed = plan_of(**flags)
    counted = compare(followed, followed.total_bytes + more)
    assert counted.is_beyond
    refuse_beyond(counted, followed)
    assert followed.total_bytes + more <= plan.budget_bytes


def test_a_refusal_prints_the_plan_beside_the_budget() -> None:
    plan = plan_of(vram__kv_pool_bytes="8Ktok")
    assert plan.total_bytes < plan.budget_bytes
    with pytest.raises(PlanRefused) as refused:
        refuse_beyond(compare(plan, plan.total_bytes + (100 << 20)), plan)
    console = Console(file=io.StringIO(), width=200)
    print_refusal(refused.value, console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    told = {row[0]: row[1] for row in rows if len(row) > 1}
    assert told["budget"] == f"{plan.budget_bytes:,}"
    assert told["planned"] == f"{plan.total_bytes:,}"
    assert told["shortfall"] == f"{100 << 20:,}"


def test_what_is_less_than_was_reserved_is_another_process() -> None:
    plan = plan_of()
    reserved = plan.allocated_at_load_bytes
    assert compare(plan, reserved).reason is None
    counted = compare(plan, reserved - 1)
    assert (counted.counted_bytes, counted.difference_bytes) == (reserved - 1, None)
    assert not counted.is_beyond
    assert str(counted.reason).startswith(f"fewer than the {reserved} reserved")


def test_a_driver_that_does_not_say_is_told_apart_from_one_that_counts_another() -> None:
    counted = compare(plan_of(), None)
    assert (counted.counted_bytes, counted.difference_bytes) == (None, None)
    assert counted.reason == "the driver does not say"
