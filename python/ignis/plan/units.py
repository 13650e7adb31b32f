"""Byte counts as people read them."""

from __future__ import annotations

MIB = 1 << 20


def human(count: int) -> str:
    """`1.50 GiB`, `12.3 MiB`, `512 B`: three digits, binary units."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(abs(amount)) < 1024:
            break
        amount, unit = amount / 1024, larger
    if unit == "B":
        return f"{count} B"
    digits = 2 if abs(amount) < 10 else 1 if abs(amount) < 100 else 0
    return f"{amount:.{digits}f} {unit}"


def exact(count: int) -> str:
    """`1,610,612,736 bytes (1.50 GiB)`."""
    return f"{count:,} bytes ({human(count)})" if abs(count) >= 1024 else f"{count:,} bytes"
