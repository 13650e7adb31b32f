"""Checks and times the CUDA device on a card; prints one JSON object a line.

Needs the built wheel and numpy. `python gpu/check.py --tests FOLDER` names tests/golden; without a
card it fails at once.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ignis import _native

DENSE = ("llama", "llama-rope3", "llama-yarn", "qwen2", "qwen3")
LENGTHS = (5, 64, 65, 200)


def say(**facts: object) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)


class Loaded:
    """An engine on the card, and its plan."""

    def __init__(self, path: str, options: _native.DeviceOptions, limits: _native.Limits) -> None:
        needs = _native.needs(path, limits, options)
        lines = dict(needs.lines) | dict(options.measured())
        lines["kv_pool"] = needs.kv_page_bytes * limits.pages
        self.planned = sum(lines.values())
        self.lines = lines
        self.engine = _native.Engine.load(path, limits, options, list(lines.items()))
        self.out = _native.RoundOut(limits.lanes_max)
        self.chunk = limits.chunk_tokens_max

    def prefill(self, lane: int, tokens: list[int], sampling: Any, room: int, chunk: int) -> int:
        """Seats and computes a prompt; its first token."""
        pages = (len(tokens) + room) // 64 + 1
        self.engine.admit(lane, array("I", tokens), pages, sampling)
        left, drawn = len(tokens), 0
        while left:
            count = min(left, chunk)
            drawn = self.engine.round(lane, count, array("I"), 0, self.out)
            left -= count
        assert drawn == 1
        return int(self.out.tokens[0])

    def decode(self, lanes: list[int], steps: int) -> list[list[int]]:
        """Tokens of each step."""
        every = array("I", lanes)
        rows = []
        for _ in range(steps):
            assert self.engine.round(-1, 0, every, len(lanes), self.out) == len(lanes)
            rows.append(list(self.out.tokens[: len(lanes)]))
        return rows


def tensors(path: Path) -> dict[str, Any]:
    """Every tensor of a safetensors file."""
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


def goldens(folder: Path, options: Callable[[str], _native.DeviceOptions]) -> None:
    """The same greedy tokens as transformers, and the prompt's log-probabilities."""
    greedy = _native.Sampling(temperature=0.0)
    for family in DENSE:
        expected = tensors(folder / family / "expected.safetensors")
        limits = _native.Limits(3, 64, 512, 24)
        for kv_format in ("f32", "bf16"):
            model = Loaded(str(folder / family), options(kv_format), limits)
            agree, worst = [], 0.0
            for n in LENGTHS:
                ids = expected[f"ids.{n}"].tolist()
                drawn = [model.prefill(0, ids, greedy, 32, 64)]
                drawn += [row[0] for row in model.decode([0], 23)]
                model.engine.release(0)
                agree.append(drawn == expected[f"greedy.{n}"].tolist())
                worst = max(worst, score_gap(model, ids, expected[f"logits.{n}"]))
            say(check="golden", family=family, kv=kv_format, tokens=agree, logprob_gap=worst)
            if kv_format == "f32":
                assert all(agree), f"{family}: other tokens than transformers"
                assert worst < 1e-3


def score_gap(model: Loaded, ids: list[int], logits: Any) -> float:
    """Largest difference of a prompt's log-probabilities, where the logits are known."""
    out = array("f", [0.0] * len(ids))
    model.engine.admit(1, array("I", ids), 5, _native.Sampling(temperature=0.0))
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


# --- random weights of real geometry --------------------------------------------------------------

# hidden, ffn, heads, kv_heads, head_dim, layers, vocab
QWEN3_8B = (4096, 12288, 32, 8, 128, 36, 151936)

GGML = {
    "F32": (0, 1, 4),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q6_K": (14, 256, 210),
    "BF16": (30, 1, 2),
}


