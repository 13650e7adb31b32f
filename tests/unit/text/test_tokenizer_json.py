from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from ignis.errors import ModelFileError
from ignis.text import from_gguf, from_tokenizer_json
from tests.unit.text import tiny

TEXT = "the cat<|im_end|>\n\n\n<think> don't 123 你好\n"


def edit(file: Path, change: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_folder(
        tmp_path, tiny.byte_level_metadata(), eos_token="<|im_end|>", bos_token=None
    )


def test_folder_and_gguf_of_one_model_agree(folder: Path) -> None:
    ours, gguf = from_tokenizer_json(folder), from_gguf(tiny.byte_level_metadata())
    for special in (False, True):
        assert ours.encode(TEXT, special=special) == gguf.encode(TEXT, special=special)
    assert ours.special_ids == gguf.special_ids
    assert ours.eos_ids == gguf.eos_ids
    ids = ours.encode(TEXT, special=True)
    assert ours.decode(ids, skip_special=False) == TEXT


def test_template_text_encodes_as_the_library_itself_does(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = from_tokenizer_json(folder / "tokenizer.json")
    assert ours.encode(TEXT, special=True) == library.encode(TEXT, add_special_tokens=False).ids


def test_end_tokens_come_from_every_file(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    (folder / "config.json").write_text('{"text_config": {"eos_token_id": 11}}')
    assert from_tokenizer_json(folder).eos_ids == {0, 2, 9, 11}


def test_end_token_is_a_control_token_even_if_not_special(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    body = json.loads((folder / "tokenizer.json").read_text())
    body["added_tokens"][2]["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(body))
    assert 2 in from_tokenizer_json(folder).special_ids


def test_end_token_outside_the_vocabulary_names_the_file(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 99999}')
    with pytest.raises(ModelFileError, match=r"generation_config\.json: eos_token_id"):
        from_tokenizer_json(folder)


def test_named_token_must_exist(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", {"bos_token": {"content": "<nope>"}})
    with pytest.raises(ModelFileError, match=r"bos_token.*<nope>"):
        from_tokenizer_json(folder)


def test_bos_is_added_where_the_post_processor_adds_it(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", {"bos_token": "<|endoftext|>"})
    assert not from_tokenizer_json(folder).add_bos
    bos = {"id": "<|endoftext|>", "type_id": 0}
    single = [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    edit(
        folder / "tokenizer.json",
        {"post_processor": {"type": "Sequence", "processors": [template]}},
    )
    assert from_tokenizer_json(folder).encode_prompt("the")[0] == 0
    edit(folder / "tokenizer_config.json", {"add_bos_token": False})
    assert not from_tokenizer_json(folder).add_bos


def test_white_space_beside_a_stripping_token_is_swallowed(folder: Path) -> None:
    body = json.loads((folder / "tokenizer.json").read_text())
    body["added_tokens"][2] |= {"rstrip": True, "lstrip": True}
    (folder / "tokenizer.json").write_text(json.dumps(body))
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "a \n<|im_end|> \n b"
    ids = from_tokenizer_json(folder).encode(text, special=True)
    assert ids == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "model.type"),
        ({"model": None}, "model"),
        ({"added_tokens": {"a": 1}}, "added_tokens"),
        ({"added_tokens": [{"id": "x", "content": "a"}]}, "added_tokens[0]"),
        ({"added_tokens": [{"id": 5, "content": "<new>"}]}, "added_tokens"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "model.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "model.vocab"),
    ],
)
def test_wrong_value_is_refused_by_file_and_key(
    folder: Path, change: dict[str, Any], key: str
) -> None:
    edit(folder / "tokenizer.json", change)
    with pytest.raises(ModelFileError) as caught:
        from_tokenizer_json(folder)
    assert caught.value.key == key
    assert caught.value.file == str(folder / "tokenizer.json")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", None])
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        from_tokenizer_json(tmp_path)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_prefix_is_kept(tmp_path: Path, scheme: str) -> None:
    metadata: dict[str, Any] = tiny.sentencepiece_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {text: i for i, text in enumerate(tokens)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "c"), ("a", "t"), ("▁c", "at")]
    library = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    library.add_special_tokens([tokens[i] for i in (1, 2)])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": "<s>"}')
    ours = from_tokenizer_json(tmp_path)
    assert kinds[0] == tiny.UNKNOWN
    for text in ("the cat", " the", "cat</s>the", "\n", "<s>the cat"):
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == expected, text
    assert ours.decode(ours.encode("the cat")) == "the cat"
