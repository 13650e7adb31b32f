"""Why a plan is refused, and every option that would change that, found by planning again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from ignis.config import OPTIONS, PoolSize
from ignis.errors import PlanRefused, Suggestion
from ignis.plan.adapt import EMBEDDING, Step, adapt, largest
from ignis.plan.ask import Ask, Cut, SizesOf, cut
from ignis.plan.host import why_host_refuses
from ignis.plan.units import exact

CONTEXT_STEP = 64


@dataclass(frozen=True, slots=True)
class _Knob:
    """An option as the search turns it, over values that need more and more."""

    option: str
    ascending: Sequence[int]
    turn: Callable[[Ask, int], Ask]
    show: Callable[[int], str]
    current: str


def may_start(ask: Ask, result: Cut) -> bool:
    """Whether a load may start with a cut: it fits, or is allowed to be more than there is."""
    if result.fits:
        return True
    allowed = ask.allow_oversubscription and ask.budget_bytes is not None
    return allowed and not result.pool_below_floor and (ask.shares_memory or result.host_fits)


def starts(ask: Ask, sizes_of: SizesOf) -> bool:
    """Whether a load of this ask would start, adapted where it may be."""
    if ask.budget > ask.free_bytes and not ask.allow_oversubscription:
        return False
    adapted, _ = adapt(ask, sizes_of)
    return may_start(ask, cut(adapted, sizes_of(adapted)))


def refuse(ask: Ask, sizes_of: SizesOf, lowered: Ask, steps: tuple[Step, ...]) -> PlanRefused:
    """The refusal of `ask`, which stayed too large even as `lowered` by `steps`."""
    result = cut(lowered, sizes_of(lowered))
    suggestions = tuple(_suggestions(ask, sizes_of))
    plan, needed, budget = "vram", _need(lowered, sizes_of), result.budget
    if not result.host_fits:
        plan, needed = "host", result.host_bytes
        budget = max(0, result.host_available_bytes - result.host_margin_bytes)
        on_device = replace(lowered, embedding="device")
        moves = cut(on_device, sizes_of(on_device)).host_bytes < result.host_bytes
        message = why_host_refuses(
            result, shared=lowered.shares_memory, movable=EMBEDDING if moves else None
        )
    elif result.pool_below_floor:
        message = _below_floor(lowered, sizes_of)
    else:
        beside = f" beside {exact(result.host_bytes)} of host lines" if result.host_bytes else ""
        message = (
            f"the plan needs {exact(result.needed_bytes)} and the budget{beside} is "
            f"{exact(result.budget)}: {exact(result.shortfall_bytes)} too little"
        )
    return PlanRefused(
        message,
        plan=plan,
        needed_bytes=needed,
        budget_bytes=budget,
        suggestions=suggestions,
        together=() if suggestions else _together(ask, sizes_of),
        adapted=tuple(step.as_dict() for step in steps),
    )


def refuse_budget_above_free(ask: Ask, sizes_of: SizesOf) -> PlanRefused:
    """The refusal of a named budget that is more than is free."""
    above = ask.budget - ask.free_bytes
    suggestions = []
    if starts(replace(ask, budget_bytes=ask.free_bytes), sizes_of):
        suggestions.append(
            Suggestion("vram.budget_bytes", _size(ask.budget), _size(ask.free_bytes), above)
        )
    if starts(replace(ask, allow_oversubscription=True), sizes_of):
        suggestions.append(Suggestion("vram.allow_oversubscription", "off", "on", above))
    return PlanRefused(
        f"vram.budget_bytes is {exact(ask.budget)}, which is {exact(above)} more than the "
        f"{exact(ask.free_bytes)} free at start",
        needed_bytes=ask.budget,
        budget_bytes=ask.free_bytes,
        suggestions=tuple(suggestions),
    )


def _need(ask: Ask, sizes_of: SizesOf) -> int:
    """The least bytes that hold the ask, a named pool raised to the floor."""
    result = cut(ask, sizes_of(ask))
    pages = max(result.least_pages, result.floor_pages)
    return result.sizes.fixed_bytes + pages * result.sizes.kv_page_bytes


def _least_need(ask: Ask, sizes_of: SizesOf) -> int:
    """The least bytes of the device and the host together that the ask comes down to."""
    adapted, _ = adapt(ask, sizes_of)
    return _need(adapted, sizes_of) + cut(adapted, sizes_of(adapted)).host_bytes


def _below_floor(ask: Ask, sizes_of: SizesOf) -> str:
    result = cut(ask, sizes_of(ask))
    sizes, floor = result.sizes, result.floor_pages
    assert ask.pool is not None
    least = (
        f"{floor * sizes.page_tokens:,} tokens"
        if ask.pool.unit == "tokens"
        else exact(floor * sizes.kv_page_bytes)
    )
    slots = f" and a page for each of {ask.retained} retained slots" if ask.retained else ""
    return (
        f"vram.kv_pool_bytes is {ask.pool}, which is {result.pages:,} pages of "
        f"{sizes.page_tokens} tokens at {sizes.kv_page_bytes // sizes.page_tokens:,} bytes a "
        f"token; the least is {least}, {floor:,} pages: one sequence of "
        f"{ask.context_tokens:,} tokens{slots}"
    )


def _suggestions(ask: Ask, sizes_of: SizesOf) -> Iterator[Suggestion]:
    """Each option that is enough alone, in the order people try them."""
    need = _least_need(ask, sizes_of)
    for knob in _knobs(ask, sizes_of):
        value = largest(knob.ascending, _fits(knob, ask, sizes_of))
        if value is not None:
            saves = need - _least_need(knob.turn(ask, value), sizes_of)
            yield Suggestion(knob.option, knob.current, knob.show(value), max(0, saves))
    yield from _pool_raised(ask, sizes_of)
    yield from _budget_changed(ask, sizes_of)


def _fits(knob: _Knob, ask: Ask, sizes_of: SizesOf) -> Callable[[int], bool]:
    return lambda value: starts(knob.turn(ask, value), sizes_of)


def _together(ask: Ask, sizes_of: SizesOf) -> tuple[Suggestion, ...]:
    """Several options at once, where none is enough alone: as few as it takes, each no lower than
    the others make necessary."""
    base, used = ask, list[tuple[_Knob, int]]()

    def built(values: Sequence[tuple[_Knob, int]]) -> Ask:
        return reduce(lambda turned, one: one[0].turn(turned, one[1]), values, base)

    # The context is what people give up last.
    for knob in reversed(list(_knobs(ask, sizes_of))):
        lower = [*used, (knob, knob.ascending[0])]
        if _least_need(built(lower), sizes_of) < _least_need(built(used), sizes_of):
            used = lower
        if starts(built(used), sizes_of):
            break
    else:
        # All options at their least are not enough: all of the memory beside them may be.
        budget = ask.free_bytes if ask.budget_bytes else None
        for base_tried in (
            replace(ask, headroom_bytes=0, budget_bytes=budget),
            replace(ask, host_margin_bytes=0),
        ):
            base = base_tried
            if starts(built(used), sizes_of):
                break
        else:
            return ()
    for knob, _ in tuple(used):
        at = next(i for i, one in enumerate(used) if one[0] is knob)
        before, after = used[:at], used[at + 1 :]
        if starts(built([*before, *after]), sizes_of):
            used = [*before, *after]
            continue
        value = largest(
            knob.ascending,
            lambda value, knob=knob, before=before, after=after: starts(  # type: ignore[misc]
                built([*before, (knob, value), *after]), sizes_of
            ),
        )
        assert value is not None, "the least value fits, or the search above had gone on"
        used = [*before, (knob, value), *after]
    chosen = []
    for knob, value in used:
        saves = _least_need(ask, sizes_of) - _least_need(knob.turn(ask, value), sizes_of)
        chosen.append(Suggestion(knob.option, knob.current, knob.show(value), max(0, saves)))
    if base is not ask:
        base = ask
        turned = built(used)
        chosen += _budget_changed(turned, sizes_of)
    return tuple(chosen)


def _knobs(ask: Ask, sizes_of: SizesOf) -> Iterator[_Knob]:
    """Every option whose value can go down, with the values below the current one."""

    def number(option: str, field: str, ascending: Sequence[int]) -> _Knob:
        def turn(base: Ask, value: int) -> Ask:
            return replace(base, **{field: value}, named=base.named | {option})  # type: ignore[arg-type]

        return _Knob(option, ascending, turn, str, str(getattr(ask, field)))

    def word(option: str, field: str, smaller: str) -> _Knob:
        def turn(base: Ask, _: int) -> Ask:
            return replace(base, **{field: smaller}, named=base.named | {option})  # type: ignore[arg-type]

        return _Knob(option, [0], turn, lambda _: smaller, str(getattr(ask, field)))

    contexts = range(CONTEXT_STEP, ask.context_tokens, CONTEXT_STEP)
    knobs = [
        number("model.max_context", "context_tokens", contexts),
        number("model.lanes", "lanes", range(1, ask.lanes)),
        number("model.prefill_chunk", "chunk_tokens", range(64, ask.chunk_tokens, 64)),
        number("reuse.retained_device", "retained_device", range(ask.retained_device)),
        number("reuse.retained_host", "retained_host", range(ask.retained_host)),
        number("cpu.threads", "threads", range(1, ask.threads)),
        _ram_knob(ask, sizes_of),
    ]
    if ask.kv_format != "bf16":
        knobs.append(word("model.kv_format", "kv_format", "bf16"))
    option, smaller = ("cpu", "int8") if ask.shares_memory else ("cuda", "bf16")
    if ask.activations == "f32":
        knobs.append(word(f"{option}.activations", "activations", smaller))
    if not ask.shares_memory:
        # Where the table lies: in the memory that has more left.
        other = {"host": "device", "device": "host"}[ask.embedding]
        knobs.append(word(EMBEDDING, "embedding", other))
    if ask.pool is not None:
        knobs.append(_pool_knob(ask, ask.pool, sizes_of))
    yield from (knob for knob in knobs if knob.ascending)


def _ram_knob(ask: Ask, sizes_of: SizesOf) -> _Knob:
    """KV-RAM in whole windows."""
    option = "reuse.kv_host_pool_bytes"
    return _Knob(
        option,
        range(0, ask.kv_ram_bytes, sizes_of(ask).window_bytes or max(1, ask.kv_ram_bytes)),
        lambda base, count: replace(base, kv_ram_bytes=count, named=base.named | {option}),
        _size,
        _size(ask.kv_ram_bytes),
    )


def _pool_knob(ask: Ask, pool: PoolSize, sizes_of: SizesOf) -> _Knob:
    """A named pool, in pages of the unit its operator used, from the floor up."""
    result = cut(ask, sizes_of(ask))
    page = result.sizes.page_tokens if pool.unit == "tokens" else result.sizes.kv_page_bytes

    def sized(pages: int) -> PoolSize:
        return PoolSize(pages * page, pool.unit)

    return _Knob(
        "vram.kv_pool_bytes",
        range(result.floor_pages, result.pages),
        lambda base, pages: replace(base, pool=sized(pages)),
        lambda pages: str(sized(pages)),
        str(pool),
    )


def _pool_raised(ask: Ask, sizes_of: SizesOf) -> Iterator[Suggestion]:
    """A named pool below the floor: the least that is not."""
    result = cut(ask, sizes_of(ask))
    if ask.pool is None or not result.pool_below_floor:
        return
    tokens = ask.pool.unit == "tokens"
    page = result.sizes.page_tokens if tokens else result.sizes.kv_page_bytes
    pool = PoolSize(result.floor_pages * page, ask.pool.unit)
    if starts(replace(ask, pool=pool), sizes_of):
        yield Suggestion("vram.kv_pool_bytes", str(ask.pool), str(pool), 0)


def _budget_changed(ask: Ask, sizes_of: SizesOf) -> Iterator[Suggestion]:
    """More memory: less headroom or margin, or another budget where one was named."""
    yield from _margin_lowered(ask, sizes_of)
    adapted, _ = adapt(ask, sizes_of)
    need, host = _need(adapted, sizes_of), cut(adapted, sizes_of(adapted)).host_bytes
    if ask.budget_bytes is None:
        headroom = ask.free_bytes - need - (host if ask.shares_memory else 0)
        if 0 <= headroom < ask.headroom_bytes and starts(
            replace(ask, headroom_bytes=headroom), sizes_of
        ):
            freed = ask.headroom_bytes - headroom
            yield Suggestion(
                "vram.headroom_bytes", _size(ask.headroom_bytes), _size(headroom), freed
            )
    elif ask.budget < need and starts(replace(ask, budget_bytes=need), sizes_of):
        yield Suggestion("vram.budget_bytes", _size(ask.budget), _size(need), need - ask.budget)


def _margin_lowered(ask: Ask, sizes_of: SizesOf) -> Iterator[Suggestion]:
    """Less host memory left to others, on a device with memory of its own."""
    if ask.host_free_bytes is None:
        return
    # By search: with less margin a load may be adapted otherwise, as to keep a table on the host.
    margin = largest(
        range(ask.host_margin_bytes),
        lambda margin: starts(replace(ask, host_margin_bytes=margin), sizes_of),
    )
    if margin is not None:
        freed = ask.host_margin_bytes - margin
        option = "model.host_margin_bytes"
        yield Suggestion(option, _size(ask.host_margin_bytes), _size(margin), freed)


def _size(count: int) -> str:
    return OPTIONS["vram.budget_bytes"].kind.show(count)
