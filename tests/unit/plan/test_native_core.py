"""The plan over the real core: what the headers of small checkpoints give."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ignis.config import load_config
from ignis.errors import ModelFileError, PlanError
from ignis.plan import CARDS, VRAM_LINES, NativeCore, make_plan
from ignis.plan.ask import Ask

GOLDEN = Path(__file__).parents[2] / "golden"
MODELS = ["llama", "llama-rope3", "llama-yarn", "qwen2", "qwen3"]
ASK = Ask(context_tokens=64, lanes=2, chunk_tokens=64, free_bytes=0)
CORE = NativeCore()


def test_a_card_plans_both_halves_of_pairs() -> None:
    path = CORE.inspect(str(GOLDEN / "qwen3")).path
    plans = [
        dict(CORE.sizes(path, "cuda", replace(ASK, activations=activations)).lines)
        for activations in ("bf16", "f32")
    ]
    assert plans[0]["weights"] == plans[1]["weights"]
    assert plans[0]["decode_graph"] < plans[1]["decode_graph"]  # three launches more a layer
    # 66 rows padded to 128: inputs of 128 and of 256 columns, as they are or in pairs.
    assert plans[1]["workspace"] - plans[0]["workspace"] == 2 * 128 * (128 + 256)
    with pytest.raises(ValueError, match="expected bf16 or f32"):
        CORE.sizes(path, "cuda", ASK)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_core_gives_every_line_in_order(name: str, device: str) -> None:
    model = CORE.inspect(str(GOLDEN / name))
    ask = replace(ASK, activations="bf16" if device == "cuda" else "int8")
    sizes = CORE.sizes(model.path, device, ask)
    assert [line for line, _ in sizes.lines] == [line for line in VRAM_LINES if line != "kv_pool"]
    assert sizes.page_tokens == 64
    row = 2 * model.kv_heads * model.head_dim * 2  # K and V, in bf16
    assert sizes.kv_page_bytes >= 64 * model.layers * row
    assert dict(sizes.lines)["weights"] > 0
    # Only a card records rounds, and the bound of what that takes needs no card.
    assert (dict(sizes.lines)["decode_graph"] > 0) == (device == "cuda")


@pytest.mark.parametrize("name", MODELS)
def test_more_of_anything_never_needs_less(name: str) -> None:
    path = str(GOLDEN / name)
    least = CORE.sizes(path, "cpu", ASK).fixed_bytes
    for larger in (
        replace(ASK, lanes=4),
        replace(ASK, chunk_tokens=256),
        replace(ASK, context_tokens=4096),
        replace(ASK, threads=4),
    ):
        assert CORE.sizes(path, "cpu", larger).fixed_bytes >= least


@pytest.mark.parametrize("name", MODELS)
def test_headers_alone_give_the_same_plan(name: str, tmp_path: Path) -> None:
    whole = GOLDEN / name
    bare = tmp_path / name
    bare.mkdir()
    shutil.copy(whole / "config.json", bare)
    for file in whole.glob("*.safetensors*"):
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            content = content[: 8 + int.from_bytes(content[:8], "little")]
        (bare / file.name).write_bytes(content)
    config = load_config(environ={})
    for device in (None, CARDS["h200"]):
        full = make_plan(config, whole, device=device, free_bytes=8 << 30)
        assert make_plan(config, bare, device=device, free_bytes=8 << 30).lines == full.lines
        assert full.total_bytes <= full.budget_bytes


OF_THE_CPU = {
    "qwen3-moe": "route",
    "qwen3-next": "causal_conv",
    "qwen3_5": "causal_conv",
    "qwen3_5-moe": "causal_conv",
}


@pytest.mark.parametrize("name", OF_THE_CPU)
def test_a_card_refuses_before_anything_is_reserved_what_it_has_no_kernels_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GOLDEN / name
    op = OF_THE_CPU[name]
    assert op in str(CORE.misfit(str(model), "cuda", "bf16", "bf16"))
    with pytest.raises(PlanError, match=rf"RTX 5090 cannot run .*the op {op}; use --device cpu"):
        make_plan(load_config(environ={}), model, device=CARDS["rtx5090"])

    monkeypatch.setattr("ignis.plan.devices.find_card", lambda: SimpleNamespace(name="A card"))
    named = load_config({"device": "cuda"}, environ={})
    with pytest.raises(PlanError, match=rf"A card cannot run .*the op {op}; use --device cpu"):
        make_plan(named, model)
    plan = make_plan(load_config(environ={}), model, free_bytes=8 << 30)
    assert plan.device.kind == "cpu"
    assert plan.device.why
    assert plan.device.why.startswith("A card cannot run ")


@pytest.mark.parametrize("name", MODELS)
def test_a_card_runs_the_dense_models(name: str) -> None:
    for activations in ("bf16", "f32"):
        assert CORE.misfit(str(GOLDEN / name), "cuda", "bf16", activations) is None


def test_a_budget_gives_the_same_computed_lines_on_every_card() -> None:
    config = load_config({"vram.budget_bytes": "12G"}, environ={})
    plans = [make_plan(config, GOLDEN / "qwen3", device=CARDS[n]) for n in ("h200", "rtx5090")]
    driver = {"cuda_context", "residual", "kv_pool"}  # the pool takes what the others leave
    lines = [{name: n for name, n in plan.line_bytes() if name not in driver} for plan in plans]
    assert lines[0] == lines[1]
    fixed = [dict(plan.line_bytes()) for plan in plans]
    left = [
        one["kv_pool"] + one["cuda_context"] + one["residual"] + plan.spare_bytes
        for one, plan in zip(fixed, plans, strict=True)
    ]
    assert left[0] == left[1]
    for name in ("lanes", "context_tokens", "chunk_tokens", "host", "embedding", "kv_format"):
        assert getattr(plans[0], name) == getattr(plans[1], name), name


def test_free_memory_of_this_machine_is_read() -> None:
    assert CORE.free_bytes("cpu") > 0


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match=r"x\.gguf"):
        CORE.inspect(str(file))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelFileError):
        CORE.inspect(str(tmp_path))
