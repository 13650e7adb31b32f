"""Facts about moves and retained state: each is counted where its reader looks for it."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from structlog.testing import capture_logs

from ignis.engine.metrics import Fact, FactName
from ignis.telemetry import Metrics
from tests.unit.telemetry.test_metrics import Round, SealedPlan, samples, value

BY_TIER = (
    "ignis_retained_state_hits_total",
    "ignis_retained_state_misses_total",
    "ignis_retained_state_spills_total",
    "ignis_retained_state_discards_total",
    "ignis_retained_state_restores_total",
    "ignis_retained_reused_tokens_total",
)


def told(*facts: Fact, disk: bool = True) -> Metrics:
    """Metrics of a loaded model that were told `facts`."""
    metrics = Metrics("1")
    metrics.plan_sealed(SealedPlan(kv_disk_bytes=1000 if disk else 0), "m")
    for fact in facts:
        metrics.fact(fact)
    return metrics


def test_every_fact_of_the_engine_is_known() -> None:
    for name, tier, kind in product(
        get_args(FactName), (None, "device", "kv_ram", "disk"), (None, "checkpoint", "prefix")
    ):
        if (name, tier) not in {("resumed", None), ("resumed", "device")} and not (
            name.startswith("move_refused") and tier in {None, "device"}
        ):
            told(Fact(name, tier, kind))


def test_a_fact_nobody_declared_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="unknown fact lost"):
        told(Fact("lost"))  # type: ignore[arg-type]


def test_every_label_is_there_and_zero_from_the_start() -> None:
    found = samples(Metrics("1"))
    for name, tier, kind in product(
        BY_TIER, ("device", "kv_ram", "disk"), ("checkpoint", "prefix")
    ):
        assert found[name, (("kind", kind), ("tier", tier))] == 0
    for reason in (
        "publish_skipped_no_slot",
        "capture_skipped_no_slot",
        "capture_skipped_no_page",
    ):
        assert found["ignis_retained_slot_skips_total", (("reason", reason),)] == 0
    for name in (
        "ignis_kv_cache_evictions_total",
        "ignis_kv_ram_evictions_total",
        "ignis_prefix_reused_tokens_total",
        "ignis_prefilled_again_total",
        "ignis_prefilled_again_tokens_total",
        "ignis_parked_sequences",
        "ignis_retained_host_slots",
        "ignis_retained_host_bytes",
    ):
        assert found[name, ()] == 0


def test_kv_disk_is_told_of_only_where_there_is_one() -> None:
    def named(metrics: Metrics) -> set[str]:
        return {name for name, _ in samples(metrics) if "kv_disk" in name}

    assert named(Metrics("1")) == named(told(disk=False)) == set()
    assert named(told()) == {
        "ignis_kv_disk_bytes",
        "ignis_kv_disk_spills_total",
        "ignis_kv_disk_failures_total",
    }


def test_facts_reach_their_family() -> None:
    metrics = told(
        Fact("evicted", "kv_ram"),
        Fact("evicted", "disk"),
        Fact("resumed", "kv_ram"),
        Fact("live_dropped", "kv_ram"),
        Fact("prefilled_again", None, None, 700),
        Fact("retained_hit", "device", "prefix"),
        Fact("retained_reused_tokens", "device", "prefix", 128),
        Fact("retained_reused_tokens", "disk", "checkpoint", 1000),
        Fact("retained_spill", "disk", "checkpoint"),
        Fact("retained_spill", "disk", "prefix", source="kv_ram"),
        Fact("skipped_publish_no_slot", "device", "prefix"),
        Fact("move_refused_read", "disk"),
    )
    assert value(metrics, "ignis_kv_cache_evictions_total") == 2
    assert value(metrics, "ignis_kv_cache_resumes_total", tier="kv_ram") == 1
    assert value(metrics, "ignis_kv_ram_evictions_total") == 1
    assert value(metrics, "ignis_prefilled_again_total") == 1
    assert value(metrics, "ignis_prefilled_again_tokens_total") == 700
    hits = "ignis_retained_state_hits_total"
    assert value(metrics, hits, tier="device", kind="prefix") == 1
    assert value(metrics, hits, tier="device", kind="checkpoint") == 0
    reused = "ignis_retained_reused_tokens_total"
    assert value(metrics, reused, tier="disk", kind="checkpoint") == 1000
    assert value(metrics, "ignis_prefix_reused_tokens_total") == 128
    spills = "ignis_kv_disk_spills_total"
    assert value(metrics, spills, **{"from": "device"}) == 2
    assert value(metrics, spills, **{"from": "kv_ram"}) == 1
    skips = "ignis_retained_slot_skips_total"
    assert value(metrics, skips, reason="publish_skipped_no_slot") == 1
    assert value(metrics, "ignis_kv_disk_failures_total", op="read") == 1
    assert value(metrics, "ignis_kv_disk_failures_total", op="write") == 0


def test_gauges_follow_the_round_and_are_idle_after_everyone_left() -> None:
    metrics = told()
    busy = Round(
        running=2,
        waiting=3,
        pages_free=4,
        parked=1,
        retained_slots_used=3,
        kv_ram_windows_used=2,
        kv_disk_windows_used=5,
        moving_out=True,
    )
    metrics.round_done(busy)
    assert value(metrics, "ignis_retained_slots", state="capacity") == 3
    assert value(metrics, "ignis_retained_slots", state="in_use") == 3
    assert value(metrics, "ignis_kv_ram_arena_bytes", state="capacity") == 400
    assert value(metrics, "ignis_kv_ram_arena_bytes", state="used") == 200
    assert value(metrics, "ignis_kv_disk_bytes", state="used") == 500
    assert value(metrics, "ignis_parked_sequences") == 1
    assert value(metrics, "ignis_moves_in_flight", way="out") == 1
    metrics.round_done(Round())
    for name, labels in (
        ("ignis_scheduler_requests", {"state": "running"}),
        ("ignis_scheduler_requests", {"state": "waiting"}),
        ("ignis_parked_sequences", {}),
        ("ignis_kv_pool_used_pages", {}),
        ("ignis_kv_ram_arena_bytes", {"state": "used"}),
        ("ignis_kv_disk_bytes", {"state": "used"}),
        ("ignis_moves_in_flight", {"way": "out"}),
        ("ignis_moves_in_flight", {"way": "in"}),
    ):
        assert value(metrics, name, **labels) == 0, name


def test_an_unloaded_model_has_no_slots_and_no_tiers() -> None:
    metrics = told()
    metrics.round_done(Round(retained_slots_used=2, kv_ram_windows_used=1))
    metrics.model_unloaded()
    for name in ("ignis_retained_slots", "ignis_kv_ram_arena_bytes"):
        gauges = {key: found for key, found in samples(metrics).items() if key[0] == name}
        assert set(gauges.values()) == {0}


def test_refused_writes_of_kv_disk_are_said_once_until_one_lands() -> None:
    refused, landed = Fact("move_refused_write", "disk"), Fact("retained_spill", "disk", "prefix")
    with capture_logs() as logs:
        told(refused, refused, landed, refused)
    events = [(entry["event"], entry["failures"]) for entry in logs]
    assert events == [("ignis.kv_disk.write_refused", 1), ("ignis.kv_disk.write_refused", 3)]