def blocks(kind: str, rows: int, cols: int, rng: Any) -> bytes:
    """Random stored bytes of a matrix with values of about cols^-0.5."""
    spread = 1.0 / cols**0.5
    count = rows * cols
    if kind == "BF16":
        values = (rng.random(min(count, 1 << 22), dtype=np.float32) * 2 - 1) * spread * 1.7
        half = (values.view(np.uint32) >> 16).astype(np.uint16)
        return np.resize(half, count).tobytes()
    _, each, size = GGML[kind]
    some = min(count // each, 1 << 16)
    raw = rng.integers(0, 256, (some, size), dtype=np.uint8)
    if kind == "Q8_0":
        raw[:, :2] = np.frombuffer(np.float16(spread * 1.7 / 127).tobytes(), np.uint8)
    elif kind == "Q4_K":
        raw[:, :2] = np.frombuffer(np.float16(spread * 1.7 / 7.5 / 32).tobytes(), np.uint8)
        raw[:, 2:4] = np.frombuffer(np.float16(spread * 1.7 / 32).tobytes(), np.uint8)
    else:
        raw[:, 208:] = np.frombuffer(np.float16(spread * 1.7 / 32 / 64).tobytes(), np.uint8)
    return np.resize(raw.reshape(-1), count // each * size).tobytes()


def write_gguf(path: Path, kind: str, shape: tuple[int, ...]) -> int:
    """A qwen3 checkpoint of random weights; the bytes a decoded token reads."""
    hidden, ffn, heads, kv_heads, dim, layers, vocab = shape
    rng = np.random.default_rng(1)
    names: list[tuple[str, str, int, int]] = [("token_embd.weight", kind, vocab, hidden)]
    for layer in range(layers):
        block = f"blk.{layer}."
        names += [
            (block + "attn_norm.weight", "F32", 1, hidden),
            (block + "attn_q.weight", kind, heads * dim, hidden),
            (block + "attn_k.weight", kind, kv_heads * dim, hidden),
            (block + "attn_v.weight", kind, kv_heads * dim, hidden),
            (block + "attn_q_norm.weight", "F32", 1, dim),
            (block + "attn_k_norm.weight", "F32", 1, dim),
            (block + "attn_output.weight", kind, hidden, heads * dim),
            (block + "ffn_norm.weight", "F32", 1, hidden),
            (block + "ffn_gate.weight", kind, ffn, hidden),
            (block + "ffn_up.weight", kind, ffn, hidden),
            (block + "ffn_down.weight", kind, hidden, ffn),
        ]
    names += [("output_norm.weight", "F32", 1, hidden), ("output.weight", kind, vocab, hidden)]

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    fields: list[bytes] = []

    def field(key: str, kind: int, value: bytes) -> None:
        fields.append(text(key) + struct.pack("<I", kind) + value)

    def number(key: str, value: int) -> None:
        field(f"qwen3.{key}", 4, struct.pack("<I", value))

    field("general.architecture", 8, text("qwen3"))
    number("block_count", layers)
    number("context_length", 40960)
    number("embedding_length", hidden)
    number("feed_forward_length", ffn)
    number("attention.head_count", heads)
    number("attention.head_count_kv", kv_heads)
    number("attention.key_length", dim)
    number("attention.value_length", dim)
    field("qwen3.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6))
    field("qwen3.rope.freq_base", 6, struct.pack("<f", 1e6))
    infos, offset = [], 0
    for name, stored, rows, cols in names:
        number_of, each, size = GGML[stored]
        dims = (cols,) if rows == 1 else (cols, rows)
        infos.append(
            text(name)
            + struct.pack("<I", len(dims))
            + struct.pack(f"<{len(dims)}Q", *dims)
            + struct.pack("<IQ", number_of, offset)
        )
        offset += -(-rows * cols // each * size // 32) * 32
    head = struct.pack("<IIQQ", 0x46554747, 3, len(names), len(fields))
    head += b"".join(fields) + b"".join(infos)
    known: dict[tuple[str, int, int], bytes] = {}
    read = 0
    with path.open("wb") as out:
        out.write(head + bytes(-len(head) % 32))
        for name, stored, rows, cols in names:
            if stored == "F32":
                data = np.ones(rows * cols, np.float32).tobytes()
            else:
                key = (stored, rows, cols)
                data = known.get(key) or blocks(stored, rows, cols, rng)
                known[key] = data
            out.write(data + bytes(-len(data) % 32))
            read += 0 if name.startswith("token_embd") else len(data)
    return read


def timed(path: Path, kind: str, read: int, options: _native.DeviceOptions) -> None:
    """Prefill and decode rates of random weights."""
    started = time.perf_counter()
    limits = _native.Limits(8, 2048, 32768, 8 * 64 + 512)
    model = Loaded(str(path), options, limits)
    load_s = time.perf_counter() - started
    greedy = _native.Sampling(temperature=0.0)
    prompt = [(7 * i) % 150000 for i in range(2048)]

    def decode_ms(lanes: list[int], steps: int = 24) -> float:
        model.decode(lanes, 4)
        begun = time.perf_counter()
        model.decode(lanes, steps)
        return (time.perf_counter() - begun) / steps * 1e3

    model.prefill(0, prompt, greedy, 64, 2048)
    model.engine.release(0)
    begun = time.perf_counter()
    first = model.prefill(0, prompt, greedy, 128, 2048)
    prefill_s = time.perf_counter() - begun
    one = decode_ms([0])
    for lane in range(1, 8):
        assert model.prefill(lane, prompt, greedy, 128, 2048) == first
    eight = decode_ms(list(range(8)))
    facts = {
        "prefill_2048_tok_s": round(2048 / prefill_s),
        "decode_1_ms": round(one, 3),
        "decode_1_tok_s": round(1e3 / one, 1),
        "read_gb": round(read / 1e9, 2),
        "read_tb_s": round(read / one / 1e9, 3),
        "decode_8_ms": round(eight, 3),
        "decode_8_tok_s": round(8e3 / eight, 1),
        "load_s": round(load_s, 2),
        "planned_mib": round(model.planned / 2**20, 1),
        "driver_says_mib": round((_native.process_bytes() or 0) / 2**20, 1),
    }
    drawn = _native.Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=3)
    model.engine.release(0)
    model.prefill(0, prompt, drawn, 128, 2048)
    facts["decode_1_sampled_ms"] = round(decode_ms([0]), 3)
    say(check="rates", model="qwen3-8b", weights=kind, **facts)


def exact(path: Path, options: _native.DeviceOptions) -> None:
    """The same tokens whatever the chunks and the batch, on real geometry."""
    limits = _native.Limits(8, 512, 2048, 8 * 12)
    model = Loaded(str(path), options, limits)
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
    same = all(stream == streams[0] for stream in streams)
    say(check="exact", weights=path.stem, streams=len(streams), same=same)
    assert same


def kinds(only: str) -> Iterator[str]:
    """Weights to time."""
    yield from only.split(",") if only else ()


def main() -> int:
    """Every check in turn; stops at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, default=Path("tests/golden"))
    parser.add_argument("--bench", default="BF16,Q8_0,Q4_K", help="weights to time; '' for none")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--nvrtc", default=None)
    parser.add_argument("--kernels", default="/tmp/ignis-kernels")
    args = parser.parse_args()

    def options(kv_format: str = "bf16") -> _native.DeviceOptions:
        return _native.DeviceOptions(
            "cuda", kv_format=kv_format, nvrtc=args.nvrtc, kernels=args.kernels
        )

    card = options().check_cuda()
    free = _native.free_bytes("cuda")
    begun = time.perf_counter()
    measured = options().measured()
    say(
        check="card",
        name=card.name,
        capability=card.capability,
        driver=card.driver,
        nvrtc=card.nvrtc,
        total_mib=card.total_bytes >> 20,
        free_mib=free >> 20,
        open_s=round(time.perf_counter() - begun, 2),
        measured_mib={name: round(count / 2**20, 1) for name, count in measured},
        driver_says_mib=round((_native.process_bytes() or 0) / 2**20, 1),
    )
    goldens(args.tests, options)
    shape = (*QWEN3_8B[:5], args.layers, QWEN3_8B[6])
    for kind in kinds(args.bench):
        path = args.folder / f"qwen3-{kind}.gguf"
        begun = time.perf_counter()
        read = write_gguf(path, kind, shape)
        say(check="made", weights=kind, seconds=round(time.perf_counter() - begun, 1))
        timed(path, kind, read, options())
        exact(path, options())
        os.remove(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
