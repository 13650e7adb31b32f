"""The witness model's text, computed apart from the core: a token hashes its whole prefix."""

from __future__ import annotations

from collections.abc import Iterable

MASK = (1 << 64) - 1


def mix(state: int, token: int) -> int:
    """One token mixed into the running hash, modulo 2^64."""
    z = state ^ ((token + 1) * 0x9E37_79B9_7F4A_7C15 & MASK)
    z = (z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB & MASK
    return z ^ (z >> 31)


def witness_next(prefix: Iterable[int], vocab: int, seed: int) -> int:
    """The token after `prefix`."""
    state = seed
    for token in prefix:
        state = mix(state, token)
    return state % vocab


def witness_text(
    prompt: Iterable[int], tokens_max: int, stop_ids: frozenset[int], vocab: int, seed: int
) -> tuple[list[int], str]:
    """The answer to `prompt`, its stop token included, and the finish reason."""
    state = seed
    for token in prompt:
        state = mix(state, token)
    text: list[int] = []
    while len(text) < tokens_max:
        token = state % vocab
        text.append(token)
        if token in stop_ids:
            return text, "stop"
        state = mix(state, token)
    return text, "length"
