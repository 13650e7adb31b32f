"""On a card: the plan that is printed for it, the plan that serves and what is reserved agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benches.card import checkpoint
from ignis.config import load_config
from ignis.engine.counted import SLACK_BYTES
from ignis.engine.load import load_engine
from ignis.plan import Plan, make_plan
from ignis.plan.cuda import find_facts

# What only the driver can tell; every other line is computed.
MEASURED = {"cuda_context", "residual"}
FLAGS = {
    "device": "cuda",
    "model.max-context": "4096",
    "vram.kv-pool-bytes": "8192tok",
    "kv-disk.bytes": "0",
}
SECONDS = 180

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    checkpoint.write(folder, "qwen3-0.6b", num_hidden_layers=2)
    return folder


def words(model: Path) -> list[str]:
    flags = [[f"--{name.replace('.', '-')}", value] for name, value in FLAGS.items()]
    return ["--model", str(model), *(word for flag in flags for word in flag)]


def printed_plan(model: Path) -> dict[str, Any]:
    """What `ignis plan --device cuda` prints."""
    command = [sys.executable, "-m", "ignis", "plan", *words(model), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Events of a server that got ready, by name."""
    folder = tmp_path_factory.mktemp("served")
    log = folder / "log"
    command = [sys.executable, "-m", "ignis", "serve", *words(model)]
    command += ["--server-bind", f"unix:{folder}/socket", "--log-format", "json"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ))
        try:
            began = time.monotonic()
            while "ignis.process.ready" not in log.read_text(errors="replace"):
                assert process.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() - began < SECONDS
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait()
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    return {event["event"]: event for event in map(json.loads, lines)}


def test_every_computed_line_of_the_printed_plan_is_the_served_plans(
    model: Path, served: dict[str, dict[str, Any]]
) -> None:
    printed = printed_plan(model)
    plan = served["ignis.runtime.vram_plan"]
    lines = {line["name"]: line["bytes"] for line in printed["lines"]}
    assert set(lines) > MEASURED
    for name, count in lines.items():
        if name not in MEASURED:
            assert plan[f"{name}_bytes"] == count, name
    assert plan["kv_page_count"] == printed["kv_pool"]["pages"]
    assert plan["kv_page_bytes"] == printed["kv_pool"]["page_bytes"]


def test_a_start_finds_that_the_driver_counts_what_was_planned(
    served: dict[str, dict[str, Any]],
) -> None:
    counted = served["ignis.device.counted"]
    assert counted["compared"]
    assert counted["planned_bytes"] == served["ignis.runtime.vram_plan"]["total_bytes"]
    assert abs(counted["difference_bytes"]) <= SLACK_BYTES


def plan_here(model: Path, **more: str) -> Plan:
    flags = {name.replace("-", "_"): value for name, value in FLAGS.items()} | more
    return make_plan(load_config(flags, environ={}), model)


def test_what_is_reserved_is_what_was_planned(model: Path) -> None:
    plan = plan_here(model)
    engine = load_engine(plan)
    reserved = dict(engine.reserved())
    assert {name: reserved.get(name, 0) for name, _ in plan.line_bytes()} == dict(plan.line_bytes())


def test_a_smaller_budget_gives_the_plan_of_a_smaller_card(model: Path) -> None:
    plan = plan_here(model, **{"vram.budget_bytes": "8G"})
    assert plan.total_bytes <= plan.budget_bytes == 8 << 30 < plan.free_at_start_bytes


def test_the_facts_name_a_card_that_can_be_used() -> None:
    facts = find_facts()
    assert facts.refusal is None
    assert facts.release is not None
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", facts.release)
    assert facts.free_bytes is not None
    assert facts.total_bytes is not None
    assert facts.free_bytes <= facts.total_bytes
    assert facts.mode in {"shared", "exclusive"}
