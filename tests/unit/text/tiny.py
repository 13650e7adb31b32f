"""Small tokenizers, trained in the test, in the shapes that model files have."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import models, trainers

from ignis.text.pretokenizers import SPLITS

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<think>", "</think>", "<tool_response>", "</tool_response>"]
LITERAL = ["\n\n\n"]
CORPUS = [
    "the cat sat on the mat, and the dog saw the cat",
    "system user assistant tool: im_start im_end endoftext think tool_response",
    "don't stop 123 456\n\n  def f(x):\n    return x + 1\n",
    "naïve café 你好 世界 한국어 🎉 здравствуйте",
]
NORMAL, UNKNOWN, SPECIAL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_level_metadata(pre: str = "smollm") -> dict[str, object]:
    """GGUF metadata of a byte-level BPE of a few hundred tokens, with every kind of added token."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = SPLITS[pre].pre_tokenizer()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(bpe.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    tokens = [*CONTROL, *words, *MARKUP, *LITERAL, "[PAD]"]
    types = (
        [SPECIAL] * len(CONTROL)
        + [NORMAL] * len(words)
        + [USER_DEFINED] * len(MARKUP + LITERAL)
        + [UNUSED]
    )
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_metadata(*, byte_tokens: bool = True) -> dict[str, object]:
    """GGUF metadata of a SentencePiece BPE whose scores fall with the id, as trainers make them."""
    letters = "▁abcdefghijklmnopqrstuvwxyz.,<>/|_éx"
    words = ["▁t", "he", "▁the", "▁c", "at", "▁cat", "▁▁", "an", "and", "▁and", "in", "ing"]
    table: list[tuple[str, int, float]] = [("<unk>", UNKNOWN, 0), ("<s>", SPECIAL, 0)]
    table.append(("</s>", SPECIAL, 0))
    if byte_tokens:
        table += [(f"<0x{byte:02X}>", BYTE, 0) for byte in range(256)]
    table += [(word, NORMAL, -float(rank)) for rank, word in enumerate(words)]
    table += [(letter, NORMAL, -100.0) for letter in dict.fromkeys(letters)]
    table.append(("<tool>", USER_DEFINED, 0))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in table],
        "tokenizer.ggml.token_type": [kind for _, kind, _ in table],
        "tokenizer.ggml.scores": [score for _, _, score in table],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_folder(folder: Path, metadata: dict[str, object], **config: object) -> Path:
    """A Hugging Face folder with the byte-level tokenizer that `metadata` describes."""
    tokens, types, merges = (
        metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges")
    )
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    assert isinstance(merges, list)
    added = {i: kind for i, kind in enumerate(types) if kind in (SPECIAL, USER_DEFINED)}
    split = SPLITS[str(metadata["tokenizer.ggml.pre"])]
    shape = tokenizers.Tokenizer(models.BPE())
    shape.pre_tokenizer = split.pre_tokenizer()
    body = json.loads(shape.to_str())
    body["model"]["vocab"] = {text: i for i, text in enumerate(tokens)}
    body["model"]["merges"] = [merge.split(" ") for merge in merges]
    body["added_tokens"] = [
        {
            "id": i,
            "content": tokens[i],
            "special": kind == SPECIAL,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, kind in added.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
