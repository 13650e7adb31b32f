from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.errors import ModelFileError
from ignis.text import Tokenizer, from_gguf
from ignis.text.pretokenizers import SPLITS
from ignis.text.vocabulary import SPACE_MARK
from tests.unit.text import tiny

Metadata = dict[str, Any]


def refused(metadata: Metadata) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        from_gguf(metadata)
    return caught.value


@pytest.mark.parametrize("key", ["model", "pre", "tokens", "token_type", "merges"])
def test_missing_key_is_named_for_byte_level(key: str) -> None:
    metadata = tiny.byte_level_metadata()
    del metadata[f"tokenizer.ggml.{key}"]
    error = refused(metadata)
    assert error.key == f"tokenizer.ggml.{key}"
    assert "missing" in str(error)


@pytest.mark.parametrize("key", ["tokens", "token_type", "scores"])
def test_missing_key_is_named_for_sentencepiece(key: str) -> None:
    metadata = tiny.sentencepiece_metadata()
    del metadata[f"tokenizer.ggml.{key}"]
    assert refused(metadata).key == f"tokenizer.ggml.{key}"


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("model", "bert", "'bert'", "'gpt2' or 'llama'"),
        ("model", 3, "3", "a text"),
        ("pre", "nonsense", "'nonsense'", "qwen35"),
        ("tokens", [], "an empty list", "at least one token"),
        ("tokens", ["a", 5], "5 at 1", "a text"),
        ("tokens", ["a", "b", "a"], "'a' at 0 and 2", "each token once"),
        ("token_type", [1, 2], "2 entries", "one per token"),
        ("token_type", [1, 9], "9 at 1", "1 to 6"),
        ("merges", ["ab"], "'ab' at 0", "left right"),
        ("merges", ["t zzz"], "'t zzz' at 0", "'zzz' among the tokens"),
        ("eos_token_id", 10**6, "1000000", "0 to"),
        ("eos_token_id", -1, "-1", "0 to"),
        ("bos_token_id", "one", "'one'", "0 to"),
        ("bos_token_id", True, "True", "0 to"),
        ("add_bos_token", 1, "1", "true or false"),
    ],
)
def test_wrong_value_is_refused_with_what_was_found_and_expected(
    key: str, value: object, found: str, expected: str
) -> None:
    error = refused(tiny.byte_level_metadata() | {f"tokenizer.ggml.{key}": value})
    assert error.key == f"tokenizer.ggml.{key}"
    assert found in str(error.found)
    assert expected in str(error.expected)


def test_nan_score_is_refused() -> None:
    metadata: Metadata = tiny.sentencepiece_metadata()
    metadata["tokenizer.ggml.scores"][5] = float("nan")
    assert refused(metadata).key == "tokenizer.ggml.scores"


def test_missing_end_token_is_found_by_its_text() -> None:
    metadata = tiny.byte_level_metadata()
    del metadata["tokenizer.ggml.eos_token_id"]
    assert from_gguf(metadata).eos_ids == {0, 2}


def test_no_end_token_at_all_is_refused() -> None:
    metadata: Metadata = tiny.byte_level_metadata()
    del metadata["tokenizer.ggml.eos_token_id"]
    metadata["tokenizer.ggml.tokens"][0] = "<|one|>"
    metadata["tokenizer.ggml.tokens"][2] = "<|two|>"
    assert refused(metadata).key == "tokenizer.ggml.eos_token_id"


def test_bos_that_is_asked_for_must_exist() -> None:
    metadata = tiny.byte_level_metadata() | {"tokenizer.ggml.add_bos_token": True}
    assert from_gguf(metadata).add_bos
    del metadata["tokenizer.ggml.bos_token_id"]
    assert refused(metadata).key == "tokenizer.ggml.bos_token_id"


def test_turn_ends_of_all_keys_count() -> None:
    metadata = tiny.byte_level_metadata() | {
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 8,
    }
    assert from_gguf(metadata).eos_ids == {0, 2, 7, 8}


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_known_split_keeps_all_text(pre: str) -> None:
    tokenizer = from_gguf(tiny.byte_level_metadata(pre))
    text = "Don't stop: 12345 + x²\r\n\n\tnaïve  你好 世界、한국어! \u3000end "
    assert tokenizer.decode(tokenizer.encode(text)) == text


def pieces(pre: str, text: str) -> list[str]:
    return [
        text[start:end] for _, (start, end) in SPLITS[pre].pre_tokenizer().pre_tokenize_str(text)
    ]


