"""Request fields: what a route accepts, as one table that validates and documents.

Every field of OpenAI's API is *honoured*, *inert* for the values that change nothing here, or
*refused*; nothing is silently ignored but fields that no table knows. Null means absent, except
for a required field.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ignis.errors import RequestError
from ignis.server.values import Anything, Schema, Value, nullable


class Use(enum.Enum):
    """What the server does with a field."""

    HONOURED = "honoured"
    INERT = "inert"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request body.

    `value` is what is accepted; for an inert field, the values that change nothing. `meaning` says
    what the field does here, or why it is refused.
    """

    name: str
    use: Use
    value: Value
    meaning: str
    required: bool = False
    default: Any = None

    def parse(self, value: object) -> Any:
        """The checked value; raises RequestError naming this field."""
        if self.use is Use.REFUSED:
            raise self._unsupported()
        try:
            return self.value.parse(value, self.name)
        except RequestError as error:
            if self.use is Use.HONOURED:
                raise
            raise self._unsupported() from error

    def schema(self) -> Schema:
        """This field in JSON Schema; a refused field accepts null alone."""
        schema = {"type": "null"} if self.use is Use.REFUSED else self.value.schema()
        if not self.required and self.use is not Use.REFUSED:
            schema = nullable(schema)
        schema["description"] = f"{self.use.value}: {self.meaning}"
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def _unsupported(self) -> RequestError:
        return RequestError(
            f"{self.name} is not supported with this value: {self.meaning}",
            self.name,
            "unsupported_value",
        )


def honoured(
    name: str, value: Value, meaning: str, *, required: bool = False, default: Any = None
) -> Field:
    """A field that does what its documentation says."""
    return Field(name, Use.HONOURED, value, meaning, required, default)


def inert(name: str, value: Value, meaning: str) -> Field:
    """A field whose values in `value` change nothing; any other is refused."""
    return Field(name, Use.INERT, value, meaning)


def refused(name: str, meaning: str) -> Field:
    """A field that is refused unless absent or null."""
    return Field(name, Use.REFUSED, Anything(), meaning)


class FieldTable:
    """The fields of one route's body."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._of_name: Mapping[str, Field] = {field.name: field for field in fields}
        if len(self._of_name) < len(fields):
            raise AssertionError("a field is declared twice")

    def parse(self, body: Mapping[str, object]) -> dict[str, Any]:
        """Every declared field's value, defaults filled in; unknown fields are dropped.

        Raises RequestError for the first field that is missing, malformed or refused.
        """
        parsed: dict[str, Any] = {}
        for field in self.fields:
            value = body.get(field.name)
            if value is not None:
                parsed[field.name] = field.parse(value)
            elif field.required:
                state = "must not be null" if field.name in body else "is required"
                raise RequestError(
                    f"{field.name} {state}", field.name, "missing_required_parameter"
                )
            else:
                parsed[field.name] = field.default
        return parsed

    def schema(self) -> Schema:
        """The body in JSON Schema."""
        return {
            "type": "object",
            "properties": {field.name: field.schema() for field in self.fields},
            "required": [field.name for field in self.fields if field.required],
        }
