"""The kinds of value an option may hold: how each is read from text or a file, and shown again.

A kind's `parse` takes what a flag or variable carries (text) or what a YAML or JSON file carries
(text, number, truth value) and raises ValueError with the rest of the sentence that begins with
the option's name. `show` gives text that `parse` reads back to the same value.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, Protocol

SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
NUMBER_MAX = 2**63 - 1

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([KMGT]?)(I?B)?", re.IGNORECASE | re.ASCII)
_TOKENS = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([KMGT]?) ?tok(?:ens?)?", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d*)?) ?([KM]?)", re.IGNORECASE | re.ASCII)


class Kind(Protocol):
    """One kind of value. `metavar` stands for it in usage lines."""

    @property
    def metavar(self) -> str: ...
    def parse(self, raw: object) -> object: ...
    def show(self, value: object) -> str: ...


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A KV pool size in the unit its operator used; only the plan turns it into pages."""

    amount: int
    unit: Literal["bytes", "tokens"]

    def __str__(self) -> str:
        return f"{_shortest(self.amount)}{'tok' if self.unit == 'tokens' else ''}"


@dataclass(frozen=True, slots=True)
class Bind:
    """Where the server listens: `host:port`, or a Unix socket when `socket` is set."""

    host: str
    port: int
    socket: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """True when no other machine can reach the address."""
        if self.socket is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _shortest(amount: int) -> str:
    """The amount with the largest suffix that loses nothing: 1610612736 is "1536M"."""
    for suffix in ("T", "G", "M", "K"):
        if amount and amount % (1 << SHIFTS[suffix]) == 0:
            return f"{amount >> SHIFTS[suffix]}{suffix}"
    return str(amount)


def _bounded(value: int, minimum: int, maximum: int, unit: str) -> int:
    if value < minimum:
        raise ValueError(f"is {value}; it must be at least {minimum}{unit}")
    if value > maximum:
        raise ValueError(f"is {value}; it must be at most {maximum}{unit}")
    return value


def _quantity(raw: object, pattern: re.Pattern[str], hint: str) -> int:
    """A whole amount from `raw`; a fraction of a suffix is rounded down to a whole unit."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        if raw < 0:
            raise ValueError(f"is {raw}; it cannot be negative")
        return raw
    text = raw.strip() if isinstance(raw, str) else repr(raw)
    found = pattern.fullmatch(text) if isinstance(raw, str) else None
    if found is None:
        if text.startswith("-"):
            raise ValueError(f'is "{text}"; it cannot be negative')
        raise ValueError(f'is "{text}"; {hint}')
    number, suffix = found[1], found[2].upper()
    if not suffix and "." in number:
        raise ValueError(f'is "{text}"; a fraction needs a suffix, as in 1.5G')
    return math.floor(Fraction(number) * (1 << SHIFTS[suffix]))


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: `1610612736`, `1536M`, `1.5G`, `1536 MiB`. K, M, G and T are binary."""

    minimum: int = 0
    maximum: int = NUMBER_MAX
    metavar: str = "BYTES"

    def parse(self, raw: object) -> int:
        hint = "write whole bytes (1610612736) or use a suffix K, M, G or T (1536M, 1.5G)"
        return _bounded(_quantity(raw, _QUANTITY, hint), self.minimum, self.maximum, " bytes")

    def show(self, value: object) -> str:
        return _shortest(value) if isinstance(value, int) else str(value)


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool size in bytes (`2G`) or tokens (`256Ktok`)."""

    metavar: str = "BYTES|TOKENS"

    def parse(self, raw: object) -> PoolSize:
        if isinstance(raw, str) and (found := _TOKENS.fullmatch(raw.strip())):
            tokens = _quantity(f"{found[1]}{found[2]}", _QUANTITY, "")
            return PoolSize(_bounded(tokens, 1, NUMBER_MAX, " token"), "tokens")
        hint = "write bytes (2147483648, 2G) or tokens (262144tok, 256Ktok)"
        amount = _quantity(raw, _QUANTITY, hint)
        return PoolSize(_bounded(amount, 1, NUMBER_MAX, " byte"), "bytes")

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number within bounds, a multiple of `step`."""

    minimum: int = 0
    maximum: int = NUMBER_MAX
    step: int = 1
    suffixes: bool = False
    metavar: str = "N"

    def parse(self, raw: object) -> int:
        if self.suffixes:
            hint = "write a whole number, with K or M if you like (65536, 64K)"
            value = _quantity(raw, _COUNT, hint)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        elif isinstance(raw, str) and re.fullmatch(r"[+-]?\d{1,20}", raw.strip(), re.ASCII):
            value = int(raw)
        else:
            raise ValueError(f'is "{raw}"; write a whole number')
        _bounded(value, self.minimum, self.maximum, "")
        if value % self.step:
            raise ValueError(f"is {value}; it must be a multiple of {self.step}")
        return value

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds; with unit seconds, `metavar` says so."""

    minimum: float = 0.0
    maximum: float = math.inf
    metavar: str = "SECONDS"

    def parse(self, raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise ValueError(f'is "{raw}"; write a number')
        try:
            value = float(raw)
        except (ValueError, OverflowError):
            raise ValueError(f'is "{raw}"; write a number') from None
        if not math.isfinite(value):
            raise ValueError(f'is "{raw}"; write a finite number')
        if not self.minimum <= value <= self.maximum:
            least = f"at least {self.minimum:g}"
            most = f" and at most {self.maximum:g}" if math.isfinite(self.maximum) else ""
            raise ValueError(f"is {value:g}; it must be {least}{most}")
        return value

    def show(self, value: object) -> str:
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off. As a flag, `bare` ones take no value (`--x`, `--no-x`), others `on` or `off`."""

    bare: bool = True
    metavar: str = "on|off"

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        text = str(raw).strip().lower()
        if text in {"on", "true", "yes", "1"}:
            return True
        if text in {"off", "false", "no", "0"}:
            return False
        raise ValueError(f'is "{raw}"; write on or off')

    def show(self, value: object) -> str:
        return "on" if value else "off"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.words)

    def parse(self, raw: object) -> str:
        text = str(raw).strip().lower()
        if text not in self.words:
            raise ValueError(f'is "{raw}"; it is one of {", ".join(self.words)}')
        return text

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is not empty."""

    metavar: str = "TEXT"

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError(f'is "{raw}"; write text (in a file, between quotes)')
        if not raw.strip():
            raise ValueError("is empty")
        if "\0" in raw:
            raise ValueError("holds a zero byte")
        return raw

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder; `~` is the home folder. Whether it exists is for its user to say."""

    metavar: str = "PATH"

    def parse(self, raw: object) -> Path:
        return Path(Text().parse(raw)).expanduser()

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Address:
    """`127.0.0.1:8000`, `[::1]:8000`, `localhost:8000` or `unix:/run/ignis.sock`."""

    metavar: str = "HOST:PORT"

    def parse(self, raw: object) -> Bind:
        text = Text().parse(raw).strip()
        if text.startswith("unix:"):
            if not text[5:]:
                raise ValueError('is "unix:"; write the path of the socket after the colon')
            return Bind("", 0, Path(text[5:]).expanduser())
        host, colon, port = text.rpartition(":")
        host_bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not host_bare or (":" in host and host_bare == host):
            hint = "write host:port, as in 127.0.0.1:8000 or [::1]:8000"
            raise ValueError(f'is "{text}"; {hint}')
        if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
            raise ValueError(f'is "{text}"; the port must be a number from 0 to 65535')
        return Bind(host_bare, int(port))

    def show(self, value: object) -> str:
        return str(value)
