"""`ignis plan` and `ignis models inspect` over a core that is not there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ignis.cli import models
from ignis.cli.main import main
from ignis.plan import plan as plan_module
from tests.unit.plan.fake_core import FakeCore


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(plan_module, "NativeCore", FakeCore)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    return "m.gguf"


def test_a_plan_that_fits_is_status_0(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", model, "--device", "rtx4090", "--free", "20.5G"]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA GeForce RTX 4090" in text
    assert "kv_pool" in text
    assert main(["plan", "--model", model, "--json", "--model-lanes", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"]
    assert data["lanes"] == 2


def test_a_refused_plan_is_status_3(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", model, "--free", "1.7G", "--model-max-context", "8K", "--model-lanes", "4"]
    assert main(words) == 3
    text = capsys.readouterr().out
    assert "shortfall" in text
    assert "--model-max-context" in text
    assert main([*words, "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["needed_bytes"] - data["budget_bytes"] == data["shortfall_bytes"] > 0


def test_the_plans_of_host_memory_and_disk_are_printed_for_a_card_too(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", model, "--device", "rtx5090", "--host-free", "64G"]
    words += ["--kv-disk-bytes", "8G", "--kv-disk-path", str(tmp_path / "kv")]
    assert main(words) == 0
    text = capsys.readouterr().out
    for word in ("retained_host_slots", "kv_ram_arena", "kv_disk_staging", "8.00 GiB"):
        assert word in text
    assert "64.0 GiB available, of which 6.00 GiB stay free" in text
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["host"]["available_bytes"] == 64 << 30
    assert data["disk"]["bytes"] == 8 << 30
    assert not (tmp_path / "kv").exists()


def test_o09_a_host_refusal_names_host_memory_and_the_flags(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", model, "--device", "rtx5090", "--host-free", "7G"]
    assert main([*words, "--reuse-kv-host-pool-bytes", "2G"]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "the host plan needs 2.00 GiB of pinned host memory and 7.00 GiB are available" in text
    assert "kv_ram_arena crosses it" in text
    assert "--reuse-retained-host or --reuse-kv-host-pool-bytes" in text
    assert main([*words, "--host-free", "many"]) == 2
    assert "--host-free" in capsys.readouterr().err


def test_a_context_beyond_the_trained_one_is_status_2(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", model, "--model-max-context", "1M"]) == 2
    assert "trained for 8,192" in capsys.readouterr().err


def test_inspect_prints_the_headers(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Core(FakeCore):
        def read_metadata(self, path: str) -> dict[str, object]:
            return {"tokenizer.ggml.tokens": ["a"] * 1000, "general.name": "[x] Tiny"}

    monkeypatch.setattr(models, "NativeCore", Core)
    assert main(["models", "inspect", model, "--metadata"]) == 0
    text = capsys.readouterr().out
    assert "134,515,008" in text
    assert "(1,000 values)" in text
    assert "[x] Tiny" in text
    assert main(["models", "inspect", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**asdict(FakeCore().model), "path": model}
