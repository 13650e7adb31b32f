"""Checkpoints of random weights in the geometry of a real model, in any stored format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

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
