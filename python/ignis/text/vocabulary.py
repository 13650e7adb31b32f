"""What a model's files say about its tokens, in one shape for GGUF and tokenizer.json.

An *added* token is matched as whole text instead of being built by merges. What it may be matched
in depends on its kind, because text that a client sent must not become a control token:

    CONTROL  `<|im_end|>`    matched in template text only; not shown in output
    MARKUP   `<tool_call>`   matched in template text only; shown in output
    LITERAL  `\\n\\n\\n`        matched everywhere, shown: ordinary text with a token of its own
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ignis.errors import ModelFileError

SPACE_MARK = "▁"
"""SentencePiece writes a space as this character."""

_MARKUP = re.compile(r"<[^\s<>]+>|\[/?[A-Z_]+\]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|EOT|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek's own spelling
        "</s>",
    }
)


class AddedKind(enum.Enum):
    """Where an added token is matched; the module's text has the table."""

    CONTROL = "control"
    MARKUP = "markup"
    LITERAL = "literal"


class SpacePrefix(enum.Enum):
    """Where plain text gets SentencePiece's dummy space, which decoding drops again.

    The ONCE kinds, of a tokenizer.json's Metaspace, leave out the space where text begins with one,
    so that a leading space is lost on the way back; EACH_RUN loses nothing.
    """

    NONE = "none"
    TEXT_START_ONCE = "at the start of a text"
    EACH_RUN_ONCE = "at the start of each run of plain text"
    EACH_RUN = "at the start of each run, also before a space"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added token. `strip_left`, `strip_right`: it swallows white space on that side."""

    id: int
    text: str
    kind: AddedKind
    strip_left: bool = False
    strip_right: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token of a model.

    `texts` and `pieces` have one entry per id: the token as its file writes it, and the bytes it
    stands for (empty where no text can contain it). `unused_ids` are ids the file reserves without
    a meaning; a sampler must not choose them. `eos_ids` end a turn; `eos_id`, among them, is the
    one templates print. `space_prefix`: SentencePiece's dummy space before the first word.
    """

    texts: Sequence[str]
    pieces: Sequence[bytes]
    added: Mapping[str, AddedToken]
    unused_ids: frozenset[int]
    bos_id: int | None
    eos_id: int
    eos_ids: frozenset[int]
    unk_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    space_prefix: SpacePrefix = SpacePrefix.NONE


def added_kind(text: str, *, control: bool) -> AddedKind:
    """The kind of an added token that its file does (`control`) or does not call special."""
    if control:
        return AddedKind.CONTROL
    return AddedKind.MARKUP if is_markup(text) else AddedKind.LITERAL


def is_markup(text: str) -> bool:
    """Whether a token's text is a mark (`<think>`, `[INST]`) and not ordinary text."""
    return _MARKUP.fullmatch(text) is not None


def end_ids(added: Mapping[str, AddedToken], declared: Sequence[int]) -> frozenset[int]:
    """Ids that end a turn: those `declared`, and control tokens known to mean it by their text.

    Files often declare one of several: a Qwen file names `<|im_end|>` and the model may also write
    `<|endoftext|>`.
    """
    known = {
        token.id
        for text, token in added.items()
        if token.kind is AddedKind.CONTROL and text in _END_TEXTS
    }
    return frozenset(known | set(declared))


def _byte_alphabet() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(0x100) if byte not in alphabet)
    return alphabet | {byte: chr(0x100 + rank) for rank, byte in enumerate(others)}


_LATIN1_OF = {ord(char): byte for byte, char in _byte_alphabet().items()}
BYTE_ALPHABET = frozenset(chr(code) for code in _LATIN1_OF)
"""The characters that byte-level BPE writes the 256 bytes as."""


def byte_level_piece(text: str) -> bytes:
    """Bytes of a byte-level token; text outside the byte alphabet stands for itself."""
    if BYTE_ALPHABET.issuperset(text):
        return text.translate(_LATIN1_OF).encode("latin-1")
    return text.encode()


def sentencepiece_piece(text: str) -> bytes:
    """Bytes of a SentencePiece token: `<0x0A>` is one byte, `▁` a space."""
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes.fromhex(match[1])
    return text.replace(SPACE_MARK, " ").encode()


def is_byte_token(text: str) -> bool:
    """Whether a SentencePiece token stands for one byte (`<0x0A>`)."""
    return _BYTE_TOKEN.fullmatch(text) is not None


def check_id(key: str, value: object, tokens: int) -> int:
    """`value` as a token id below `tokens`.

    Raises ModelFileError naming `key` otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < tokens:
        raise ModelFileError(
            "not a token id of this vocabulary",
            key=key,
            found=repr(value),
            expected=f"0 to {tokens - 1}",
        )
    return value
