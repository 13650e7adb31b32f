"""The witness model's text, computed apart from the core: a token hashes its whole prefix, twice.

One hash is run over what the pages give back, the other is carried along as a section of the lane.
"""

from __future__ import annotations

from collections.abc import Iterable

MASK = (1 << 64) - 1


def mix(state: int, token: int) -> int:
    """One token mixed into the running hash, modulo 2^64."""
    z = state ^ ((token + 1) * 0x9E37_79B9_7F4A_7C15 & MASK)
    z = (z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB & MASK
    return z ^ (z >> 31)


def section_start(seed: int) -> int:
    """The section of a lane in which nothing is stored."""
    return seed ^ 0xD1B5_4A32_D192_ED03


def section_next(section: int, token: int) -> int:
    """The section after one more token."""
    z = mix(section, token)
    return (z << 7 | z >> 57) & MASK


def hash_of(tokens: Iterable[int], seed: int) -> int:
    """The hash over what lies in the pages."""
    state = seed
    for token in tokens:
        state = mix(state, token)
    return state


def witness_next(prefix: Iterable[int], vocab: int, seed: int) -> int:
    """The token after `prefix`."""
    state, section = seed, section_start(seed)
    for token in prefix:
        state, section = mix(state, token), section_next(section, token)
    return (state ^ section) % vocab


def witness_text(
    prompt: Iterable[int], tokens_max: int, stop_ids: frozenset[int], vocab: int, seed: int
) -> tuple[list[int], str]:
    """The answer to `prompt`, its stop token included, and the finish reason."""
    state, section = seed, section_start(seed)
    for token in prompt:
        state, section = mix(state, token), section_next(section, token)
    text: list[int] = []
    while len(text) < tokens_max:
        token = (state ^ section) % vocab
        text.append(token)
        if token in stop_ids:
            return text, "stop"
        state, section = mix(state, token), section_next(section, token)
    return text, "length"
