"""Text to token ids and back, with added tokens under our control.

The BPE engine below knows no added token at all: text is split at added tokens here, and only
where the caller allows it. So text that merely spells `<|im_end|>` cannot become that token, by
construction. Leaves out training, truncation, padding and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers

from ignis.errors import RequestError
from ignis.text.json_values import check_text
from ignis.text.segments import AddedMatcher, Segment
from ignis.text.vocabulary import SPACE_MARK, AddedKind, SpacePrefix, Vocabulary


class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to share between threads.

    Build one with `from_gguf` or `from_tokenizer_json`. `special_ids` are the control tokens, which
    print nothing; `reserved` finds the texts that only a template may turn into tokens, `control`
    those of them that no output shows.
    """

    def __init__(self, bpe: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        """`bpe` must know no added tokens and add none; `vocabulary` says the rest."""
        self._bpe = bpe
        self._vocabulary = vocabulary
        self._added_of_id = {token.id: token for token in vocabulary.added.values()}
        self.special_ids = frozenset(
            token.id for token in vocabulary.added.values() if token.kind is AddedKind.CONTROL
        )
        added = vocabulary.added.values()
        self._anywhere = AddedMatcher(t for t in added if t.kind is AddedKind.LITERAL)
        self._in_template = AddedMatcher(added)
        self.reserved = AddedMatcher(t for t in added if t.kind is not AddedKind.LITERAL)
        self.control = AddedMatcher(t for t in added if t.kind is AddedKind.CONTROL)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, and what the model's files say about them."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of ids, unused ones included; every id is below it."""
        return len(self._vocabulary.texts)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        return self._vocabulary.eos_ids

    @property
    def bos_id(self) -> int | None:
        """The token that begins a sequence, None where the model has none."""
        return self._vocabulary.bos_id

    @property
    def add_bos(self) -> bool:
        """Whether every prompt begins with `bos_id`."""
        return self._vocabulary.add_bos

    def token_text(self, token: int) -> str:
        """The token as the model's file writes it (`Ġthe`, `▁the`, `<|im_end|>`).

        Raises RequestError if `token` is not an id of this vocabulary.
        """
        self._check(token, None)
        return self._vocabulary.texts[token]

    def id_to_bytes(self, token: int) -> bytes:
        """The bytes `token` stands for, which need not be whole characters.

        Raises RequestError if `token` is not an id of this vocabulary.
        """
        self._check(token, None)
        return self._vocabulary.pieces[token]

    def template_tokens(self) -> dict[str, str]:
        """The named tokens a chat template may print: `bos_token`, `eos_token` and so on."""
        vocabulary = self._vocabulary
        named = {
            "bos_token": vocabulary.bos_id,
            "eos_token": vocabulary.eos_id,
            "unk_token": vocabulary.unk_id,
            "pad_token": vocabulary.pad_id,
        }
        return {name: vocabulary.texts[i] for name, i in named.items() if i is not None}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, without a beginning-of-sequence token.

        With `special` False, text that spells a control or markup token is plain text; set it only
        for text a template wrote. Raises RequestError if `text` has a lone surrogate.
        """
        ids: list[int] = []
        for segment in self.split(text, special=special):
            self._extend(ids, segment)
        return ids

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a raw prompt: `encode`, after exactly one `bos_id` where the model wants it."""
        return self._with_bos(self.encode(text, special=special))

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Ids of a rendered chat, after exactly one `bos_id` where the model wants it.

        A segment without a token is plain text. Raises RequestError on a lone surrogate.
        """
        return self.encode_with_edges(segments)[0]

    def encode_with_edges(self, segments: Iterable[Segment]) -> tuple[list[int], list[int]]:
        """`encode_segments`, and the number of ids before each segment and after the last."""
        ids: list[int] = []
        edges = [0]
        for segment in segments:
            if segment.token is not None:
                ids.append(segment.token)
            else:
                for part in self.split(segment.text, special=False):
                    self._extend(ids, part)
            edges.append(len(ids))
        whole = self._with_bos(ids)
        before = len(whole) - len(ids)
        return whole, [before + edge for edge in edges] if before else edges

    def encode_after(self, text: str, previous: int | None) -> list[int]:
        """Ids of plain text that goes on after the token `previous`; None: nothing came before."""
        ids = [] if previous is None else [previous]
        before = len(ids)
        for part in self.split(text, special=False):
            self._extend(ids, part)
        return ids[before:]

    def split(self, text: str, *, special: bool) -> list[Segment]:
        """`text` as plain runs and added tokens, longest match first.

        With `special` False only literal tokens are recognised.
        """
        return (self._in_template if special else self._anywhere).split(text)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD.

        SentencePiece's dummy space is dropped at the start and after each added token, so that
        `decode(encode(text))` is `text`. With `skip_special`, control tokens print nothing.
        Raises RequestError naming the position of an id outside the vocabulary.
        """
        pieces = []
        previous: int | None = None
        for position, token in enumerate(ids):
            self._check(token, f"tokens[{position}]")
            if not (skip_special and token in self.special_ids):
                pieces.append(self.piece(token, previous))
            previous = token
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token: int, previous: int | None) -> bytes:
        """The bytes `token` adds to text after `previous` (None: nothing came before)."""
        piece = self._vocabulary.pieces[token]
        ordinary = token not in self._added_of_id
        if ordinary and piece.startswith(b" ") and self._starts_run(previous):
            return piece[1:]
        return piece

    def _starts_run(self, previous: int | None) -> bool:
        """Whether plain text after `previous` was given the dummy space."""
        match self._vocabulary.space_prefix:
            case SpacePrefix.NONE:
                return False
            case SpacePrefix.TEXT_START_ONCE:
                return previous is None or previous == self._vocabulary.bos_id
            case SpacePrefix.EACH_RUN | SpacePrefix.EACH_RUN_ONCE:
                return previous is None or previous in self._added_of_id

    def _extend(self, ids: list[int], segment: Segment) -> None:
        if segment.token is not None:
            ids.append(segment.token)
            return
        text = segment.text
        check_text(text, None)
        if self._wants_space(ids, text):
            text = " " + text
        # The batch call alone can leave out offsets, which take half the time of a long text.
        (encoding,) = self._bpe.encode_batch_fast([text], add_special_tokens=False)
        ids.extend(encoding.ids)

    def _wants_space(self, ids: list[int], text: str) -> bool:
        """Whether the dummy space goes before `text`, which follows `ids`."""
        prefix = self._vocabulary.space_prefix
        if prefix is SpacePrefix.TEXT_START_ONCE and ids:
            return False
        if prefix is not SpacePrefix.EACH_RUN and text.startswith((" ", SPACE_MARK)):
            return False
        return self._starts_run(ids[-1] if ids else None)

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._vocabulary.bos_id
        if not self._vocabulary.add_bos or bos is None or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def _check(self, token: int, param: str | None) -> None:
        if not 0 <= token < self.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary of {self.vocab_size} tokens", param
            )
