"""From a config to a plan: budgets, defaults, adaptation and refusals, one case at a time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ignis._native import DeviceUnavailableError
from ignis.config import load_config
from ignis.errors import ConfigError, PlanRefused
from ignis.plan import CARDS, VRAM_LINES, Device, Plan, device_to_plan, device_to_run, make_plan
from ignis.plan.ask import Ask, cut
from ignis.plan.core import sizes_by_ask
from ignis.plan.devices import CPU
from ignis.plan.plan import plan_ask
from tests.unit.plan.fake_core import MODEL, FakeCore

MIB = 1 << 20


def plan_of(
    core: FakeCore | None = None,
    *,
    device: Device | None = None,
    free: int | None = None,
    **options: object,
) -> Plan:
    """A plan with options written as `vram__budget_bytes="1G"`; all of them are named.

    Without the tiers and slots in host memory, which `test_tiers.py` is about.
    """
    options = {"reuse__kv_host_pool_bytes": "0", "reuse__retained_host": "0", **options}
    flags = {key.replace("__", "."): value for key, value in options.items()}
    config = load_config(flags, environ={})
    return make_plan(config, "m.gguf", device=device, free_bytes=free, core=core or FakeCore())


def refusal_of(**options: object) -> PlanRefused:
    with pytest.raises(PlanRefused) as refused:
        plan_of(**options)  # type: ignore[arg-type]
    return refused.value


def fits_of(refusal: PlanRefused) -> dict[str, str]:
    return {one.option: one.fits for one in refusal.suggestions}


def test_the_budget_is_free_less_headroom_and_never_below_zero() -> None:
    plan = plan_of(free=8 << 30)
    assert plan.mode == "derived"
    assert plan.budget_bytes == (8 << 30) - 1536 * MIB
    assert refusal_of(free=1 << 30).budget_bytes == 0


def test_lines_stand_in_order_and_the_pool_last() -> None:
    plan = plan_of()
    assert [line.name for line in plan.lines] == list(VRAM_LINES)
    assert dict(plan.line_bytes())["kv_pool"] == plan.pages * plan.kv_page_bytes
    assert plan.total_bytes + plan.spare_bytes == plan.budget_bytes


def test_free_memory_is_read_once_and_at_start() -> None:
    core = FakeCore()
    readings = iter([4 << 30])
    core.free_bytes = lambda device: next(readings)  # type: ignore[method-assign]
    assert plan_of(core).free_at_start_bytes == 4 << 30


def test_defaults_follow_the_device_and_the_model() -> None:
    plan = plan_of()
    assert (plan.lanes, plan.chunk_tokens, plan.context_tokens) == (4, 512, 8192)
    assert plan.threads >= 1
    card = plan_of(device=CARDS["rtx5090"])
    assert (card.lanes, card.chunk_tokens) == (8, 1024)
    small = FakeCore(model=replace(MODEL, context_trained=100))
    assert plan_of(small).chunk_tokens == 128
    unknown = FakeCore(model=replace(MODEL, context_trained=0))
    assert plan_of(unknown).context_tokens == 4096


def test_on_the_cpu_the_pool_holds_at_most_every_lanes_context() -> None:
    plan = plan_of(free=64 << 30)
    assert plan.pages == 4 * 8192 // 64
    assert plan_of(free=64 << 30, device=device_to_plan("h200")).pages > 8 * 8192 // 64


def test_a_context_beyond_what_the_model_was_trained_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--model-max-context is 16,384 tokens.*8,192"):
        plan_of(model__max_context="16K")


def test_a_named_pool_is_the_pool_and_the_rest_stays_unused() -> None:
    plan = plan_of(vram__kv_pool_bytes="1G", free=64 << 30)
    assert plan.pages == (1 << 30) // plan.kv_page_bytes
    assert plan.spare_bytes > 32 << 30
    assert plan_of(vram__kv_pool_bytes="16Ktok").pages == 256
    assert plan_of(vram__kv_pool_bytes="16385tok").pages == 257


def test_a_named_pool_below_the_floor_is_refused_in_the_operators_unit() -> None:
    refusal = refusal_of(vram__kv_pool_bytes="4Ktok", model__max_context="8192")
    assert "4Ktok" in refusal.message
    assert "8,192 tokens, 128 pages" in refusal.message
    assert fits_of(refusal) == {"model.max_context": "4096", "vram.kv_pool_bytes": "8Ktok"}
    refusal = refusal_of(vram__kv_pool_bytes="10M", model__max_context="8192")
    assert "188,743,680 bytes" in refusal.message
    assert fits_of(refusal)["vram.kv_pool_bytes"] == "180M"


def test_a_named_pool_lowers_a_context_nobody_named() -> None:
    plan = plan_of(vram__kv_pool_bytes="4Ktok")
    assert plan.context_tokens == 2048
    assert [step.option for step in plan.adapted] == ["model.max_context"]


def test_a_budget_above_free_is_refused_with_both_figures() -> None:
    free = 8 << 30
    refusal = refusal_of(free=free, vram__budget_bytes=str(free + 1))
    assert f"{free + 1:,} bytes" in refusal.message
    assert f"{free:,} bytes" in refusal.message
    assert fits_of(refusal) == {"vram.budget_bytes": "8G", "vram.allow_oversubscription": "on"}
    assert plan_of(free=free, vram__budget_bytes=str(free)).mode == "explicit"


def test_oversubscription_starts_above_free_and_below_the_minimum_and_says_so() -> None:
    plan = plan_of(free=1 << 30, vram__budget_bytes="2G", vram__allow_oversubscription="on")
    assert len(plan.oversubscribed) == 1
    plan = plan_of(
        vram__budget_bytes="50M", vram__allow_oversubscription="on", model__max_context="8192"
    )
    assert plan.pages == plan.floor_pages == 128
    assert "minimum" in plan.oversubscribed[0]
    assert plan.total_bytes > plan.budget_bytes


def test_o06_a_budget_one_mib_short_names_every_named_option_and_lowers_none() -> None:
    core = FakeCore()
    ask = Ask(
        context_tokens=8192,
        lanes=4,
        chunk_tokens=512,
        retained_device=2,
        free_bytes=8 << 30,
        budget_bytes=1,
        named=frozenset({"model.max_context", "model.lanes", "reuse.retained_device"}),
    )
    sizes_of = sizes_by_ask(core, "m", "cpu")
    need = cut(ask, sizes_of(ask)).needed_bytes
    with pytest.raises(PlanRefused) as refused:
        plan_ask(replace(ask, budget_bytes=need - MIB), MODEL, CPU, sizes_of)
    refusal = refused.value
    assert refusal.shortfall_bytes == MIB
    assert refusal.adapted == ()
    assert {"model.max_context", "model.lanes", "reuse.retained_device"} <= set(fits_of(refusal))
    assert plan_ask(replace(ask, budget_bytes=need), MODEL, CPU, sizes_of).lanes == 4


def test_o10_retained_slots_raise_the_need_and_the_refusal_names_them() -> None:
    sizes_of = sizes_by_ask(FakeCore(), "m", "cpu")
    without = Ask(
        context_tokens=8192,
        lanes=1,
        chunk_tokens=512,
        free_bytes=8 << 30,
        named=frozenset({"model.max_context", "model.lanes", "reuse.retained_host"}),
    )
    need = cut(without, sizes_of(without)).needed_bytes
    largest = replace(without, budget_bytes=need)
    plan_ask(largest, MODEL, CPU, sizes_of)
    with pytest.raises(PlanRefused) as refused:
        plan_ask(replace(largest, retained_host=8), MODEL, CPU, sizes_of)
    assert fits_of(refused.value)["reuse.retained_host"] == "0"


def test_the_context_is_lowered_before_the_lanes_and_leaves_a_spare() -> None:
    plan = plan_of(free=(1536 + 260) * MIB)
    assert plan.lanes == 4
    assert plan.context_tokens < 8192
    assert plan.pages >= plan.floor_pages + plan.context_tokens // 64
    (step,) = plan.adapted
    assert step.as_dict()["from"] == 8192
    assert step.as_dict()["to"] == plan.context_tokens
    assert "more than the budget" in step.reason


def test_without_a_spare_a_larger_context_is_kept() -> None:
    free = (1536 + 260) * MIB
    kept = plan_of(free=free, vram__adapt_spare_tokens="0").context_tokens
    assert kept > plan_of(free=free).context_tokens


def test_lanes_are_lowered_when_the_context_is_named() -> None:
    core = FakeCore(lane_bytes=200 * MIB)
    plan = plan_of(core, free=(1536 + 600) * MIB, model__max_context="4096")
    assert plan.context_tokens == 4096
    assert plan.lanes == 2
    assert [step.option for step in plan.adapted] == ["model.lanes"]


def test_a_named_lane_count_and_context_never_adapt() -> None:
    refusal = refusal_of(free=(1536 + 200) * MIB, model__max_context="8192", model__lanes="4")
    assert refusal.adapted == ()
    fits = fits_of(refusal)
    assert int(fits["model.max_context"]) % 64 == 0
    assert set(fits) == {"model.max_context", "vram.headroom_bytes"}


def test_named_lanes_still_start_with_the_least_context_that_fits_without_a_spare() -> None:
    core = FakeCore()
    plan = plan_of(core, free=(1536 + 165) * MIB, model__lanes="4")
    assert plan.lanes == 4
    assert plan.context_tokens >= 2048


def test_together_names_a_set_that_fits_when_no_option_is_enough_alone() -> None:
    core = FakeCore(lane_bytes=30 * MIB, row_bytes=200_000)
    options: dict[str, Any] = {
        "model__max_context": "8192",
        "model__lanes": "4",
        "vram__headroom_bytes": "0",
    }
    free = 150 * MIB
    with pytest.raises(PlanRefused) as refused:
        plan_of(core, free=free, **options)
    refusal = refused.value
    assert refusal.suggestions == ()
    assert len(refusal.together) > 1
    changed = {one.option.replace(".", "__"): one.fits for one in refusal.together}
    plan_of(core, free=free, **{**options, **changed})


def test_when_nothing_helps_nothing_is_named() -> None:
    refusal = refusal_of(free=50 * MIB)
    assert refusal.suggestions == ()
    assert refusal.together == ()


def test_f32_pages_suggest_bf16() -> None:
    refusal = refusal_of(
        free=(1536 + 320) * MIB,
        model__kv_format="f32",
        model__max_context="8192",
        model__lanes="1",
    )
    assert fits_of(refusal)["model.kv_format"] == "bf16"


def test_a_card_that_is_not_here_has_recorded_figures_marked_estimated() -> None:
    plan = plan_of(device=device_to_plan("rtx5090"))
    assert plan.free_at_start_bytes == 32_607 * MIB
    estimated = {line.name: line.bytes for line in plan.lines if line.estimated}
    assert estimated == {"cuda_context": 452_595_712, "residual": 88_028_656}
    assert plan_of(device=device_to_plan("rtx5090"), free=30 << 30).free_at_start_bytes == 30 << 30


def no_card() -> None:
    raise DeviceUnavailableError("no NVIDIA driver was found (libcuda.so.1); install it")


def test_devices_that_cannot_be_used_are_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.plan.devices.find_card", no_card)
    with pytest.raises(ConfigError, match="did you mean rtx5090"):
        device_to_plan("rtx509")
    with pytest.raises(ConfigError, match=r"no NVIDIA driver was found .* name it"):
        device_to_plan("cuda")
    with pytest.raises(ConfigError, match=r"IGNIS_DEVICE: no NVIDIA driver was found"):
        device_to_run(load_config(environ={"IGNIS_DEVICE": "cuda"}))
    assert device_to_run(load_config(environ={})).kind == "cpu"


def test_a_card_that_is_here_is_taken_and_what_its_driver_takes_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr("ignis.plan.devices.find_card", lambda: card)
    device = device_to_run(load_config(environ={}))
    assert (device.kind, device.title) == ("cuda", "NVIDIA H200")
    assert device_to_run(load_config(environ={"IGNIS_DEVICE": "cpu"})).kind == "cpu"
    plan = plan_of(device=device)
    lines = {line.name: line for line in plan.lines}
    assert (lines["cuda_context"].bytes, lines["residual"].bytes) == (500 * MIB, 4 * MIB)
    assert not any(line.estimated for line in plan.lines)


def test_activations_are_those_of_the_device_that_is_planned_for() -> None:
    named = {"cpu__activations": "f32"}
    assert plan_of(**named).activations == "f32"
    assert plan_of(device=device_to_plan("h200"), **named).activations == "bf16"
    plan = plan_of(device=device_to_plan("h200"), cuda__activations="f32")
    assert plan.activations == "f32"
    assert plan_of(cuda__activations="f32").activations == "int8"


def test_fast_products_are_of_a_card_and_of_bf16() -> None:
    h200 = device_to_plan("h200")
    assert plan_of(device=h200).products == "same"
    assert plan_of(device=h200, cuda__products="fast").products == "fast"
    assert plan_of(cuda__products="fast").products == "same"
    with pytest.raises(ConfigError, match=r"cuda\.activations bf16"):
        plan_of(device=h200, cuda__products="fast", cuda__activations="f32")


def test_kernels_are_planned_as_they_were_asked_for() -> None:
    assert plan_of(device=device_to_plan("h200")).kernels == "own"
    assert plan_of(device=device_to_plan("h200"), cuda__kernels="portable").kernels == "portable"


def test_what_the_driver_takes_is_not_allocated_at_load() -> None:
    plan = plan_of(device=device_to_plan("h200"))
    lines = {line.name: line.bytes for line in plan.lines}
    assert lines["decode_graph"] > 0
    outside = lines["cuda_context"] + lines["residual"] + lines["decode_graph"]
    assert plan.allocated_at_load_bytes == plan.total_bytes - outside


def test_each_distinct_dry_run_is_done_once() -> None:
    core = FakeCore()
    plan_of(core)
    assert core.calls == 1
    core = FakeCore()
    with pytest.raises(PlanRefused):
        plan_of(core, free=(1536 + 100) * MIB)
    assert core.calls < 150


@pytest.mark.parametrize("free_gib", [40, 80, 141])
@pytest.mark.parametrize("asked", [{}, {"model__lanes": "16", "model__max_context": "4096"}])
def test_the_budget_of_another_card_gives_that_cards_plan(
    free_gib: int, asked: dict[str, str]
) -> None:
    """A plan depends on the budget and on what was measured, not on the card that is here."""
    core = FakeCore(token_bytes=2_000_000)
    other = replace(device_to_plan("rtx5090"), recorded=core.measured("tiny.gguf", "cuda"))
    theirs = plan_of(core, device=other, **asked)
    here = Device("cuda", "cuda", "NVIDIA H200")
    budget = str(theirs.budget_bytes)
    ours = plan_of(core, device=here, free=free_gib << 30, vram__budget_bytes=budget, **asked)
    assert theirs.budget_bytes < theirs.free_at_start_bytes < ours.free_at_start_bytes
    assert ours.line_bytes() == theirs.line_bytes()
    same = {"free_at_start_bytes", "device", "mode", "lines"}
    for name in ours.__slots__:
        if name not in same:
            assert getattr(ours, name) == getattr(theirs, name), name
