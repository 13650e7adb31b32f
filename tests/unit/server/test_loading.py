"""What `/v1/models` tells of a plan, and what a start compares when the load is over."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from ignis import _native
from ignis.config import load_config
from ignis.errors import PlanRefused
from ignis.plan import CPU, Device, Plan, device_to_plan
from ignis.server import loading
from ignis.server.loading import facts_of
from tests.unit.plan.test_plan import plan_of

CARD = Device("cuda", "cuda", "A card")


def test_the_facts_name_the_device_and_no_path() -> None:
    facts = facts_of(plan_of(device=device_to_plan("h200")))
    assert facts["device"] == {"name": "h200", "kind": "cuda", "title": "NVIDIA H200"}
    assert "m.gguf" not in json.dumps(facts)


class Reached(Exception):
    """The load is over and the engine would start."""


def reach_the_engine(_: object) -> None:
    raise Reached


async def load(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `running_model` does with a plan whose load goes well."""
    engine = SimpleNamespace(recorded_rounds=None)
    tokenizer = SimpleNamespace(vocab_size=1)
    progress = SimpleNamespace(bytes_done=lambda: 0, bytes_total=lambda: 0)
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: engine)
    monkeypatch.setattr(loading, "text_of_model", lambda *_: (tokenizer, None))
    monkeypatch.setattr(loading, "new_progress", lambda: progress)
    monkeypatch.setattr(loading, "native_core", reach_the_engine)
    config = load_config({}, environ={})
    async with loading.running_model(config, plan, None, Console(quiet=True)):
        pass


async def test_a_start_fails_where_the_driver_counts_more_than_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(device=CARD)
    monkeypatch.setattr(_native, "process_bytes", lambda: plan.total_bytes + (1 << 30))
    with pytest.raises(PlanRefused, match="the driver counts"):
        await load(plan, monkeypatch)


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_start_goes_on_where_it_counts_as_much_or_does_not_say(
    is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(device=CARD)
    counted = plan.total_bytes if is_counted else None
    monkeypatch.setattr(_native, "process_bytes", lambda: counted)
    with pytest.raises(Reached):
        await load(plan, monkeypatch)


async def test_the_driver_is_not_asked_of_a_start_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "process_bytes", lambda: pytest.fail("there is no card to ask"))
    with pytest.raises(Reached):
        await load(plan_of(device=CPU), monkeypatch)
