"""A checkpoint of random weights in a folder of `transformers`' layout, for what needs files.

One safetensors file in bf16, a config, and a byte-level tokenizer without merges. Views of one run
of random values fill it, so 16 GB take as long as writing them does.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokenizers

from ignis.cli.geometries import geometry

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
END = "<|end|>"
RUN_BYTES = 64 << 20
PIECE_BYTES = 32 << 20


def tensors(shape: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a dense model's tensors."""
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    found: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (shape["vocab_size"], hidden))
    ]
    for layer in range(shape["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        found += [
            (of + "input_layernorm.weight", (hidden,)),
            (of + "self_attn.q_proj.weight", (queries, hidden)),
            (of + "self_attn.k_proj.weight", (keys, hidden)),
            (of + "self_attn.v_proj.weight", (keys, hidden)),
            (of + "self_attn.o_proj.weight", (hidden, queries)),
            (of + "post_attention_layernorm.weight", (hidden,)),
            (of + "mlp.gate_proj.weight", (inner, hidden)),
            (of + "mlp.up_proj.weight", (inner, hidden)),
            (of + "mlp.down_proj.weight", (hidden, inner)),
        ]
        if shape["model_type"] == "qwen3":
            found += [(of + f"self_attn.{one}_norm.weight", (dim,)) for one in "qk"]
    found.append(("model.norm.weight", (hidden,)))
    if not shape["tie_word_embeddings"]:
        found.append(("lm_head.weight", (shape["vocab_size"], hidden)))
    return found


def random_values(hidden: int) -> bytes:
    """bf16 values of about hidden^-0.5, of both signs."""
    # The high byte of a bf16: sign, and an exponent of a few powers of two below the deviation.
    exponent = 127 - (hidden.bit_length() - 1) // 2
    highs = bytes((sign | (exponent - down) >> 1) for sign in (0, 128) for down in range(4))
    raw = bytearray(os.urandom(RUN_BYTES))
    raw[1::2] = raw[1::2].translate(bytes(highs[at % 8] for at in range(256)))
    return bytes(raw)


def write(folder: Path, name: str, **changes: object) -> int:
    """Writes a geometry, some values of which may be changed; bytes of its weights."""
    shape = geometry(name) | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape | {"eos_token_id": 256}), encoding="utf-8")
    _write_tokenizer(folder)
    header: dict[str, Any] = {}
    at = 0
    for tensor, dims in tensors(shape):
        size = 2
        for dim in dims:
            size *= dim
        header[tensor] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    random, ones = random_values(int(shape["hidden_size"])), b"\x80\x3f" * (1 << 16)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(start + at)

    def put(piece: tuple[bytes, int, int]) -> None:
        run, offset, size = piece
        begin = offset * 31 % (len(run) - size + 1) // 2 * 2
        out = os.open(path, os.O_WRONLY)
        try:
            view = memoryview(run)[begin : begin + size]
            while view:
                done = os.pwrite(out, view, start + offset)
                view, offset = view[done:], offset + done
        finally:
            os.close(out)

    pieces = []
    for entry in header.values():
        run = ones if len(entry["shape"]) == 1 else random
        first, last = entry["data_offsets"]
        step = min(PIECE_BYTES, len(run))
        pieces += [(run, at, min(step, last - at)) for at in range(first, last, step)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(put, pieces))
    return at


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: at for at, letter in enumerate(alphabet)}
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens([END])
    bpe.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
