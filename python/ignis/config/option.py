"""One declared option and the names that follow from it.

An option is a field of an options class; its declaration gives the attribute's type, the flag, the
variable, the file key, the listing and the docs page, so that none of them can drift.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ignis.config.kinds import Kind


@dataclass(frozen=True, slots=True)
class Option:
    """What is declared once about an option.

    `default` is text its kind reads, or None when the value is decided from the model and the
    device at load; `default_note` then says how. `applies_to` says where the option has a meaning;
    with `missing` set, this version has nothing it applies to, and naming it is refused.
    """

    group: str
    name: str
    kind: Kind
    default: str | None
    help: str
    default_note: str = ""
    applies_to: str = "every model, every device"
    missing: bool = False
    secret: bool = False
    flag_alias: str | None = None

    @property
    def key(self) -> str:
        """The file key, which is the option's name everywhere: `vram.headroom_bytes`."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def flag(self) -> str:
        """`--vram-headroom-bytes`."""
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        """`IGNIS_VRAM_HEADROOM_BYTES`."""
        return "IGNIS_" + self.key.replace(".", "_").upper()

    @property
    def default_text(self) -> str:
        """The default for a listing: its text, or how it is decided."""
        return self.default_note or self.default or "none"

    def show(self, value: object) -> str:
        """The value for a listing; a secret is never shown."""
        if value is None:
            return self.default_note or "none"
        return "(set)" if self.secret else self.kind.show(value)


def option(
    kind: Kind,
    default: str | None,
    help_text: str,
    *,
    default_note: str = "",
    applies_to: str = "every model, every device",
    missing: bool = False,
    secret: bool = False,
    flag_alias: str | None = None,
) -> Any:
    """Declare an option as a field of an options class; see `Option` for the meaning."""
    declared = Option(
        group="",
        name="",
        kind=kind,
        default=default,
        help=help_text,
        default_note=default_note,
        applies_to=applies_to,
        missing=missing,
        secret=secret,
        flag_alias=flag_alias,
    )
    value = None if default is None else kind.parse(default)
    return dataclasses.field(default=value, repr=not secret, metadata={"option": declared})


def declared_options(group: str, options_class: type) -> Iterator[Option]:
    """The options of one class, in the order they are written, with their names filled in."""
    for field in dataclasses.fields(options_class):
        if "option" in field.metadata:
            yield dataclasses.replace(field.metadata["option"], group=group, name=field.name)
