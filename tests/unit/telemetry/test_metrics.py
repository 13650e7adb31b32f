"""The exposition: complete from the start, valid whatever its labels hold, and right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ignis.plan import VRAM_LINES
from ignis.telemetry import CONTENT_TYPE, Metrics
from ignis.telemetry import metrics as module


@dataclass
class Device:
    kind: str = "cuda"
    title: str = "NVIDIA A card"


@dataclass
class SealedPlan:
    device: Device = field(default_factory=Device)
    budget_bytes: int = 1000
    pages: int = 10
    kv_page_bytes: int = 64
    retained_device_slots: int = 1
    retained_host_slots: int = 2
    retained_host_bytes: int = 20
    kv_ram_bytes: int = 400
    kv_disk_bytes: int = 0
    window_bytes: int = 100

    def line_bytes(self) -> list[tuple[str, int]]:
        return [("weights", 300), ("kv_pool", 640)]


@dataclass
class Round:
    prefill_tokens: int = 0
    decode_lanes: int = 0
    tokens: int = 0
    running: int = 0
    waiting: int = 0
    pages_free: int = 10
    plan_allocations: int = 0
    parked: int = 0
    retained_slots_used: int = 0
    kv_ram_windows_used: int = 0
    kv_disk_windows_used: int = 0
    moving_out: bool = False
    moving_in: bool = False
    gap_s: float | None = None


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the exposition, read back by the client library's own parser."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, /, **labels: str) -> float:
    return samples(metrics)[name, tuple(sorted(labels.items()))]


def test_every_family_is_there_and_zero_before_a_model_is_loaded() -> None:
    metrics = Metrics("1.2.3")
    found = samples(metrics)
    assert found.pop(("ignis_build_info", (("version", "1.2.3"),))) == 1
    assert set(found.values()) == {0}
    lines = {dict(labels)["line"] for name, labels in found if name.endswith("reserved_bytes")}
    assert lines == set(VRAM_LINES)
    for name in (
        "ignis_vram_budget_bytes",
        "ignis_kv_pool_pages",
        "ignis_kv_page_bytes",
        "ignis_kv_pool_used_pages",
        "ignis_requests_accepted_total",
        "ignis_requests_completed_total",
        "ignis_requests_cancelled_total",
        "ignis_generated_tokens_total",
        "ignis_decoded_tokens_total",
        "ignis_prompt_tokens_total",
        "ignis_plan_allocations_total",
    ):
        assert (name, ()) in found
    for reason in ("full", "unknown_model", "oversized"):
        assert ("ignis_requests_rejected_total", (("reason", reason),)) in found


def test_the_lines_are_those_of_the_plan() -> None:
    assert tuple(VRAM_LINES) == module.VRAM_LINES


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "a\\", '"', "{}", "ünï 漢", "a\\nb"])
def test_o56_a_label_may_hold_anything(name: str) -> None:
    metrics = Metrics(name)
    metrics.plan_sealed(SealedPlan(), name)
    assert value(metrics, "ignis_build_info", version=name) == 1
    assert value(metrics, "ignis_model_loaded", model=name) == 1


def test_help_and_type_stand_once_and_counters_end_in_total() -> None:
    lines = Metrics("1").render().decode().splitlines()
    for comment in ("# HELP", "# TYPE"):
        names = [line.split()[2] for line in lines if line.startswith(comment)]
        assert len(names) == len(set(names))
    for line in lines:
        if line.startswith("# TYPE") and line.endswith("counter"):
            assert line.split()[2].endswith("_total")
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_a_sealed_plan_shows_and_an_unloaded_model_reads_zero() -> None:
    metrics = Metrics("1")
    metrics.plan_sealed(SealedPlan(), "m")
    metrics.round_done(Round(running=2, waiting=1, pages_free=7))
    assert value(metrics, "ignis_vram_budget_bytes") == 1000
    assert value(metrics, "ignis_vram_reserved_bytes", line="kv_pool") == 640
    assert value(metrics, "ignis_device_info", kind="cuda", name="NVIDIA A card") == 1
    assert value(metrics, "ignis_kv_pool_used_pages") == 3
    assert value(metrics, "ignis_scheduler_requests", state="running") == 2
    metrics.model_unloaded()
    assert value(metrics, "ignis_vram_reserved_bytes", line="kv_pool") == 0
    assert value(metrics, "ignis_kv_pool_used_pages") == 0
    assert value(metrics, "ignis_model_loaded", model="") == 0
    assert value(metrics, "ignis_device_info", kind="", name="") == 0


def test_requests_and_rounds_add_up() -> None:
    metrics = Metrics("1")
    metrics.plan_sealed(SealedPlan(), "m")
    for outcome in ("stop", "length", "cancelled", "error"):
        metrics.request_submitted("interactive")
        metrics.request_admitted("interactive", 0.01)
        metrics.request_done("interactive", outcome, 3, 2, 0.3)
    metrics.request_refused("queue_full")
    metrics.request_refused("unknown_model")
    metrics.round_done(Round(prefill_tokens=64, tokens=3, decode_lanes=2))
    metrics.round_done(Round(tokens=2, decode_lanes=2, plan_allocations=1))
    assert value(metrics, "ignis_requests_accepted_total") == 4
    assert value(metrics, "ignis_requests_completed_total") == 2
    assert value(metrics, "ignis_requests_cancelled_total") == 1
    assert value(metrics, "ignis_requests_failed_total") == 1
    assert value(metrics, "ignis_requests_rejected_total", reason="full") == 1
    assert value(metrics, "ignis_requests_rejected_total", reason="unknown_model") == 1
    assert value(metrics, "ignis_prompt_tokens_total") == 64
    assert value(metrics, "ignis_generated_tokens_total") == 5
    assert value(metrics, "ignis_decoded_tokens_total") == 4
    assert value(metrics, "ignis_plan_allocations_total") == 1
    assert value(metrics, "ignis_request_duration_seconds_count") == 4


def test_only_a_round_that_follows_on_another_counts_its_gap() -> None:
    metrics = Metrics("1")
    for gap_s in (None, 4e-5, 2e-4, None):
        metrics.round_done(Round(gap_s=gap_s))
    assert value(metrics, "ignis_round_gap_seconds_count") == 2
    assert value(metrics, "ignis_round_gap_seconds_sum") == pytest.approx(2.4e-4)
    assert value(metrics, "ignis_round_gap_seconds_bucket", le="5e-05") == 1


def test_a_bucket_includes_its_bound() -> None:
    metrics = Metrics("1")
    for seconds in (0.05, 0.050001, 1000):
        metrics.first_token("agent", seconds)
    name = "ignis_request_ttft_seconds_bucket"
    assert value(metrics, name, le="0.05") == 1
    assert value(metrics, name, le="0.1") == 2
    assert value(metrics, name, le="300") == 2
    assert value(metrics, name, le="+Inf") == 3
    assert value(metrics, "ignis_request_ttft_seconds_sum") == pytest.approx(1000.100001)
