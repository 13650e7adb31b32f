"""A tokenizer from a Hugging Face folder: `tokenizer.json` and the small files beside it.

`tokenizer.json` says how text becomes tokens; `tokenizer_config.json`, `generation_config.json`
and `config.json` say which tokens begin and end. Only BPE is known, byte-level or SentencePiece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers

from ignis.errors import ModelFileError
from ignis.text.folder import FolderTokens, read_json
from ignis.text.tokenizer import Tokenizer
from ignis.text.vocabulary import (
    AddedKind,
    AddedToken,
    SpacePrefix,
    Vocabulary,
    added_kind,
    byte_level_piece,
    end_ids,
    sentencepiece_piece,
)


def from_tokenizer_json(path: Path) -> Tokenizer:
    """The tokenizer of the folder `path`, or of the `tokenizer.json` at `path`.

    Raises ModelFileError naming the file and key that is missing, malformed or not supported.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    config = read_json(file)
    try:
        return _build(config, file)
    except ModelFileError as error:
        error.file = error.file or str(file)
        raise


def _build(config: dict[str, object], file: Path) -> Tokenizer:
    model = _object(config, "model")
    if model.get("type", "BPE") != "BPE":
        raise ModelFileError(
            "unknown tokenizer model", key="model.type", found=repr(model["type"]), expected="'BPE'"
        )
    vocab = _vocab(model)
    added = _added(config)
    texts = _texts(vocab, added)
    steps = _components(config.get("pre_tokenizer"))
    byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    piece_of = byte_level_piece if byte_level else sentencepiece_piece
    pieces = [text.encode() if text in added else piece_of(text) for text in texts]
    names = FolderTokens(file.parent, {text: i for i, text in enumerate(texts) if text})
    bos = names.token_id("bos_token")
    declared = names.eos_ids()
    added = {
        text: replace(token, kind=AddedKind.CONTROL) if token.id in {bos, *declared} else token
        for text, token in added.items()
    }
    ends = end_ids(added, declared)
    if not ends:
        raise ModelFileError(
            "nothing ends a turn", key="eos_token_id", file=str(file.parent / "config.json")
        )
    eos = names.token_id("eos_token")
    return Tokenizer(
        _plain_bpe(config, model, vocab, added),
        Vocabulary(
            texts=texts,
            pieces=pieces,
            added=added,
            unused_ids=frozenset(i for i, text in enumerate(texts) if not text),
            bos_id=bos,
            eos_id=min(ends) if eos is None else eos,
            eos_ids=ends,
            unk_id=names.token_id("unk_token"),
            pad_id=names.token_id("pad_token"),
            add_bos=bos is not None and _adds_bos(config, names, texts[bos]),
            space_prefix=_space_prefix(config),
        ),
    )


def _plain_bpe(
    config: Mapping[str, object],
    model: Mapping[str, object],
    vocab: Mapping[str, int],
    added: Mapping[str, AddedToken],
) -> tokenizers.Tokenizer:
    """The same tokenizer without added tokens, which no merge can build either."""
    hidden = added.keys() - {model.get("unk_token")}
    plain = dict(model)
    if hidden & vocab.keys():
        merges = plain.get("merges")
        pairs = (_pair(merge) for merge in merges) if isinstance(merges, list) else ()
        plain["vocab"] = {text: i for text, i in vocab.items() if text not in hidden}
        plain["merges"] = [
            [left, right] for left, right in pairs if not hidden & {left, right, left + right}
        ]
    body = dict(config) | {"model": plain, "added_tokens": [], "post_processor": None}
    body |= {"truncation": None, "padding": None}
    for part in ("normalizer", "pre_tokenizer"):
        body[part] = _without_prefix(config.get(part))
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(body, ensure_ascii=False))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"not a usable tokenizer: {error}") from error


def _pair(merge: object) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    match parts:
        case [str(left), str(right)]:
            return left, right
    raise ModelFileError(
        "the value is wrong", key="model.merges", found=repr(merge), expected="two tokens"
    )


