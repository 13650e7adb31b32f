"""The plans of host memory and of KV-disk: what they take, what gives way, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignis.config import load_config
from ignis.errors import ConfigError, PlanRefused
from ignis.plan import CARDS, HOST_LINES, Device, Plan, make_plan
from tests.unit.plan.fake_core import FakeCore

MIB, GIB = 1 << 20, 1 << 30
HEADROOM = 1536 * MIB
CARD = CARDS["rtx5090"]


def plan_of(
    core: FakeCore | None = None,
    *,
    device: Device | None = None,
    free: int | None = None,
    host_free: int | None = None,
    **options: object,
) -> Plan:
    flags = {key.replace("__", "."): value for key, value in options.items()}
    config = load_config(flags, environ={})
    return make_plan(
        config,
        "m.gguf",
        device=device,
        free_bytes=free,
        host_free_bytes=host_free,
        core=core or FakeCore(),
    )


def refusal_of(**options: object) -> PlanRefused:
    with pytest.raises(PlanRefused) as refused:
        plan_of(**options)  # type: ignore[arg-type]
    return refused.value


def lowered(plan: Plan) -> dict[str, int | str]:
    return {step.option: step.after for step in plan.adapted}


def fits_of(refusal: PlanRefused) -> dict[str, str]:
    return {one.option: one.fits for one in refusal.suggestions}


def test_by_default_there_are_two_slots_a_lane_and_two_gib_of_kv_ram() -> None:
    plan = plan_of(free=8 * GIB)
    assert (plan.retained_device_slots, plan.retained_host_slots) == (0, 8)
    assert [line.name for line in plan.host.lines] == list(HOST_LINES)
    assert plan.retained_host_bytes == 8 * FakeCore().slot_bytes
    assert plan.kv_ram_bytes == 2 * GIB
    assert plan.host.line_bytes("kv_disk_staging") == 0
    assert plan.disk is None
    assert plan_of(free=8 * GIB, model__lanes="3").retained_host_slots == 6
    assert plan_of(free=8 * GIB, reuse__prompt="off").retained_host_slots == 0
    assert (
        plan_of(free=8 * GIB, reuse__prompt="off", reuse__retained_host=4).retained_host_slots == 4
    )


def test_on_the_cpu_the_host_lines_come_out_of_the_same_memory() -> None:
    plan = plan_of(free=8 * GIB)
    host = plan.host
    assert plan.budget_bytes == 8 * GIB - HEADROOM - host.total_bytes
    assert plan.total_bytes + host.total_bytes <= 8 * GIB - HEADROOM
    assert (host.available_bytes, host.margin_bytes, host.shared) == (8 * GIB, HEADROOM, True)


def test_every_retained_slot_holds_a_page_of_the_floor() -> None:
    bare = plan_of(free=8 * GIB, reuse__retained_host=0)
    more = plan_of(free=8 * GIB, reuse__retained_host=5, reuse__retained_device=2)
    assert more.floor_pages == bare.floor_pages + 7
    assert dict(more.line_bytes())["retained_slots"] == 2 * FakeCore().slot_bytes


def test_kv_ram_is_whole_windows() -> None:
    plan = plan_of(free=8 * GIB, reuse__kv_host_pool_bytes=str(100 * MIB + 5))
    assert plan.kv_ram_bytes == 100 * MIB
    assert plan_of(free=8 * GIB, reuse__kv_host_pool_bytes="1000K").kv_ram_bytes == 0


def test_kv_ram_smaller_than_the_longest_sequence_is_allowed_and_said() -> None:
    plan = plan_of(free=8 * GIB, reuse__kv_host_pool_bytes="100M")
    (note,) = plan.host.notes
    assert "100 windows" in note
    assert f"{plan.image_windows:,}" in note
    assert plan_of(free=8 * GIB).host.notes == ()
    assert plan_of(free=8 * GIB, reuse__kv_host_pool_bytes="0").host.notes == ()


def test_kv_ram_gives_way_in_halves_before_slots_context_and_lanes() -> None:
    assert lowered(plan_of(free=HEADROOM + 2200 * MIB)) == {"reuse.kv_host_pool_bytes": GIB}
    assert lowered(plan_of(free=HEADROOM + 350 * MIB)) == {"reuse.kv_host_pool_bytes": 32 * MIB}
    plan = plan_of(free=HEADROOM + 300 * MIB)
    steps = lowered(plan)
    assert steps["reuse.kv_host_pool_bytes"] == 0
    assert list(steps) == ["reuse.kv_host_pool_bytes", "reuse.retained_host"]
    assert 0 < steps["reuse.retained_host"] < 8
    assert (plan.context_tokens, plan.lanes) == (8192, 4)
    steps = lowered(plan_of(free=HEADROOM + 200 * MIB))
    assert steps["reuse.retained_host"] == 0
    assert "model.max_context" in steps


def test_named_host_values_stay_and_the_context_gives_way() -> None:
    plan = plan_of(
        free=HEADROOM + 400 * MIB, reuse__kv_host_pool_bytes="160M", reuse__retained_host="8"
    )
    assert (plan.kv_ram_bytes, plan.retained_host_slots) == (160 * MIB, 8)
    assert set(lowered(plan)) == {"model.max_context"}


def test_the_reason_says_host_memory_where_that_is_what_is_short() -> None:
    (step,) = plan_of(free=HEADROOM + 2000 * MIB).adapted
    assert step.reason.startswith("host memory needs 2.01 GiB and has")


def test_o09_a_host_refusal_says_host_gib_the_first_line_that_crosses_and_the_flags() -> None:
    core = FakeCore(slot_bytes=128 * MIB)
    refusal = refusal_of(core=core, free=4 * GIB, reuse__retained_host="64")
    assert refusal.plan == "host"
    for words in (
        "host plan needs 8.00 GiB",
        "4.00 GiB are available less a margin of 1.50 GiB",
        "retained_host_slots crosses it",
        "kv_ram_arena 0.00 GiB",
        "--reuse-retained-host or --reuse-kv-host-pool-bytes",
    ):
        assert words in refusal.message
    assert refusal.shortfall_bytes == 8 * GIB - (4 * GIB - HEADROOM)
    assert [step["option"] for step in refusal.adapted] == ["reuse.kv_host_pool_bytes"]
    slots = int(fits_of(refusal)["reuse.retained_host"])
    assert plan_of(core, free=4 * GIB, reuse__retained_host=str(slots)).retained_host_slots == slots


def test_a_named_arena_that_crosses_is_named_with_what_would_fit() -> None:
    refusal = refusal_of(free=8 * GIB, reuse__kv_host_pool_bytes="16G")
    assert refusal.plan == "host"
    assert "kv_ram_arena crosses it" in refusal.message
    fits = fits_of(refusal)["reuse.kv_host_pool_bytes"]
    assert plan_of(free=8 * GIB, reuse__kv_host_pool_bytes=fits).retained_host_slots >= 0


def test_with_an_explicit_budget_both_plans_stay_within_what_is_free() -> None:
    assert plan_of(free=8 * GIB, vram__budget_bytes="3G").budget_bytes == 3 * GIB
    plan = plan_of(free=4 * GIB, vram__budget_bytes="3G")
    assert plan.kv_ram_bytes == 2 * GIB
    assert plan.budget_bytes == 4 * GIB - plan.host.total_bytes
    plan = plan_of(free=4 * GIB, vram__budget_bytes="4G", reuse__kv_host_pool_bytes="3900M")
    assert list(lowered(plan)) == ["reuse.retained_host", "model.max_context", "model.lanes"]
    short = plan_of(free=8 * GIB, vram__budget_bytes="230M")
    assert set(lowered(short)) == {"model.max_context"}  # KV-RAM is no part of that budget
    refusal = refusal_of(free=4 * GIB, vram__budget_bytes="4G", reuse__kv_host_pool_bytes="5G")
    assert refusal.plan == "host"


def test_a_card_has_a_host_plan_of_its_own_against_ram_less_a_margin() -> None:
    plan = plan_of(device=CARD, host_free=64 * GIB)
    host = plan.host
    assert plan.budget_bytes == plan.free_at_start_bytes - HEADROOM
    assert (host.available_bytes, host.margin_bytes, host.shared) == (64 * GIB, 6 * GIB, False)
    assert plan.retained_host_slots == 16
    assert plan.adapted == ()


def test_beside_a_card_unnamed_host_lines_give_way_and_named_ones_refuse() -> None:
    plan = plan_of(device=CARD, host_free=7 * GIB)
    assert lowered(plan) == {"reuse.kv_host_pool_bytes": 512 * MIB}
    assert plan.context_tokens == 8192
    refusal = refusal_of(device=CARD, host_free=7 * GIB, reuse__kv_host_pool_bytes="2G")
    assert refusal.plan == "host"
    assert refusal.budget_bytes == GIB
    fits = fits_of(refusal)
    assert "model.host_margin_bytes" in fits
    for option, value in fits.items():
        options = {"reuse__kv_host_pool_bytes": "2G", option.replace(".", "__"): value}
        plan_of(device=CARD, host_free=7 * GIB, **options)


def test_a_cards_host_plan_has_a_line_for_what_the_card_pins_and_all_of_it_is_pinned() -> None:
    core = FakeCore()
    plan = plan_of(core, device=CARD, host_free=64 * GIB)
    assert plan.host.line_bytes("device_pinned") == core.round_bytes + core.table_bytes
    assert plan.pinned_bytes == plan.host.total_bytes
    named = {"reuse__kv_host_pool_bytes": "2G", "model__embedding_residency": "host"}
    refusal = refusal_of(device=CARD, host_free=7 * GIB, **named)
    assert "of pinned host memory" in refusal.message
    assert "device_pinned 0.03 GiB" in refusal.message
    assert "or set --model-embedding-residency to device" in refusal.message
    on_cpu = plan_of(core, free=8 * GIB)
    assert (on_cpu.host.line_bytes("device_pinned"), on_cpu.pinned_bytes) == (0, 0)


def test_the_embedding_table_lies_where_the_option_says() -> None:
    core = FakeCore()
    host = plan_of(core, device=CARD, host_free=64 * GIB)
    device = plan_of(core, device=CARD, host_free=64 * GIB, model__embedding_residency="device")
    assert (host.embedding, device.embedding) == ("host", "device")
    weights = [dict(plan.line_bytes())["weights"] for plan in (host, device)]
    assert weights[1] - weights[0] == core.table_bytes
    assert host.host.total_bytes - device.host.total_bytes == core.table_bytes
    assert plan_of(core, free=8 * GIB).embedding == "device", "the CPU has one memory"


def test_a_table_that_host_memory_cannot_hold_goes_to_the_device_unless_it_was_named() -> None:
    core = FakeCore(weights=3 * GIB, table_bytes=2 * GIB)
    plan = plan_of(core, device=CARD, host_free=7 * GIB)
    assert lowered(plan) == {
        "reuse.kv_host_pool_bytes": 0,
        "reuse.retained_host": 0,
        "model.embedding_residency": "device",
    }
    named = {"model__embedding_residency": "host"}
    refusal = refusal_of(core=core, device=CARD, host_free=7 * GIB, **named)
    assert refusal.plan == "host"
    assert fits_of(refusal)["model.embedding_residency"] == "device"


def test_a_card_that_is_too_small_for_the_table_is_told_that_the_host_could_have_it() -> None:
    core = FakeCore(weights=10 * GIB, table_bytes=2 * GIB)
    sizes = {"device": CARD, "free": 11 * GIB, "host_free": 64 * GIB}
    refusal = refusal_of(core=core, model__embedding_residency="device", **sizes)
    assert refusal.plan == "vram"
    assert fits_of(refusal)["model.embedding_residency"] == "host"
    plan_of(core, device=CARD, free=11 * GIB, host_free=64 * GIB)


def test_with_fewer_lanes_there_are_fewer_slots() -> None:
    core = FakeCore(lane_bytes=2 * GIB)
    plan = plan_of(core, device=CARD, free=12 * GIB, host_free=64 * GIB)
    assert plan.lanes < 8
    assert plan.retained_host_slots == 2 * plan.lanes


def test_kv_disk_is_planned_with_its_staging_in_host_memory(tmp_path: Path) -> None:
    plan = plan_of(free=8 * GIB, kv_disk__bytes="4G", kv_disk__path=str(tmp_path))
    assert plan.disk is not None
    assert plan.host.line_bytes("kv_disk_staging") == 4 * plan.window_bytes
    assert (plan.disk.folder, plan.disk.bytes, plan.disk.margin_bytes) == (
        tmp_path,
        4 * GIB,
        10 * GIB,
    )
    assert plan.disk.left_bytes == (1 << 40) - 4 * GIB
    assert plan.kv_disk_bytes == 4 * GIB


def test_kv_disk_lies_in_the_cache_folder_unless_it_is_named(tmp_path: Path) -> None:
    plan = plan_of(free=8 * GIB, kv_disk__bytes="1G", cache__dir=str(tmp_path))
    assert plan.disk is not None
    assert plan.disk.folder == tmp_path / "kv"


def test_a_volume_that_is_too_full_refuses_before_a_file_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    core = FakeCore(disk=12 * GIB)
    refusal = refusal_of(core=core, free=8 * GIB, kv_disk__bytes="4G", kv_disk__path=str(folder))
    assert refusal.plan == "disk"
    assert refusal.shortfall_bytes == 2 * GIB
    for words in ("4.00 GiB", "12.00 GiB", "10.00 GiB", "2.00 GiB too little", str(folder)):
        assert words in refusal.message
    for flag in ("--kv-disk-bytes", "--kv-disk-path", "--kv-disk-margin-bytes"):
        assert flag in refusal.message
    assert fits_of(refusal) == {"kv_disk.bytes": "2G", "kv_disk.margin_bytes": "8G"}
    for option, value in fits_of(refusal).items():
        options = {"kv_disk__bytes": "4G", option.replace(".", "__"): value}
        plan_of(core, free=8 * GIB, **options)
    assert not folder.exists()


def test_a_volume_with_nothing_left_offers_to_turn_kv_disk_off() -> None:
    refusal = refusal_of(core=FakeCore(disk=GIB), free=8 * GIB, kv_disk__bytes="4G")
    assert fits_of(refusal) == {"kv_disk.bytes": "0"}
    assert refusal.shortfall_bytes == 13 * GIB


def test_a_file_below_one_window_is_an_error_of_the_option() -> None:
    with pytest.raises(ConfigError, match=r"--kv-disk-bytes: 1,048,576 bytes hold no window"):
        plan_of(free=8 * GIB, kv_disk__bytes="1M")


def test_a_file_smaller_than_the_longest_sequence_is_said() -> None:
    plan = plan_of(free=8 * GIB, kv_disk__bytes="100M")
    assert plan.disk is not None
    assert "99 windows" in plan.disk.notes[0]
