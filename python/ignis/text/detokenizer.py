"""Token ids to text as they come, never cutting a character in two.

Key property: what `push` and `finish` return, joined, is exactly `Tokenizer.decode` of all ids,
so a streamed answer equals the one sent whole.
"""

from __future__ import annotations

import codecs

from ignis.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence, token by token.

    Bytes that do not end a UTF-8 character wait for the next token. Bytes that can never become one
    turn into U+FFFD, as `bytes.decode("utf-8", "replace")` of the whole does it. Control tokens
    print nothing unless `skip_special` is False.

    `after` is the token before the first one pushed, usually the prompt's last: SentencePiece's
    dummy space is dropped at the start of a text (`after` None) and after an added token, and kept
    where a word continues the prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, after: int | None = None, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._previous = after
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; may be empty, never ends inside a character.

        Precondition: `token` is an id of the vocabulary.
        """
        previous, self._previous = self._previous, token
        if token in self._hidden:
            return ""
        return self._utf8.decode(self._tokenizer.piece(token, previous))

    def finish(self) -> str:
        """What is still held back: U+FFFD if the text was cut inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)
