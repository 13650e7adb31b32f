"""Lowering what nobody named, one value at a time, before a load is refused.

What stands beside the device's lines goes first: KV-RAM, in halves, then retained slots in host
memory, then an embedding table there; on a device with memory of its own, only as far as host
memory asks. Then the context goes down in steps, then the lanes, and with fewer lanes the context
is tried from the top again: as many lanes as can be kept, and the largest context they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ignis.plan.ask import Ask, Cut, SizesOf, cut, pages_for
from ignis.plan.units import human

CONTEXT_TOKENS_MIN = 2048  # below this a conversation is not worth starting
CONTEXT_STEPS = 16  # the context goes down in about this many steps
EMBEDDING = "model.embedding_residency"
RETAINED_HOST_A_LANE = 2  # retained slots in host memory where nobody named a number


@dataclass(frozen=True, slots=True)
class Step:
    """One value the load lowered; `as_dict` is its form in `adapted` of `GET /v1/models`."""

    option: str
    before: int | str
    after: int | str
    reason: str

    def as_dict(self) -> dict[str, object]:
        """`{"option", "from", "to", "reason"}`."""
        return {
            "option": self.option,
            "from": self.before,
            "to": self.after,
            "reason": self.reason,
        }


def adapt(ask: Ask, sizes_of: SizesOf) -> tuple[Ask, tuple[Step, ...]]:
    """The ask that fits, and the steps that led there; the lowest one tried if none fits."""
    first = cut(ask, sizes_of(ask))
    if first.fits:
        return ask, ()
    beside = _lower_host(ask, sizes_of)
    result = cut(beside, sizes_of(beside))
    if result.fits or not result.host_fits:  # nothing else helps the host lines
        return beside, _steps(ask, beside, first)
    may_context = "model.max_context" not in ask.named
    may_lanes = "model.lanes" not in ask.named
    contexts = _contexts_below(ask.context_tokens) if may_context else []
    if first.pool_below_floor and not contexts:
        return beside, _steps(ask, beside, first)  # no number of lanes changes that
    lowest = beside
    for lanes in range(ask.lanes, 0, -1) if may_lanes else [ask.lanes]:
        lowest = _with_lanes(beside, lanes)
        if cut(lowest, sizes_of(lowest)).fits:
            break
        if not contexts:
            continue
        context = largest(contexts, _held(lowest, sizes_of, ask.spare_tokens))
        if context is None and not may_lanes:
            # No lane to give up: better without a spare than not at all.
            context = largest(contexts, _held(lowest, sizes_of, 0))
        lowest = replace(lowest, context_tokens=contexts[0] if context is None else context)
        if context is not None:
            break
    return lowest, _steps(ask, lowest, first)


def _lower_host(ask: Ask, sizes_of: SizesOf) -> Ask:
    """The ask with less in host memory, as far as that is what is short."""

    first = cut(ask, sizes_of(ask))
    gives_budget = ask.shares_memory and first.budget < ask.budget

    def enough(lowered: Ask) -> bool:
        result = cut(lowered, sizes_of(lowered))
        device = result.needed_bytes <= result.budget or not gives_budget
        return device and result.host_fits

    window = sizes_of(ask).window_bytes
    if "reuse.kv_host_pool_bytes" not in ask.named and window:
        while ask.kv_ram_bytes and not enough(ask):
            ask = replace(ask, kv_ram_bytes=ask.kv_ram_bytes // 2 // window * window)
    if "reuse.retained_host" not in ask.named and not enough(ask):
        slots = largest(
            range(ask.retained_host), lambda count: enough(replace(ask, retained_host=count))
        )
        ask = replace(ask, retained_host=slots or 0)
    if EMBEDDING not in ask.named and ask.embedding == "host" and not enough(ask):
        ask = replace(ask, embedding="device")
    return ask


def _with_lanes(ask: Ask, lanes: int) -> Ask:
    """The ask with other lanes, and with no more retained slots than go with them."""
    slots = min(ask.retained_host, RETAINED_HOST_A_LANE * lanes)
    if lanes == ask.lanes or "reuse.retained_host" in ask.named:
        slots = ask.retained_host
    return replace(ask, lanes=lanes, retained_host=slots)


def largest(ascending: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest value that fits, where every value below one that fits is taken to fit too."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if fits(ascending[middle]):
            low = middle + 1
        else:
            high = middle
    return ascending[low - 1] if low else None


def _contexts_below(context_tokens: int) -> list[int]:
    """The steps below a context, ascending: multiples of a power of two, then the least."""
    step = 64
    while step * 2 * CONTEXT_STEPS <= context_tokens:
        step *= 2
    least = min(CONTEXT_TOKENS_MIN, context_tokens)
    steps = range(-(-least // step) * step, context_tokens, step)
    return sorted({least, *steps} - {context_tokens})


def _held(ask: Ask, sizes_of: SizesOf, spare_tokens: int) -> Callable[[int], bool]:
    """Whether an adapted context is worth keeping: it fits and, with lanes beside, leaves a spare.

    A second request never takes more than one whole context, so the spare is at most that.
    """

    def held(context: int) -> bool:
        lowered = replace(ask, context_tokens=context)
        result = cut(lowered, sizes_of(lowered))
        spare = min(spare_tokens, context) if ask.lanes > 1 else 0
        spare_pages = pages_for(spare, result.sizes.page_tokens)
        return result.fits and result.pages >= result.floor_pages + spare_pages

    return held


def _steps(before: Ask, after: Ask, first: Cut) -> tuple[Step, ...]:
    if not first.host_fits:
        reason = (
            f"host memory needs {human(first.host_bytes)} and has "
            f"{human(first.host_available_bytes)} less a margin of "
            f"{human(first.host_margin_bytes)}"
        )
    elif first.pool_below_floor:
        reason = (
            f"a pool of {before.pool} does not hold a context of {before.context_tokens:,} tokens"
        )
    else:
        reason = (
            f"{before.context_tokens:,} tokens with {before.lanes} lanes need "
            f"{human(first.needed_bytes)}, {human(first.shortfall_bytes)} more than the budget"
        )
    values: tuple[tuple[str, int | str, int | str], ...] = (
        ("reuse.kv_host_pool_bytes", before.kv_ram_bytes, after.kv_ram_bytes),
        ("reuse.retained_host", before.retained_host, after.retained_host),
        (EMBEDDING, before.embedding, after.embedding),
        ("model.max_context", before.context_tokens, after.context_tokens),
        ("model.lanes", before.lanes, after.lanes),
    )
    return tuple(Step(option, old, new, reason) for option, old, new in values if old != new)
