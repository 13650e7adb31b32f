"""The small JSON files of a Hugging Face model folder that say which tokens begin and end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ignis.errors import ModelFileError
from ignis.text.vocabulary import check_id


def read_json(file: Path) -> dict[str, object]:
    """The object that a JSON file holds.

    Raises ModelFileError if the file cannot be read or holds something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}", file=str(file)) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not valid JSON: {error}", file=str(file)) from error
    if not isinstance(value, dict):
        raise ModelFileError("the value is wrong", file=str(file), expected="a JSON object")
    return value


class FolderTokens:
    """The named tokens of one folder, as ids.

    `id_of` maps every token's text to its id. Each of the three files may be missing; what they do
    say must name tokens that exist, else ModelFileError names the file and key.
    """

    def __init__(self, folder: Path, id_of: Mapping[str, int]) -> None:
        self._folder = folder
        self._id_of = id_of
        self._tokens_max = max(id_of.values(), default=-1) + 1
        self.config = self._read("tokenizer_config.json")

    def token_id(self, name: str) -> int | None:
        """The token called `name` (`bos_token`), None if no file names one."""
        value = self.config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            return next(iter(self._ids("config.json", f"{name}_id")), None)
        if not isinstance(text, str) or text not in self._id_of:
            raise ModelFileError(
                "the value is wrong",
                file=str(self._folder / "tokenizer_config.json"),
                key=name,
                found=repr(text),
                expected="a token of the vocabulary",
            )
        return self._id_of[text]

    def eos_ids(self) -> list[int]:
        """Every id that the files say ends a turn."""
        named = self.token_id("eos_token")
        ids = [] if named is None else [named]
        for file in ("generation_config.json", "config.json"):
            ids += self._ids(file, "eos_token_id")
        return ids

    def _ids(self, file: str, key: str) -> list[int]:
        config = self._read(file)
        value = config.get(key)
        inner = config.get("text_config")
        if value is None and isinstance(inner, dict):
            value = inner.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        try:
            return [check_id(key, item, self._tokens_max) for item in values]
        except ModelFileError as error:
            error.file = str(self._folder / file)
            raise

    def _read(self, name: str) -> dict[str, object]:
        file = self._folder / name
        return read_json(file) if file.exists() else {}
