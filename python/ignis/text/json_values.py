"""Checks on JSON values that came from a client and go into a template."""

from __future__ import annotations

from ignis.errors import RequestError

DEPTH_MAX = 64
"""Deepest nesting of lists and objects that a request field may have."""


def check_value(value: object, param: str, depth: int = 0) -> None:
    """Check that every text inside `value` is valid Unicode and nesting is within DEPTH_MAX.

    Raises RequestError naming the place inside `param` that is wrong.
    """
    if isinstance(value, str):
        check_text(value, param)
    elif isinstance(value, dict | list):
        if depth >= DEPTH_MAX:
            raise RequestError(f"nested deeper than {DEPTH_MAX} levels", param)
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_value(item, f"{param}[{index}]", depth + 1)
        else:
            for key, item in value.items():
                check_text(key, param)
                check_value(item, f"{param}.{key}", depth + 1)


def check_text(text: str, param: str | None) -> None:
    """Check that `text` is valid Unicode. Raises RequestError naming `param` otherwise."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} is a lone surrogate, which is not valid Unicode",
            param,
            "invalid_unicode",
        ) from error


def kind_of(value: object) -> str:
    """What JSON calls the type of `value`, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
    return "an object"
