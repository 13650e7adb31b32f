"""The card suite in its small size, on the CPU; its report, from parts that never ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benches.card import checkpoint, engine, report
from benches.card.__main__ import measure
from benches.card.ceilings import flops
from benches.card.loaded import Loaded
from benches.card.profiles import PROFILES
from benches.card.rows import FULL, ROWS, SMALL
from ignis import _native
from ignis.cli import geometries
from ignis.plan import CARDS
from ignis.text import from_tokenizer_json

TINY: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
}
CPU = engine.Where("cpu")
ENGINE_ROWS = [name for name, row in ROWS.items() if row.part == "engine"]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("qwen3-8b", "llama-8b"):
        monkeypatch.setitem(geometries.GEOMETRIES, f"tiny-{name}", geometries.geometry(name) | TINY)


@pytest.mark.parametrize("name", ["tiny-qwen3-8b", "tiny-llama-8b"])
def test_every_row_of_a_small_model_is_measured(name: str) -> None:
    found = engine.measure(name, "q8_0", ENGINE_ROWS, SMALL, CPU)
    assert list(found["rows"])
    assert set(found["rows"]) == set(ENGINE_ROWS)
    for row, values in found["rows"].items():
        may_be_none = row in {"memory", "hand-over", "beside-move"}
        assert may_be_none or values["value"] > 0, row
    decoded = found["rows"]["decode-8"]
    assert decoded["value"] * decoded["ms"] == pytest.approx(1e3 * SMALL.lanes)
    assert decoded["read_bytes"] > engine.bytes_read(name, "q8_0")


def test_a_round_reads_every_weight_but_a_table_that_is_no_matrix() -> None:
    table = 1000 * 256 * 2
    stored = geometries.random_model("tiny-llama-8b", "bf16").stored_bytes()
    assert engine.bytes_read("tiny-llama-8b", "bf16") == stored - table
    geometries.GEOMETRIES["tied"] = geometries.geometry("tiny-llama-8b") | {
        "tie_word_embeddings": True
    }
    try:
        assert engine.bytes_read("tied", "bf16") == stored - table
    finally:
        del geometries.GEOMETRIES["tied"]


def test_products_have_the_operations_of_their_weights() -> None:
    """Two for each weight of a layer and row."""
    shape = geometries.geometry("qwen3-8b")
    stored = geometries.random_model("qwen3-8b", "bf16").stored_bytes() / 2
    layers = stored - 2 * shape["vocab_size"] * shape["hidden_size"]
    assert flops("qwen3-8b", 100) == pytest.approx(200 * layers, rel=1e-3)


@pytest.mark.parametrize("name", ["tiny-qwen3-8b", "tiny-llama-8b"])
def test_a_checkpoint_is_what_the_core_and_the_tokenizer_read(name: str, tmp_path: Path) -> None:
    size = checkpoint.write(tmp_path / "made", name)
    found = _native.inspect(str(tmp_path / "made"))
    assert (found.layers, found.vocab, found.quantisation[:4]) == (2, 1000, "BF16")
    assert size == found.stored_bytes
    model = Loaded(str(tmp_path / "made"), _native.Limits(1, 64, 128, 2), device="cpu")
    assert model.prefill(0, [1, 2, 3], engine.GREEDY, 8, 64) < 1000
    tokenizer = from_tokenizer_json(tmp_path / "made")
    assert tokenizer.encode("a word") == tokenizer.encode("a word")
    assert 0 < tokenizer.vocab_size <= 1000


def parts(failing: str = "") -> Any:
    """A runner that measures nothing: figures for every part but `failing`."""

    def run(module: str, words: Sequence[str]) -> dict[str, Any]:
        asked = [words[at + 1] for at, word in enumerate(words) if word == "--row"]
        if module == failing:
            return {"failed": "out of memory", "took_s": 0.1}
        if module == "ceilings":
            gemm = {name: {"seconds": 0.04, "tflops": 700.0} for name in words}
            by = {"sum": 4e12, "matrix_vector": 3.7e12}
            pinned = {"in": 55e9, "out": 50e9}
            return {
                "torch": "2",
                "copy": 4e12,
                "read": 4e12,
                "read_by": by,
                "pinned": pinned,
                "gemm": gemm,
                "took_s": 1.0,
            }
        rows = {
            row: {"value": 100.0, "ms": 10.0 if row != "decode-8" else 80.0, "read_bytes": 16e9}
            for row in asked or ["ready"]
        }
        found = {"geometry": words[0], "rows": rows, "took_s": 1.0, "version": "transformers"}
        return found | ({"format": words[1]} if module == "engine" else {})

    return run


def suite(failing: str = "") -> dict[str, Any]:
    profile = PROFILES["h200"]
    found = measure(profile, profile.models, list(ROWS), peers=True, run=parts(failing))
    facts = {
        "card": "A card",
        "capability": [9, 0],
        "driver": "1.2.3",
        "driver_cuda": [13, 0],
        "nvrtc": [13, 0],
        "cpu": "A CPU",
        "cpu_flags": "",
        "cores_usable": 2,
        "memory_bytes": 1,
        "system": "x",
        "ignis": "0",
        "commit": "abc",
        "command": "c",
        "date": "d",
    }
    found |= {"conditions": facts, "took_s": 1.0}
    return found | {"table": report.lines(profile, found)}


def test_the_table_has_shares_of_ceilings_peers_and_goals() -> None:
    found = suite()
    lines = {(one["geometry"], one["format"], one["row"]): one for one in found["table"]}
    one = lines["qwen3-8b", "bf16", "decode-1"]
    assert one["ceiling"] == pytest.approx(4e12 / 16e9)
    assert (one["peer"], one["goal"], one["met"]) == (100.0, "85% of ceiling", False)
    assert lines["qwen3-8b", "bf16", "decode-8"]["ceiling"] == pytest.approx(8 * 4e12 / 16e9)
    assert lines["qwen3-8b", "bf16", "prefill"]["ceiling"] == pytest.approx(1.0 / 0.04)
    assert lines["qwen3-8b", "bf16", "move-out"]["ceiling"] == 50.0
    assert lines["llama-8b", "q4_k", "prefill-deep"]["of_row"] == 1.0
    assert lines["qwen3-8b", "bf16", "decode-1-host"]["of_row"] == 1.0
    assert ("qwen3-8b", "q8_0", "decode-1-host") not in lines
    assert lines["qwen3-8b", "bf16", "ready"]["met"] is False
    assert ("llama-8b", "bf16", "move-out") not in lines
    text = report.markdown(PROFILES["h200"], found)
    assert text.count("\n| qwen3-8b |") + text.count("\n| llama-8b |") == len(found["table"])
    assert "commit abc" in text
    assert "| 100% of decode-1 |" in text
    assert "llama.cpp" in text
    json.dumps(found)


def test_memory_that_the_driver_does_not_count_is_unknown_and_not_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "process_bytes", lambda: None)
    found = engine.measure("tiny-qwen3-8b", "bf16", ["memory"], SMALL, CPU)
    assert found["rows"]["memory"]["value"] is None
    whole = suite()
    for model in whole["models"]:
        if "memory" in model.get("rows", {}):
            model["rows"]["memory"]["value"] = None
    whole["table"] = report.lines(PROFILES["h200"], whole)
    memory = [one for one in whole["table"] if one["row"] == "memory"]
    assert memory
    assert {one["met"] for one in memory} == {None}
    rows = [
        row for row in report.markdown(PROFILES["h200"], whole).split("\n") if "| memory |" in row
    ]
    assert len(rows) == len(memory)
    for row in rows:
        assert "| unknown | MiB |" in row
        assert row.endswith("| unknown |")


@pytest.mark.parametrize("failing", ["engine", "ceilings", "peer", "ready"])
def test_a_part_that_fails_costs_its_rows_and_is_said(failing: str) -> None:
    found = suite(failing)
    assert all("out of memory" in said for said in report.failures(found))
    assert report.failures(found)
    assert "not measured: " + failing in report.markdown(PROFILES["h200"], found)
    rows = {one["row"] for one in found["table"]}
    assert ("ready" in rows) == (failing != "ready")
    assert ("decode-1" in rows) == (failing != "engine")


@pytest.mark.parametrize("name", PROFILES)
def test_every_model_of_a_profile_fits_the_memory_of_its_card(name: str) -> None:
    """With what the driver took there, and a GiB to spare."""
    card = CARDS[name]
    assert card.total_bytes is not None
    taken = sum(count for _, count in card.recorded) + (1 << 30)
    limits = engine.limits_of(FULL)
    for geometry, matrices in PROFILES[name].models:
        model = geometries.random_model(geometry, matrices)
        needs = _native.needs(model, limits, _native.DeviceOptions("cuda"))
        total = sum(count for _, count in needs.lines) + limits.pages * needs.kv_page_bytes
        assert total + taken < card.total_bytes, f"{geometry} {matrices}: {total / 2**30:.1f} GiB"


def test_a_row_is_a_share_of_another_with_its_unit() -> None:
    for row in ROWS.values():
        assert not row.of or ROWS[row.of].unit == row.unit


def test_rows_are_loaded_as_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def loaded(*args: Any, table: str, products: str, **named: Any) -> Loaded:
        asked.append((table, products))
        return Loaded(*args, table=table, products=products, **named)

    monkeypatch.setattr(engine, "Loaded", loaded)
    wanted = ["prefill-host", "decode-1-host", "prefill", "prefill-fast"]
    found = engine.measure("tiny-qwen3-8b", "q8_0", wanted, SMALL, CPU)
    assert asked == [("host", "same"), ("device", "same"), ("device", "fast")]
    assert set(found["rows"]) == set(wanted)


def test_every_goal_is_of_a_row_and_a_format_that_is_measured() -> None:
    for profile in PROFILES.values():
        formats = {stored for _, stored in profile.models} | {""}
        assert {row for row, _ in profile.goals} <= set(ROWS)
        assert {stored for _, stored in profile.goals} <= formats
        assert all(name in geometries.GEOMETRIES for name, _ in profile.models)
