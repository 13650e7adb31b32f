"""A request body's bytes to JSON, strictly.

Decisions: UTF-8 only; a leading byte-order mark is skipped, as some clients write one; UTF-16 and
UTF-32 are refused. NaN and Infinity are refused, as are duplicate keys (two readers could
understand two requests), nesting beyond `DEPTH_MAX`, more than `NODES_MAX` lists and objects
(which would take long to look through), and lone surrogates anywhere, since no text holds them.
A number too large for a double becomes infinite, which no field accepts.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ignis.errors import RequestError
from ignis.text.json_values import DEPTH_MAX

NODES_MAX = 100_000

# Ends at the end of the text too: a string that is not closed must not be tried from every quote.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(data: bytes) -> dict[str, Any]:
    """The object that `data` spells; raises RequestError saying what is wrong and where."""
    text = _decode(data)
    nodes = _nodes_at_most(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise _invalid(f"the body is not valid JSON: {error.msg.lower()} at {where}") from None
    except RecursionError:
        raise _too_deep(None) from None
    except ValueError:
        raise _invalid("the body holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    if nodes > DEPTH_MAX or _SURROGATE_ESCAPE.search(text):
        _check_nested(value)
    return value


def _decode(data: bytes) -> str:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise _invalid("the body is empty; send a JSON object")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in data[:4]:
        raise _invalid("the body must be UTF-8, not UTF-16 or UTF-32")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not valid UTF-8: byte {error.start}") from None


def _nodes_at_most(text: str) -> int:
    """An upper bound of the lists and objects in `text`, within NODES_MAX."""
    nodes = text.count("{") + text.count("[")
    if nodes > NODES_MAX:  # brackets inside strings are no lists
        bare = _STRING.sub("", text)
        nodes = bare.count("{") + bare.count("[")
    if nodes > NODES_MAX:
        raise _invalid(f"the body holds more than {NODES_MAX} lists and objects")
    return nodes


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        name = name.encode("utf-8", "replace").decode()[:80]
        raise RequestError(f"the key {name!r} appears twice in an object", name, "invalid_json")
    return value


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not JSON; numbers must be finite")


def _check_nested(root: dict[str, Any]) -> None:
    """Refuse lone surrogates and deep nesting, naming the place; without recursion."""
    todo: list[tuple[str, int, object]] = [("", 0, root)]
    while todo:
        path, depth, value = todo.pop()
        if isinstance(value, str):
            _check_text(value, path)
        elif isinstance(value, dict | list):
            if depth >= DEPTH_MAX:
                raise _too_deep(path.split(".")[0].split("[")[0] or None)
            if isinstance(value, list):
                todo.extend(
                    (f"{path}[{i}]", depth + 1, entry)
                    for i, entry in enumerate(value)
                    if isinstance(entry, str | dict | list)
                )
                continue
            for key, entry in value.items():
                _check_text(key, path or None)
                todo.append((f"{path}.{key}" if path else key, depth + 1, entry))


def _check_text(text: str, param: str | None) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise RequestError(
                f"{param or 'a key'} holds a lone surrogate, which is not text",
                param,
                "invalid_unicode",
            ) from None


def _too_deep(param: str | None) -> RequestError:
    return RequestError(f"the body nests deeper than {DEPTH_MAX} levels", param, "invalid_json")


def _invalid(message: str) -> RequestError:
    return RequestError(message, None, "invalid_json")
