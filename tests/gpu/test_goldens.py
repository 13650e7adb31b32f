"""Dense models on a card: transformers' greedy tokens, whatever the chunks and the batch."""

from __future__ import annotations

import gc
import json
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benches.card.loaded import Loaded
from ignis import _native
from ignis.cli.geometries import FORMATS, random_model
from ignis.engine.counted import SLACK_BYTES

GOLDENS = Path(__file__).parents[1] / "golden"
DENSE = ("llama", "llama-rope3", "llama-yarn", "qwen2", "qwen3")
LENGTHS = (5, 64, 65, 200)
GREEDY = _native.Sampling(temperature=0.0)
# The largest of many rounding errors is itself a chance value: transformers' two ways to compute
# attention, which round the same products, part in it by up to a half (qwen2 in bf16_gaps.json).
CHANCE = 1.5

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def tensors(path: Path) -> dict[str, Any]:
    """Every tensor of a safetensors file that numpy can hold."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    kinds = {"I64": np.int64, "F32": np.float32}
    return {
        name: np.frombuffer(
            data[8 + size :][entry["data_offsets"][0] : entry["data_offsets"][1]],
            kinds[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] in kinds
    }


def logprob_gap(model: Loaded, ids: list[int], logits: Any) -> float:
    """Largest difference of a prompt's log-probabilities, where the logits are known."""
    out = array("f", [0.0] * len(ids))
    model.engine.admit(1, array("I", ids), 5, GREEDY)
    done = 0
    while done < len(ids):
        count = min(64, len(ids) - done)
        part = array("f", [0.0] * count)
        written = model.engine.score(1, count, part)
        out[done : done + written] = part[:written]
        done += count
    model.engine.release(1)
    rows = logits.astype(np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    rows = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    first = len(ids) - len(rows)
    gaps = [abs(out[p] - rows[p - first][ids[p + 1]]) for p in range(first, len(ids) - 1)]
    return float(max(gaps, default=0.0))


@pytest.mark.parametrize("family", DENSE)
def test_tokens_and_log_probabilities_are_those_of_transformers(family: str) -> None:
    expected = tensors(GOLDENS / family / "expected.safetensors")
    model = Loaded(str(GOLDENS / family), _native.Limits(3, 64, 512, 24), "f32", "f32")
    for n in LENGTHS:
        ids = expected[f"ids.{n}"].tolist()
        drawn = [model.prefill(0, ids, GREEDY, 32, 64)]
        drawn += [row[0] for row in model.decode([0], 23)]
        model.engine.release(0)
        assert drawn == expected[f"greedy.{n}"].tolist(), n
        assert logprob_gap(model, ids, expected[f"logits.{n}"]) < 1e-3


@pytest.mark.parametrize("family", DENSE)
def test_log_probabilities_in_bf16_are_near_those_of_transformers(family: str) -> None:
    """As near as transformers' own bf16. Tokens of these random models part at the first rounding;
    log-probabilities do not."""
    expected = tensors(GOLDENS / family / "expected.safetensors")
    made = json.loads((GOLDENS / "bf16_gaps.json").read_text(encoding="utf-8"))
    bound = CHANCE * max(made["gaps"]["eager"][family].values())
    model = Loaded(str(GOLDENS / family), _native.Limits(3, 64, 512, 24))
    for n in LENGTHS:
        ids = expected[f"ids.{n}"].tolist()
        assert logprob_gap(model, ids, expected[f"logits.{n}"]) <= bound, n


@pytest.mark.parametrize("matrices", FORMATS)
def test_a_stream_does_not_depend_on_chunks_and_batch(matrices: str) -> None:
    """On real widths, two layers of them."""
    random = random_model("qwen3-8b", matrices, num_hidden_layers=2)
    model = Loaded(random, _native.Limits(8, 512, 2048, 8 * 12))
    sampling = _native.Sampling(temperature=0.9, seed=5)
    prompt = [(11 * i) % 150000 for i in range(600)]
    streams = []
    for chunk in (512, 100, 33, 16, 7):
        first = model.prefill(0, prompt, sampling, 64, chunk)
        streams.append([first] + [row[0] for row in model.decode([0], 20)])
        model.engine.release(0)
    firsts = [model.prefill(lane, prompt, sampling, 64, 512) for lane in range(8)]
    rows = model.decode(list(range(8)), 20)
    streams += [[firsts[lane]] + [row[lane] for row in rows] for lane in range(8)]
    assert streams == [streams[0]] * len(streams)


def test_the_driver_counts_what_was_planned() -> None:
    gc.collect()
    random = random_model("qwen3-8b", "q8_0", num_hidden_layers=2)
    model = Loaded(random, _native.Limits(8, 2048, 32768, 1024))
    model.prefill(0, list(range(1000, 1600)), GREEDY, 64, 512)
    counted = _native.process_bytes()
    assert counted is not None
    print(f"planned {model.planned / 2**20:.1f} MiB, the driver says {counted / 2**20:.1f} MiB")
    assert abs(counted - model.planned) <= SLACK_BYTES
