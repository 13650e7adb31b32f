from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.text import Detokenizer, Tokenizer, from_gguf
from tests.unit.text import tiny

CLUSTERS = "Repeat: 👩‍👩‍👧‍👦🇯🇵한국어ะ้"
SIZE = from_gguf(tiny.byte_level_metadata()).vocab_size
SP_SIZE = from_gguf(tiny.sentencepiece_metadata()).vocab_size


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.id_to_bytes(i) == bytes([byte]))


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@given(st.lists(st.integers(0, SIZE - 1), max_size=30), st.booleans())
def test_stream_equals_whole(byte_level: Tokenizer, ids: list[int], skip: bool) -> None:
    parts = stream(Detokenizer(byte_level, skip_special=skip), ids)
    assert "".join(parts) == byte_level.decode(ids, skip_special=skip)


@given(st.lists(st.integers(0, SP_SIZE - 1), max_size=30))
def test_stream_equals_whole_of_sentencepiece(sentencepiece: Tokenizer, ids: list[int]) -> None:
    parts = stream(Detokenizer(sentencepiece), ids)
    assert "".join(parts) == sentencepiece.decode(ids)


@given(st.lists(st.integers(0, SIZE - 1), max_size=30))
def test_text_is_that_of_the_joined_bytes(byte_level: Tokenizer, ids: list[int]) -> None:
    shown = [i for i in ids if i not in byte_level.special_ids]
    whole = b"".join(map(byte_level.id_to_bytes, shown)).decode("utf-8", "replace")
    assert "".join(stream(Detokenizer(byte_level), ids)) == whole


def test_no_character_is_cut(byte_level: Tokenizer) -> None:
    ids = [byte_token(byte_level, byte) for byte in CLUSTERS.encode()]
    parts = stream(Detokenizer(byte_level), ids)
    assert "".join(parts) == CLUSTERS
    assert not any("\ufffd" in part for part in parts)
    assert all(part.encode() for part in parts if part)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_cut_inside_a_character_gives_one_replacement(byte_level: Tokenizer, kept: int) -> None:
    ids = [byte_token(byte_level, byte) for byte in "👩".encode()[:kept]]
    assert stream(Detokenizer(byte_level), ids) == [""] * kept + ["\ufffd"]


def test_text_goes_on_after_invalid_bytes(byte_level: Tokenizer) -> None:
    ids = [byte_token(byte_level, byte) for byte in b"\xff\xfea"]
    assert stream(Detokenizer(byte_level), ids) == ["\ufffd", "\ufffd", "a", ""]


def test_control_token_inside_a_character_prints_nothing(byte_level: Tokenizer) -> None:
    first, second = (byte_token(byte_level, byte) for byte in "é".encode())
    assert stream(Detokenizer(byte_level), [first, 2, second]) == ["", "", "é", ""]


def test_control_tokens_can_be_shown(byte_level: Tokenizer) -> None:
    assert stream(Detokenizer(byte_level, skip_special=False), [2]) == ["<|im_end|>", ""]


def test_space_is_kept_where_a_word_continues_the_prompt(sentencepiece: Tokenizer) -> None:
    prompt, answer = sentencepiece.encode("the"), sentencepiece.encode("cat")
    assert "".join(stream(Detokenizer(sentencepiece, after=prompt[-1]), answer)) == " cat"
    assert "".join(stream(Detokenizer(sentencepiece), answer)) == "cat"
    assert "".join(stream(Detokenizer(sentencepiece, after=1), answer)) == "cat"
