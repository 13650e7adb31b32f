"""The small parts: the host plan, cores, units, the printed forms."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ignis.config import load_config
from ignis.errors import PlanRefused
from ignis.plan import CARDS, Line, make_plan
from ignis.plan.cores import physical_cores
from ignis.plan.host import plan_host
from ignis.plan.report import plan_as_dict, print_plan, print_refusal, refusal_as_dict
from ignis.plan.units import exact, human
from tests.unit.plan.fake_core import FakeCore

GIB = 1 << 30


def test_o09_a_host_refusal_says_host_gib_and_the_first_line_that_crosses() -> None:
    lines = (
        Line("staging", GIB, "copies"),
        Line("retained_host_slots", 2 * GIB, "kept state"),
        Line("kv_ram_arena", 2 * GIB, "moved sequences"),
    )
    options = ("--reuse-retained-host", "--reuse-kv-host-pool-bytes")
    assert plan_host(lines, 12 * GIB, 6 * GIB, options).total_bytes == 5 * GIB
    with pytest.raises(PlanRefused) as refused:
        plan_host(lines, 8 * GIB, 6 * GIB, options)
    refusal = refused.value
    assert refusal.plan == "host"
    for words in ("host", "5.00 GiB", "8.00 GiB", "retained_host_slots crosses", *options):
        assert words in refusal.message
    assert refusal.shortfall_bytes == 3 * GIB


def test_cores_are_counted_once_for_all_their_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, core in enumerate([0, 1, 0, 1]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n")
        (folder / "physical_package_id").write_text("0\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    quota = tmp_path / "cpu.max"
    assert physical_cores(tmp_path, quota) == 2
    quota.write_text("150000 100000\n")
    assert physical_cores(tmp_path, quota) == 2
    quota.write_text("50000 100000\n")
    assert physical_cores(tmp_path, quota) == 1
    quota.write_text("max 100000\n")
    assert physical_cores(tmp_path, quota) == 2
    assert physical_cores(tmp_path / "nowhere", quota) == 4


def test_units() -> None:
    assert human(0) == "0 B"
    assert human(1023) == "1023 B"
    assert human(1536 << 20) == "1.50 GiB"
    assert human((1 << 30) - 1) == "1.00 GiB"
    assert exact(10) == "10 bytes"
    assert exact(1 << 20) == "1,048,576 bytes (1.00 MiB)"


def _printed(function: object, value: object, width: int = 100) -> str:
    out = StringIO()
    function(value, Console(file=out, width=width))  # type: ignore[operator]
    return out.getvalue()


def test_the_table_names_every_line_and_figure() -> None:
    plan = make_plan(load_config(environ={}), "[m].gguf", device=CARDS["h200"], core=FakeCore())
    text = _printed(print_plan, plan)
    for line in plan.lines:
        assert line.name in text
        assert not line.bytes or f"{line.bytes:,}" in text
    assert "(estimated)" in text
    assert f"{plan.pages:,} pages" in text
    data = json.loads(json.dumps(plan_as_dict(plan)))
    assert data["fits"] is True
    assert sum(line["bytes"] for line in data["lines"]) == data["total_bytes"]


def test_a_refusal_prints_its_figures_and_flags() -> None:
    config = load_config({"model.max_context": "8192", "model.lanes": "1"}, environ={})
    with pytest.raises(PlanRefused) as refused:
        make_plan(config, "m", free_bytes=(1536 + 200) << 20, core=FakeCore())
    refusal = refused.value
    text = _printed(print_refusal, refusal)
    for figure in (refusal.needed_bytes, refusal.budget_bytes, refusal.shortfall_bytes):
        assert f"{figure:,}" in text
    for one in refusal.suggestions:
        assert one.fits in text
    data = json.loads(json.dumps(refusal_as_dict(refusal)))
    assert data["fits"] is False
    assert data["suggestions"][0]["flag"] == "--model-max-context"
