"""Kinds of JSON value a request field may hold: what is accepted, and how OpenAPI describes it.

Each kind checks and converts in `parse` and describes itself in `schema`, so that validation and
documentation cannot drift apart. `parse` raises RequestError naming the field; it never sees None,
which means "absent" for every optional field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ignis.errors import RequestError

Schema = dict[str, Any]


class Value(Protocol):
    """One kind of JSON value."""

    def parse(self, value: object, param: str) -> Any:
        """The value, converted; raises RequestError if it is not of this kind."""
        ...

    def schema(self) -> Schema:
        """This kind in JSON Schema."""
        ...


@dataclass(frozen=True, slots=True)
class Flag:
    """A JSON boolean."""

    def parse(self, value: object, param: str) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(param, "a boolean", value)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in `low..=high`; `1.0` is not one."""

    low: int
    high: int

    def parse(self, value: object, param: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(param, "an integer", value)
        if not self.low <= value <= self.high:
            raise out_of_range(param, self.low, self.high, value)
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in `low..=high`."""

    low: float
    high: float

    def parse(self, value: object, param: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(param, "a number", value)
        if not self.low <= value <= self.high or not math.isfinite(value):
            raise out_of_range(param, self.low, self.high, value)
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most `length_max` characters."""

    length_max: int | None = None
    length_min: int = 0

    def parse(self, value: object, param: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if len(value) < self.length_min:
            raise RequestError(f"{param} must not be empty", param)
        if self.length_max is not None and len(value) > self.length_max:
            raise RequestError(
                f"{param} must have at most {self.length_max} characters, got {len(value)}", param
            )
        return value

    def schema(self) -> Schema:
        schema: Schema = {"type": "string"}
        if self.length_min:
            schema["minLength"] = self.length_min
        if self.length_max is not None:
            schema["maxLength"] = self.length_max
        return schema


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few JSON scalars."""

    options: tuple[str | int | bool, ...]

    def parse(self, value: object, param: str) -> str | int | bool:
        for option in self.options:
            if type(value) is type(option) and value == option:
                return option
        names = ", ".join(_shown(option) for option in self.options)
        raise RequestError(f"{param} must be one of {names}, got {_shown(value)}", param)

    def schema(self) -> Schema:
        return {"enum": list(self.options)}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of `length_min..=length_max` values of one kind."""

    item: Value
    length_max: int | None = None
    length_min: int = 0

    def parse(self, value: object, param: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(param, "a list", value)
        if len(value) < self.length_min:
            raise RequestError(f"{param} must not be empty", param)
        if self.length_max is not None and len(value) > self.length_max:
            raise RequestError(
                f"{param} must have at most {self.length_max} entries, got {len(value)}", param
            )
        return [self.item.parse(entry, f"{param}[{i}]") for i, entry in enumerate(value)]

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema()}
        if self.length_min:
            schema["minItems"] = self.length_min
        if self.length_max is not None:
            schema["maxItems"] = self.length_max
        return schema


@dataclass(frozen=True, slots=True)
class StopStrings:
    """One stop string or a list of them; an empty string would stop everything and is refused."""

    count_max: int
    length_max: int

    def parse(self, value: object, param: str) -> list[str]:
        text = Text(self.length_max, length_min=1)
        if isinstance(value, str):
            return [text.parse(value, param)]
        return ListOf(text, self.count_max).parse(value, param)

    def schema(self) -> Schema:
        text = Text(self.length_max, length_min=1)
        return {"anyOf": [text.schema(), ListOf(text, self.count_max).schema()]}


@dataclass(frozen=True, slots=True)
class LogitBias:
    """A map from token ids, as decimal strings, to a bias in -100..=100."""

    entries_max: int

    def parse(self, value: object, param: str) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise wrong_type(param, "an object", value)
        if len(value) > self.entries_max:
            raise RequestError(
                f"{param} must have at most {self.entries_max} entries, got {len(value)}", param
            )
        bias = Number(-100.0, 100.0)
        pairs = []
        for key, entry in value.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10):
                raise RequestError(f"{param} keys must be token ids, got {_shown(key)}", param)
            pairs.append((int(key), bias.parse(entry, f"{param}.{key}")))
        if len({token for token, _ in pairs}) < len(pairs):
            raise RequestError(f"{param} names a token twice", param)
        return tuple(sorted(pairs))

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.entries_max,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": Number(-100.0, 100.0).schema(),
        }


@dataclass(frozen=True, slots=True)
class Object:
    """An object whose known keys are checked; unknown keys pass where `open_ended`."""

    keys: Mapping[str, Value]
    open_ended: bool = True
    required: tuple[str, ...] = ()

    def parse(self, value: object, param: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(param, "an object", value)
        for key in self.required:
            if key not in value:
                raise RequestError(f"{param}.{key} is required", f"{param}.{key}")
        parsed = {}
        for key, entry in value.items():
            kind = self.keys.get(key)
            if kind is None and not self.open_ended:
                raise RequestError(f"{param}.{key} is not known", f"{param}.{key}")
            if kind is None or entry is None:
                parsed[key] = entry
            else:
                parsed[key] = kind.parse(entry, f"{param}.{key}")
        return parsed

    def schema(self) -> Schema:
        schema: Schema = {
            "type": "object",
            "properties": {key: nullable(kind.schema()) for key, kind in self.keys.items()},
        }
        for key in self.required:
            schema["properties"][key] = self.keys[key].schema()
        if self.required:
            schema["required"] = list(self.required)
        if not self.open_ended:
            schema["additionalProperties"] = False
        return schema


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value; `described` is its schema where another module checks it."""

    described: Schema | None = None

    def parse(self, value: object, param: str) -> object:
        return value

    def schema(self) -> Schema:
        return dict(self.described or {})


def nullable(schema: Schema) -> Schema:
    """`schema`, or null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def wrong_type(param: str, expected: str, value: object) -> RequestError:
    """The error for a value of another JSON type than `expected`."""
    return RequestError(f"{param} must be {expected}, got {_shown(value)}", param, "invalid_type")


def out_of_range(param: str, low: float, high: float, value: object) -> RequestError:
    """The error for a number outside `low..=high`."""
    return RequestError(f"{param} must be in {low} to {high}, got {_shown(value)}", param)


def _shown(value: object) -> str:
    """A value as a client wrote it, short enough for a message."""
    names = {dict: "an object", list: "a list", type(None): "null", bool: str(value).lower()}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer beyond 128 bits"
    return str(value)
