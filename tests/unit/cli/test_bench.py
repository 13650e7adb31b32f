"""`ignis bench --synthetic`: a geometry at random, from the command line to the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ignis import _native
from ignis.cli import geometries, rates
from ignis.cli.main import main

SMALL: dict[str, Any] = geometries.GEOMETRIES["llama-8b"] | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
}


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setitem(geometries.GEOMETRIES, "small", SMALL)
    monkeypatch.setattr(rates, "SCENARIOS", rates.SMALL)


@pytest.mark.parametrize("matrices", geometries.FORMATS)
def test_a_geometry_is_timed_without_a_file(
    matrices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "--synthetic", "small", "--format", matrices, "--device", "cpu"]
    assert main([*words, "--repetitions", "1", "--only", "pp96", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["model"] == f"small {matrices}, random weights"
    assert [row["test"] for row in record["tokens_a_second"]] == ["pp96"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--synthetic", "qwen3-8"], "did you mean qwen3-8b"),
        (["--synthetic", "small", "other.gguf"], "takes the place of a model"),
        (["--synthetic", "small", "--perplexity", "text"], "says nothing"),
        (["--format", "bf16"], "--synthetic, which is missing"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cpu", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-8b", 8.19), ("qwen3-4b", 4.02), ("qwen3-0.6b", 0.596), ("llama-8b", 8.03)],
)
def test_geometries_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    """bf16 stores two bytes a parameter; vectors, which are f32 here, are few."""
    stored = geometries.random_model(name, "bf16").stored_bytes()
    assert stored / 2e9 == pytest.approx(billions, rel=2e-3)


def test_needs_are_those_of_the_same_geometry_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    limits = _native.Limits(2, 64, 256, 8)
    for device in ("cpu", "cuda"):
        options = _native.DeviceOptions(device)
        of_folder = _native.needs(str(tmp_path), limits, options)
        random = _native.needs(geometries.random_model("small", "bf16"), limits, options)
        assert random.lines == of_folder.lines
        assert random.kv_page_bytes == of_folder.kv_page_bytes
