"""The events' names and fields, and the two forms of the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from ignis.config import load_config
from ignis.engine.counted import SLACK_BYTES, Counted
from ignis.errors import PlanRefused
from ignis.plan import CPU, HOST_LINES, VRAM_LINES, make_plan
from ignis.telemetry import configure_logging, events
from tests.unit.plan.fake_core import FakeCore


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    assert configure_logging("auto", "info", stream) is False
    return stream


def logged(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_vram_plan_has_every_field(stream: io.StringIO) -> None:
    config = load_config({"vram.headroom_bytes": "1G"}, environ={})
    plan = make_plan(config, "m", free_bytes=8 << 30, core=FakeCore())
    events.vram_plan(plan)
    (event,) = logged(stream)
    assert event["event"] == "ignis.runtime.vram_plan"
    assert event["mode"] == "derived"
    assert event["headroom_bytes"] == 1 << 30
    assert "allow_oversubscription" not in event
    for name in VRAM_LINES:
        assert isinstance(event[f"{name}_bytes"], int)
    assert event["kv_pool_policy"] == "resident"
    assert event["kv_pool_pages"] == event["kv_page_count"] == plan.pages
    assert event["kv_pool_tokens"] == plan.pool_tokens
    assert event["total_bytes"] == sum(int(str(event[f"{name}_bytes"])) for name in VRAM_LINES)
    assert event["oversubscribed"] is False
    assert (event["retained_device_slots"], event["retained_host_slots"]) == (0, 8)
    assert event["retained_host_bytes"] == plan.retained_host_bytes > 0


def test_compiling_names_the_card_and_the_folder(stream: io.StringIO) -> None:
    events.kernels_compiled("A card", Path("/cache/kernels"))
    (event,) = logged(stream)
    assert event["event"] == "ignis.device.kernels_compiled"
    assert (event["title"], event["folder"]) == ("A card", "/cache/kernels")


def test_the_plans_of_host_and_disk_have_every_field(stream: io.StringIO) -> None:
    flags = {"kv_disk.bytes": "1G", "kv_disk.path": "/volume/kv"}
    plan = make_plan(load_config(flags, environ={}), "m", free_bytes=8 << 30, core=FakeCore())
    assert plan.disk is not None
    events.host_plan(plan.host)
    events.retained_slots(0, 8, plan.retained_host_bytes)
    events.kv_disk_ready(plan.disk, windows_used=3, images_removed=1)
    host, slots, disk = logged(stream)
    assert host["event"] == "ignis.runtime.host_plan"
    lines = [int(str(host[f"{name}_bytes"])) for name in HOST_LINES]
    assert sum(lines) == host["planned_bytes"]
    assert int(str(host["available_bytes"])) == 8 << 30
    assert int(str(host["left_bytes"])) == (8 << 30) - sum(lines)
    assert host["margin_bytes"] == 1536 << 20
    assert slots["event"] == "ignis.scheduler.retained_slots"
    assert (slots["retained_device_slots"], slots["retained_host_slots"]) == (0, 8)
    assert disk["event"] == "ignis.kv_disk.ready"
    assert (disk["bytes"], disk["windows_used"], disk["images_removed"]) == (1 << 30, 3, 1)


def test_oversubscription_warns_once_for_each_reason(stream: io.StringIO) -> None:
    flags = {"vram.budget_bytes": "50M", "vram.allow_oversubscription": "on"}
    plan = make_plan(load_config(flags, environ={}), "m", free_bytes=40 << 20, core=FakeCore())
    events.vram_plan(plan)
    first, *warnings = logged(stream)
    assert first["oversubscribed"] is True
    assert [one["event"] for one in warnings] == ["ignis.runtime.vram_oversubscribed"] * 2
    assert {one["level"] for one in warnings} == {"warning"}


def test_rounds_that_were_not_recorded_are_a_warning(stream: io.StringIO) -> None:
    events.device_recorded(16, 16, 4 << 20)
    events.device_recorded(7, 16, 2 << 20)
    whole, part = (
        (event["level"], event["rounds_recorded"], event["rounds_not_recorded"])
        for event in logged(stream)
    )
    assert whole == ("info", 16, 0)
    assert part == ("warning", 7, 9)


def test_what_the_driver_counts_is_logged_beside_the_plan(stream: io.StringIO) -> None:
    for count in (90, 100 + SLACK_BYTES + 1, None, 60):
        events.device_counted(Counted(100, count, reserved_bytes=70))
    told = logged(stream)
    figures = [
        (one["level"], one["compared"], one["counted_bytes"], one["difference_bytes"])
        for one in told
    ]
    assert figures == [
        ("info", True, 90, -10),
        ("warning", True, 100 + SLACK_BYTES + 1, SLACK_BYTES + 1),
        ("info", False, None, None),
        ("info", False, 60, None),
    ]
    *compared, unsaid, fewer = [one["reason"] for one in told]
    assert compared == [None, None]
    assert unsaid == "the driver does not say"
    assert str(fewer).startswith("fewer than the 70 reserved")


def test_refusals_are_logged_under_the_plan_they_refuse(stream: io.StringIO) -> None:
    for plan in ("vram", "host"):
        events.plan_refused(PlanRefused("too much", plan=plan, needed_bytes=3, budget_bytes=1))
    first, second = logged(stream)
    assert first["event"] == "ignis.runtime.vram_plan_refused"
    assert second["event"] == "ignis.runtime.host_plan_refused"
    assert second["shortfall_bytes"] == 2


def test_the_configuration_is_logged_by_name_only(stream: io.StringIO) -> None:
    config = load_config({"server.api_key": "hunter2"}, environ={})
    events.config_source(config.file, config.profile, config.sources)
    events.process_started("1")
    events.process_ready("http://127.0.0.1:8000", 12.345)
    events.vram_loaded(10, 100, 80)
    assert "hunter2" not in stream.getvalue()
    source, _, ready, loaded = logged(stream)
    assert source["named"] == ["server.api_key"]
    assert ready["warm_up_ms"] == 12.3
    assert loaded["free_delta_bytes"] == 20


def test_a_library_that_uses_logging_comes_out_in_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").error("it broke: %s", "x\ny")
    (event,) = logged(stream)
    assert event["event"] == "it broke: x\ny"
    assert event["level"] == "error"


def test_levels_below_the_named_one_are_silent() -> None:
    stream = io.StringIO()
    configure_logging("json", "warning", stream)
    events.process_started("1")
    assert stream.getvalue() == ""


def test_the_console_form_is_not_json() -> None:
    stream = io.StringIO()
    assert configure_logging("console", "info", stream) is True
    events.process_started("1")
    assert "ignis.process.started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_device_is_logged_with_what_kept_auto_from_a_card(stream: io.StringIO) -> None:
    events.device_chosen(replace(CPU, why="no NVIDIA driver was found"))
    (event,) = logged(stream)
    assert event["event"] == "ignis.device.chosen"
    assert (event["device"], event["reason"]) == ("cpu", "no NVIDIA driver was found")