def test_splits_differ_where_their_models_do() -> None:
    assert pieces("smollm", "a 123") == ["a", " ", "1", "2", "3"]
    assert pieces("gpt-2", "a 123") == ["a", " 123"]
    assert pieces("llama-bpe", "a 1234") == ["a", " ", "123", "4"]
    assert pieces("qwen2", "a 12") == ["a", " ", "1", "2"]
    assert pieces("qwen2", "DON'T\n\n x") == ["DON", "'T", "\n\n", " x"]
    assert pieces("gpt-2", "DON'T") == ["DON", "'", "T"]
    assert pieces("qwen2", "ก\u0e34_") == ["ก", "\u0e34_"]
    assert pieces("deepseek-llm", "x \uff01\uff1ay 12") == ["x", " \uff01\uff1a", "y", " ", "12"]
    assert pieces("qwen35", "ก\u0e34_") == ["ก\u0e34", "_"]


def test_qwen_text_is_normalised_and_others_are_not() -> None:
    decomposed = "e\u0301"
    for pre, text in [("qwen2", "é"), ("qwen35", "é"), ("smollm", decomposed)]:
        tokenizer = from_gguf(tiny.byte_level_metadata(pre))
        assert tokenizer.decode(tokenizer.encode(decomposed)) == text


class Joiner:
    """SentencePiece as its paper says it: join the best-scored neighbours, leftmost first."""

    def __init__(self, metadata: Metadata) -> None:
        kinds = metadata["tokenizer.ggml.token_type"]
        rows = zip(
            metadata["tokenizer.ggml.tokens"], kinds, metadata["tokenizer.ggml.scores"], strict=True
        )
        self.table = {
            text: (score, i) for i, (text, kind, score) in enumerate(rows) if kind == tiny.NORMAL
        }
        self.byte_ids = {
            text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"]) if "<0x" in text
        }

    def encode(self, text: str) -> list[int]:
        parts = list(SPACE_MARK + text.replace(" ", SPACE_MARK)) if text else []
        while True:
            joins = [
                (-self.table[a + b][0], i)
                for i, (a, b) in enumerate(pairwise(parts))
                if a + b in self.table
            ]
            if not joins:
                break
            _, i = min(joins)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids: list[int] = []
        for part in parts:
            if part in self.table:
                ids.append(self.table[part][1])
            else:
                ids += [self.byte_ids[f"<0x{byte:02X}>"] for byte in part.encode()]
        return ids


@given(st.text("the cating▁.é你 \n", max_size=30))
def test_sentencepiece_joins_like_the_naive_model(sentencepiece: Tokenizer, text: str) -> None:
    assert sentencepiece.encode(text) == Joiner(tiny.sentencepiece_metadata()).encode(text)


def test_sentencepiece_without_bytes_uses_the_unknown_token() -> None:
    tokenizer = from_gguf(tiny.sentencepiece_metadata(byte_tokens=False))
    assert tokenizer.encode("你")[-1] == 0
    assert 0 not in tokenizer.encode("<unk>the")[1:2]


def test_sentencepiece_without_bytes_or_unknown_token_is_refused() -> None:
    metadata = tiny.sentencepiece_metadata(byte_tokens=False)
    del metadata["tokenizer.ggml.unknown_token_id"]
    assert refused(metadata).key == "tokenizer.ggml.unknown_token_id"


def test_space_prefix_can_be_off() -> None:
    metadata = tiny.sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = from_gguf(metadata)
    assert tokenizer.token_text(tokenizer.encode("the")[0]) == "t"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_empty_token_spells_nothing() -> None:
    metadata: Metadata = tiny.byte_level_metadata()
    metadata["tokenizer.ggml.tokens"].append("")
    metadata["tokenizer.ggml.token_type"].append(tiny.NORMAL)
    tokenizer = from_gguf(metadata)
    assert tokenizer.vocab_size - 1 in tokenizer.vocabulary.unused_ids


def test_token_named_as_the_end_is_a_control_token_whatever_its_type() -> None:
    metadata: Metadata = tiny.byte_level_metadata()
    metadata["tokenizer.ggml.token_type"][2] = tiny.NORMAL
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("<|im_end|>", special=True) == [2]
    assert 2 in tokenizer.special_ids


def test_refusal_names_the_file_where_it_is_known() -> None:
    with pytest.raises(
        ModelFileError, match=r"^a\.gguf: tokenizer\.ggml\.tokens: the key is missing"
    ):
        from_gguf({}, file="a.gguf")


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
KEYS = sorted({*tiny.byte_level_metadata(), *tiny.sentencepiece_metadata()})
VALID = {"gpt2": tiny.byte_level_metadata(), "llama": tiny.sentencepiece_metadata()}


@given(
    st.sampled_from(sorted(VALID)),
    st.dictionaries(st.sampled_from(KEYS), HOSTILE, min_size=1, max_size=3),
)
def test_hostile_metadata_is_read_or_refused(model: str, change: dict[str, object]) -> None:
    refusal, ids = None, []
    try:
        ids = from_gguf(VALID[model] | change).encode("the cat")
    except ModelFileError as error:
        refusal = str(error)
    assert ids or (refusal is not None and refusal.startswith("tokenizer.ggml."))
