"""JSON as the server writes it: compact UTF-8, and never NaN, Infinity or a lone surrogate."""

from __future__ import annotations

import json


def dump(value: object) -> bytes:
    """`value` as JSON bytes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
