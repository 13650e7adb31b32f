"""Where a model's chat template comes from.

In order: a file the operator named, `chat_template.jinja` in the model's folder, `chat_template` in
its `tokenizer_config.json`, `tokenizer.chat_template` of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ignis.errors import ModelFileError, TemplateMissing
from ignis.text.folder import read_json

_GGUF_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template's text and the place it came from, for messages.

    `tool_use` is the variant for requests with tools, None where `default` serves both.
    """

    origin: str
    default: str
    tool_use: str | None = None


def find_template(
    *,
    explicit: Path | None = None,
    folder: Path | None = None,
    metadata: Mapping[str, object] | None = None,
) -> TemplateSource:
    """The first template found: `explicit`, then the model's `folder`, then GGUF `metadata`.

    Raises TemplateMissing if there is none, ModelFileError if one cannot be read or has the wrong
    type.
    """
    if explicit is not None:
        return TemplateSource(str(explicit), _read(explicit))
    found = _in_folder(folder) if folder is not None else None
    found = found or (_in_metadata(metadata) if metadata is not None else None)
    if found is None:
        raise TemplateMissing(
            "the model has no chat template: use /v1/completions, or give one with --chat-template"
        )
    return found


def _in_folder(folder: Path) -> TemplateSource | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return TemplateSource(str(file), _read(file))
    file = folder / "tokenizer_config.json"
    value = read_json(file).get("chat_template") if file.exists() else None
    if value is None:
        return None
    named = {"default": value} if isinstance(value, str) else _named(value)
    return _variants(f"{file}: chat_template", named)


def _named(value: object) -> dict[str, object]:
    """A list of `{"name", "template"}` as a table."""
    entries = value if isinstance(value, list) else []
    return {str(e.get("name")): e.get("template") for e in entries if isinstance(e, dict)}


def _in_metadata(metadata: Mapping[str, object]) -> TemplateSource | None:
    named = {"default": metadata.get(_GGUF_KEY), "tool_use": metadata.get(f"{_GGUF_KEY}.tool_use")}
    present = {name: value for name, value in named.items() if value is not None}
    return _variants(_GGUF_KEY, present) if present else None


def _variants(origin: str, named: Mapping[str, object]) -> TemplateSource:
    default, tool_use = named.get("default"), named.get("tool_use")
    if not isinstance(default, str) or not isinstance(tool_use, str | None):
        raise ModelFileError(
            "the value is wrong",
            key=origin,
            found=f"templates named {', '.join(named) or 'nothing'}",
            expected="a text, or texts named default and tool_use",
        )
    return TemplateSource(origin, default, tool_use)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot be read as text: {error}", file=str(file)) from error
