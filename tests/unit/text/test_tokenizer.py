from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.errors import RequestError
from ignis.text import Segment, Tokenizer, from_gguf, text_of
from tests.unit.text import tiny

SPELLED = st.sampled_from([*tiny.CONTROL, *tiny.MARKUP, "<s>", "</s>", "<unk>", "<0x0A>", "<tool>"])
ANY_TEXT = st.lists(SPELLED | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)).map(
    "".join
)


@given(ANY_TEXT)
def test_plain_text_never_becomes_a_reserved_token(byte_level: Tokenizer, text: str) -> None:
    reserved = {t.id for t in byte_level.vocabulary.added.values() if t.text not in tiny.LITERAL}
    assert not reserved & set(byte_level.encode(text))


@given(ANY_TEXT)
def test_plain_text_never_becomes_a_reserved_sentencepiece(
    sentencepiece: Tokenizer, text: str
) -> None:
    reserved = {t.id for t in sentencepiece.vocabulary.added.values()}
    assert not reserved & set(sentencepiece.encode(text))


@given(ANY_TEXT, st.booleans())
def test_decode_undoes_encode(byte_level: Tokenizer, text: str, special: bool) -> None:
    ids = byte_level.encode(text, special=special)
    assert byte_level.decode(ids, skip_special=False) == text


@given(ANY_TEXT.filter(lambda text: "▁" not in text), st.booleans())
def test_decode_undoes_encode_of_sentencepiece(
    sentencepiece: Tokenizer, text: str, special: bool
) -> None:
    ids = sentencepiece.encode(text, special=special)
    assert sentencepiece.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("text", [" a", "a", "  a", "\ta", "\n\n\n", "\0", "\ufeff", "", " "])
def test_white_space_and_odd_characters_survive(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_template_text_becomes_control_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.encode("<|im_end|>", special=True) == [2]
    assert len(byte_level.encode("<|im_end|>")) > 1


def test_markup_is_a_token_in_template_text_and_is_shown(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<think>", special=True)
    assert [byte_level.token_text(i) for i in ids] == ["<think>"]
    assert byte_level.decode(ids) == "<think>"
    assert not byte_level.special_ids & set(ids)


def test_literal_added_token_is_matched_everywhere(byte_level: Tokenizer) -> None:
    assert [byte_level.token_text(i) for i in byte_level.encode("a\n\n\nb")][1] == "\n\n\n"


def test_longest_added_token_wins() -> None:
    metadata = tiny.byte_level_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokens.append("<|im_end|>\n")
    types.append(tiny.SPECIAL)
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("<|im_end|>\n", special=True) == [len(tokens) - 1]


def test_decode_skips_control_tokens(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|im_end|>b", special=True)
    assert byte_level.decode(ids) == "ab"
    assert byte_level.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_id_to_bytes_gives_raw_bytes(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        pieces = [tokenizer.id_to_bytes(i) for i in tokenizer.encode("x 你é")]
        assert b"".join(pieces).lstrip() == "x 你é".encode()
    newline = sentencepiece.encode("\n")[-1]
    assert sentencepiece.token_text(newline) == "<0x0A>"
    assert sentencepiece.id_to_bytes(newline) == b"\n"


def test_unused_token_is_known_and_has_no_bytes(byte_level: Tokenizer) -> None:
    last = byte_level.vocab_size - 1
    assert byte_level.vocabulary.unused_ids == {last}
    assert byte_level.id_to_bytes(last) == b""


def test_id_outside_the_vocabulary_is_refused_by_position(byte_level: Tokenizer) -> None:
    for bad in (-1, byte_level.vocab_size):
        with pytest.raises(RequestError) as caught:
            byte_level.decode([5, bad])
        assert caught.value.param == "tokens[1]"
        with pytest.raises(RequestError):
            byte_level.token_text(bad)


def test_lone_surrogate_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        byte_level.encode("a\ud800")


class TestBeginningOfSequence:
    def test_is_added_once(self, sentencepiece: Tokenizer) -> None:
        assert sentencepiece.add_bos
        plain = sentencepiece.encode("the cat")
        assert sentencepiece.encode_prompt("the cat") == [1, *plain]
        assert sentencepiece.encode_prompt("<s>the cat", special=True) == [1, *plain]
        assert sentencepiece.encode_segments([Segment("<s>", 1), Segment("the cat")]) == [1, *plain]
        assert sentencepiece.encode_segments([Segment("the cat")]) == [1, *plain]

    def test_spelled_out_in_plain_text_stays_text(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode_prompt("<s>the cat")
        assert ids.count(1) == 1
        assert sentencepiece.decode(ids[1:]) == "<s>the cat"

    def test_is_not_added_where_the_model_has_none(self, byte_level: Tokenizer) -> None:
        assert byte_level.encode_prompt("a") == byte_level.encode("a")


def test_segments_encode_as_one_text_would(byte_level: Tokenizer) -> None:
    text = "<|im_start|>user\nthe <think> cat<|im_end|>\n"
    segments = byte_level.split(text, special=True)
    assert text_of(segments) == text
    assert byte_level.encode_segments(segments) == byte_level.encode(text, special=True)


def test_every_end_of_turn_is_known(byte_level: Tokenizer) -> None:
    assert byte_level.eos_ids == {0, 2}


def test_named_tokens_for_templates(byte_level: Tokenizer) -> None:
    assert byte_level.template_tokens() == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
