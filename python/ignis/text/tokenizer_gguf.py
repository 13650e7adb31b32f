"""A tokenizer from the metadata of a GGUF file.

Two models are known: `gpt2`, byte-level BPE whose split is named by `tokenizer.ggml.pre`, and
`llama`, SentencePiece BPE, whose merges are rebuilt from the scores. Metadata that is missing or
contradicts itself is refused by key, because a tokenizer that is nearly right gives text that is
nearly right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tokenizers
from tokenizers import models, normalizers

from ignis.errors import ModelFileError
from ignis.text.gguf_fields import END_KEYS, PREFIX, GgufFields, TokenType
from ignis.text.pretokenizers import SPLITS
from ignis.text.tokenizer import Tokenizer
from ignis.text.vocabulary import (
    SPACE_MARK,
    AddedToken,
    SpacePrefix,
    Vocabulary,
    added_kind,
    byte_level_piece,
    end_ids,
    is_byte_token,
    sentencepiece_piece,
)

_ADDED = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


def from_gguf(metadata: Mapping[str, object], *, file: str | None = None) -> Tokenizer:
    """The tokenizer that `metadata` (GGUF keys to plain Python values) describes.

    Raises ModelFileError naming `file` and the key that is missing, malformed or contradicts
    another.
    """
    try:
        return _build(GgufFields(metadata))
    except ModelFileError as error:
        error.file = error.file or file
        raise


def _build(fields: GgufFields) -> Tokenizer:
    model = fields.text("model")
    if model == "gpt2":
        return _byte_level(fields)
    if model == "llama":
        return _sentencepiece(fields)
    raise ModelFileError(
        "unknown tokenizer model",
        key=PREFIX + "model",
        found=repr(model),
        expected="'gpt2' or 'llama'",
    )


def _byte_level(fields: GgufFields) -> Tokenizer:
    name = fields.text("pre")
    split = SPLITS.get(name)
    if split is None:
        raise ModelFileError(
            "unknown pre-tokenizer",
            key=PREFIX + "pre",
            found=repr(name),
            expected="one of " + ", ".join(sorted(SPLITS)),
        )
    normal = fields.ids_of(TokenType.NORMAL)
    # Only normal tokens can be built by merging: text must not merge its way to a control token.
    merges = [
        (left, right)
        for left, right in fields.merges()
        if left in normal and right in normal and left + right in normal
    ]
    bpe = tokenizers.Tokenizer(models.BPE(normal, merges, ignore_merges=split.whole_words))
    if split.nfc:
        bpe.normalizer = split.normalizer()
    bpe.pre_tokenizer = split.pre_tokenizer()
    prefix = SpacePrefix.NONE
    return Tokenizer(bpe, _vocabulary(fields, byte_level_piece, prefix, add_bos=split.add_bos))


def _sentencepiece(fields: GgufFields) -> Tokenizer:
    plain = fields.ids_of(TokenType.NORMAL, TokenType.BYTE)
    merges = _merges_of_scores(fields)
    byte_tokens = sum(map(is_byte_token, fields.ids_of(TokenType.BYTE)))
    unknown = fields.token_id("unknown_token_id")
    if byte_tokens == 256:
        model = models.BPE(plain, merges, byte_fallback=True)
    elif unknown is not None:
        # Without all 256 byte tokens a character may have no token; it becomes the unknown one.
        text = fields.tokens[unknown]
        model = models.BPE(plain | {text: unknown}, merges, unk_token=text)
    else:
        raise ModelFileError(
            "some characters would have no token",
            key=PREFIX + "unknown_token_id",
            found=f"no such key, and {byte_tokens} byte tokens",
            expected="a token id, or all 256 byte tokens",
        )
    bpe = tokenizers.Tokenizer(model)
    bpe.normalizer = normalizers.Replace(" ", SPACE_MARK)
    prefix = SpacePrefix.NONE
    if fields.flag("add_space_prefix") is not False:
        prefix = SpacePrefix.EACH_RUN
    return Tokenizer(bpe, _vocabulary(fields, sentencepiece_piece, prefix, add_bos=True))


def _merges_of_scores(fields: GgufFields) -> list[tuple[str, str]]:
    """The merges that make SentencePiece's choice: the best-scored token first.

    SentencePiece joins whichever two neighbours give the token with the best score. A merge list
    says the same when it holds every way to make each token from two, best token first.
    """
    normal = fields.ids_of(TokenType.NORMAL)
    scores = fields.scores()
    merges: list[tuple[str, str]] = []
    for text in sorted(normal, key=lambda text: (-scores[normal[text]], normal[text])):
        pairs = [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[:cut] in normal and text[cut:] in normal
        ]
        merges.extend(sorted(pairs, key=lambda pair: (normal[pair[0]], normal[pair[1]])))
    return merges


def _vocabulary(
    fields: GgufFields, piece_of: Callable[[str], bytes], prefix: SpacePrefix, *, add_bos: bool
) -> Vocabulary:
    """What the file says about its tokens; `add_bos` is what holds if it does not say."""
    added = {
        text: AddedToken(i, text, added_kind(text, control=kind is not TokenType.USER_DEFINED))
        for i, (text, kind) in enumerate(zip(fields.tokens, fields.types, strict=True))
        if kind in _ADDED
    }
    unused = frozenset(fields.ids_of(TokenType.UNUSED).values())
    pieces = [
        b"" if i in unused else text.encode() if text in added else piece_of(text)
        for i, text in enumerate(fields.tokens)
    ]
    bos, eos, ends = _ends(fields, added)
    bos_asked = fields.flag("add_bos_token")
    if bos_asked and bos is None:
        raise ModelFileError(
            "tokenizer.ggml.add_bos_token is true, but no token is named",
            key=PREFIX + "bos_token_id",
            expected=f"a token id, 0 to {len(fields.tokens) - 1}",
        )
    return Vocabulary(
        texts=fields.tokens,
        pieces=pieces,
        added=added,
        unused_ids=unused,
        bos_id=bos,
        eos_id=eos,
        eos_ids=ends,
        unk_id=fields.token_id("unknown_token_id"),
        pad_id=fields.token_id("padding_token_id"),
        add_bos=bos is not None and (add_bos if bos_asked is None else bos_asked),
        space_prefix=prefix,
    )


def _ends(
    fields: GgufFields, added: Mapping[str, AddedToken]
) -> tuple[int | None, int, frozenset[int]]:
    """The ids that begin a sequence, end it, and end a turn."""
    eos = fields.token_id("eos_token_id")
    declared = [i for name in END_KEYS if (i := fields.token_id(name)) is not None]
    ends = end_ids(added, declared)
    if not ends:
        raise ModelFileError(
            "nothing ends a turn",
            key=PREFIX + "eos_token_id",
            found="no such key, and no control token known to end a turn",
            expected=f"a token id, 0 to {len(fields.tokens) - 1}",
        )
    return fields.token_id("bos_token_id"), min(ends) if eos is None else eos, ends