def _vocab(model: Mapping[str, object]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    taken: dict[int, str] = {}
    for text, value in _object(model, "vocab").items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 24:
            raise ModelFileError(
                f"the id of {text!r} is wrong", key="model.vocab", found=repr(value)
            )
        if value in taken:
            raise ModelFileError(
                "two tokens have one id",
                key="model.vocab",
                found=f"{taken[value]!r} and {text!r} at {value}",
            )
        taken[value] = text
        vocab[text] = value
    return vocab


def _added(config: Mapping[str, object]) -> dict[str, AddedToken]:
    entries = config.get("added_tokens") or []
    if not isinstance(entries, list):
        raise ModelFileError("the value is wrong", key="added_tokens", expected="a list")
    added: dict[str, AddedToken] = {}
    for index, entry in enumerate(entries):
        match entry:
            case {"id": int(i), "content": str(text), **flags} if text and 0 <= i < 1 << 24:
                kind = added_kind(text, control=bool(flags.get("special")))
                left, right = bool(flags.get("lstrip")), bool(flags.get("rstrip"))
                added[text] = AddedToken(i, text, kind, strip_left=left, strip_right=right)
            case _:
                raise ModelFileError(
                    "the value is wrong",
                    key=f"added_tokens[{index}]",
                    expected="an object with a content and an id",
                )
    return added


def _texts(vocab: Mapping[str, int], added: Mapping[str, AddedToken]) -> list[str]:
    """Token texts by id; an id that no token has keeps an empty text."""
    ids = dict(vocab) | {text: token.id for text, token in added.items()}
    if not ids:
        raise ModelFileError("no tokens", key="model.vocab")
    texts = [""] * (max(ids.values()) + 1)
    for text, i in ids.items():
        if texts[i]:
            raise ModelFileError(
                "two tokens have one id", key="added_tokens", found=f"{texts[i]!r} and {text!r}"
            )
        texts[i] = text
    return texts


def _components(part: object) -> list[dict[str, object]]:
    """A component, or those it is a sequence of, each with its `type`."""
    if not isinstance(part, dict):
        return []
    for inner in ("normalizers", "pretokenizers", "processors"):
        items = part.get(inner)
        if isinstance(items, list):
            return [found for item in items for found in _components(item)]
    return [part]


def _space_prefix(config: Mapping[str, object]) -> SpacePrefix:
    """Where the file puts SentencePiece's dummy space: a normaliser always, Metaspace once."""
    if any(part.get("type") == "Prepend" for part in _components(config.get("normalizer"))):
        return SpacePrefix.EACH_RUN
    for part in _components(config.get("pre_tokenizer")):
        if part.get("type") == "Metaspace":
            # Older files have `add_prefix_space` where newer ones have `prepend_scheme`.
            default = "always" if part.get("add_prefix_space", True) else "never"
            scheme = part.get("prepend_scheme", default)
            if scheme == "first":
                return SpacePrefix.TEXT_START_ONCE
            return SpacePrefix.NONE if scheme == "never" else SpacePrefix.EACH_RUN_ONCE
    return SpacePrefix.NONE


def _without_prefix(part: object) -> object:
    """The component without the dummy space, which `Tokenizer` puts in itself."""
    if not isinstance(part, dict):
        return part
    for inner in ("normalizers", "pretokenizers"):
        if isinstance(part.get(inner), list):
            kept = [_without_prefix(item) for item in part[inner]]
            return part | {inner: [item for item in kept if item is not None]}
    if part.get("type") == "Prepend":
        return None
    if part.get("type") == "Metaspace":
        kept_keys = {key: value for key, value in part.items() if key != "add_prefix_space"}
        return kept_keys | {"prepend_scheme": "never"}
    return part


def _adds_bos(config: Mapping[str, object], names: FolderTokens, bos: str) -> bool:
    """Whether prompts begin with `bos`: as the folder says, else as the post-processor does."""
    asked = names.config.get("add_bos_token")
    if isinstance(asked, bool):
        return asked
    for part in _components(config.get("post_processor")):
        match part.get("single"):
            case [{"SpecialToken": {"id": text}}, *_]:
                return bool(text == bos)
    return False


def _object(config: Mapping[str, object], key: str) -> dict[str, object]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise ModelFileError("the value is wrong", key=key, expected="an object")
    return value
