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
from ignis.plan import CARDS, make_plan
from ignis.plan.cores import physical_cores
from ignis.plan.report import plan_as_dict, print_plan, print_refusal, refusal_as_dict
from ignis.plan.units import exact, human
from tests.unit.plan.fake_core import FakeCore


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
    assert text.count("(estimated)") == 2
    assert "assumed" not in text
    assert f"{plan.pages:,} pages" in text
    data = json.loads(json.dumps(plan_as_dict(plan)))
    assert data["fits"] is True
    assert sum(line["bytes"] for line in data["lines"]) == data["total_bytes"]


def test_figures_of_a_card_that_was_never_measured_are_called_assumed() -> None:
    plan = make_plan(load_config(environ={}), "m.gguf", device=CARDS["rtx5090"], core=FakeCore())
    text = _printed(print_plan, plan)
    assert text.count("(assumed)") == 2
    assert "never measured on a card such as NVIDIA GeForce RTX 5090" in text
    data = json.loads(json.dumps(plan_as_dict(plan)))
    assumed = {line["name"] for line in data["lines"] if line["assumed"]}
    assert assumed == {"cuda_context", "residual"}


def test_three_tables_show_device_host_and_disk(tmp_path: Path) -> None:
    flags = {"kv_disk.bytes": "300M", "kv_disk.path": str(tmp_path)}
    config = load_config(flags | {"reuse.kv_host_pool_bytes": "100M"}, environ={})
    plan = make_plan(config, "m", free_bytes=8 << 30, core=FakeCore())
    assert plan.disk is not None
    text = _printed(print_plan, plan, width=140)
    for line in plan.host.lines:
        assert (line.name in text) == (line.bytes > 0)
        assert f"{line.bytes:,}" in text
    assert f"KV-disk in {tmp_path}" in text.replace("\n", "")
    assert f"{plan.disk.bytes:,}" in text
    assert "8 retained slots, 0 on the device and 8 in host memory" in text
    assert "Note: KV-RAM holds 100 windows" in text
    data = json.loads(json.dumps(plan_as_dict(plan)))
    assert sum(line["bytes"] for line in data["host"]["lines"]) == data["host"]["total_bytes"]
    assert data["disk"]["bytes"] == 300 << 20
    assert data["retained_slots"] == {"device": 0, "host": 8}


def test_a_plan_without_tiers_says_so_in_a_sentence() -> None:
    flags = {"reuse.kv_host_pool_bytes": "0", "reuse.prompt": "off"}
    plan = make_plan(load_config(flags, environ={}), "m", free_bytes=8 << 30, core=FakeCore())
    text = _printed(print_plan, plan)
    assert "Nothing in host memory beside the device's lines." in text
    assert "KV-disk" not in text
    assert plan_as_dict(plan)["disk"] is None


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
