"""Typed reading of the tokenizer keys of a GGUF file, each refused by name if it is wrong."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence

from ignis.errors import ModelFileError
from ignis.text.vocabulary import check_id, is_markup

PREFIX = "tokenizer.ggml."
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Keys of tokens that end a turn; the first is the one templates print."""


class TokenType(enum.IntEnum):
    """What a token is for, as GGUF numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufFields:
    """The `tokenizer.ggml.*` keys of one file; names here leave that prefix out.

    Every method raises ModelFileError naming the key, what was found and what was expected.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = self._read_tokens()
        self.types = self._read_types()
        for name in ("bos_token_id", *END_KEYS):
            named = self.token_id(name)
            # Some files give such a token the type of a word; what it is named for says more.
            if named is not None and is_markup(self.tokens[named]):
                self.types[named] = TokenType.CONTROL

    def text(self, name: str) -> str:
        """A key that must be there and hold text."""
        value = self._metadata.get(PREFIX + name)
        if not isinstance(value, str):
            raise _wrong(name, value, "a text")
        return value

    def flag(self, name: str) -> bool | None:
        """A key that may be missing (None) and else holds a truth value."""
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def token_id(self, name: str) -> int | None:
        """A key that may be missing (None) and else holds the id of a token."""
        value = self._metadata.get(PREFIX + name)
        return None if value is None else check_id(PREFIX + name, value, len(self.tokens))

    def ids_of(self, *types: TokenType) -> dict[str, int]:
        """Token texts to ids, for the tokens of these types."""
        return {self.tokens[i]: i for i, kind in enumerate(self.types) if kind in types}

    def scores(self) -> list[float]:
        """One score per token; a better one is merged sooner."""
        scores: list[float] = []
        for index, value in enumerate(self._items("scores", "a list of numbers")):
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise _wrong("scores", f"{value!r} at {index}", "a number")
            scores.append(float(value))
        self._check_length("scores", len(scores))
        return scores

    def merges(self) -> Iterator[tuple[str, str]]:
        """The merges, the first to apply first; every part is a token."""
        known = set(self.tokens)
        for index, value in enumerate(self._items("merges", "a list of texts 'left right'")):
            # A token may begin with a space, so the separator is looked for after one character.
            cut = value.find(" ", 1) if isinstance(value, str) else -1
            if not isinstance(value, str) or cut < 0:
                raise _wrong("merges", f"{value!r} at {index}", "a text 'left right'")
            left, right = value[:cut], value[cut + 1 :]
            for part in (left, right, left + right):
                if part not in known:
                    raise _wrong("merges", f"{value!r} at {index}", f"{part!r} among the tokens")
            yield left, right

    def _read_tokens(self) -> list[str]:
        tokens: list[str] = []
        id_of: dict[str, int] = {}
        for index, value in enumerate(self._items("tokens", "a list of texts")):
            if not isinstance(value, str):
                raise _wrong("tokens", f"{value!r} at {index}", "a text")
            first = id_of.setdefault(value, index)
            if first != index:
                raise _wrong("tokens", f"{value!r} at {first} and {index}", "each token once")
            tokens.append(value)
        if not tokens:
            raise _wrong("tokens", "an empty list", "at least one token")
        return tokens

    def _read_types(self) -> list[TokenType]:
        types: list[TokenType] = []
        known = {int(kind): kind for kind in TokenType}
        for index, value in enumerate(self._items("token_type", "a list of integers")):
            if not isinstance(value, int) or value not in known:
                raise _wrong("token_type", f"{value!r} at {index}", "a type from 1 to 6")
            # An empty token spells nothing, so no text can contain it.
            empty = index < len(self.tokens) and not self.tokens[index]
            types.append(TokenType.UNUSED if empty else known[value])
        self._check_length("token_type", len(types))
        return types

    def _items(self, name: str, expected: str) -> Sequence[object]:
        value = self._metadata.get(PREFIX + name)
        if not isinstance(value, list | tuple):
            raise _wrong(name, value, expected)
        return value

    def _check_length(self, name: str, length: int) -> None:
        if length != len(self.tokens):
            raise _wrong(name, f"{length} entries", f"{len(self.tokens)}, one per token")


def _wrong(name: str, found: object, expected: str) -> ModelFileError:
    if found is None:
        return ModelFileError("the key is missing", key=PREFIX + name, expected=expected)
    shown = found if isinstance(found, str) else repr(found)
    return ModelFileError(
        "the value is wrong",
        key=PREFIX + name,
        found=shown if len(shown) <= 80 else shown[:80] + "…",
        expected=expected,
    )
