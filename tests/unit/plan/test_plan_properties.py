"""What holds for every plan and every refusal, over random models, budgets and options."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ignis.config import OPTIONS, PoolSize
from ignis.errors import PlanRefused, Suggestion
from ignis.plan import Plan
from ignis.plan.ask import Ask, SizesOf, cut
from ignis.plan.core import sizes_by_ask
from ignis.plan.devices import CPU
from ignis.plan.plan import plan_ask
from tests.unit.plan.fake_core import MODEL, FakeCore

MIB = 1 << 20

cores = st.builds(
    FakeCore,
    weights=st.integers(64 * MIB, 256 * MIB),
    table_bytes=st.integers(0, 64 * MIB),
    row_bytes=st.integers(0, 200_000),
    lane_bytes=st.integers(0, 16 * MIB),
    slot_bytes=st.integers(0, 16 * MIB),
    token_bytes=st.integers(1, 200_000),
)
pools = (
    st.none()
    | st.builds(PoolSize, st.integers(1, 1 << 30), st.just("bytes"))
    | st.builds(PoolSize, st.integers(1, 1 << 17), st.just("tokens"))
)
adaptable = {
    "model.max_context": "context_tokens",
    "model.lanes": "lanes",
    "reuse.retained_host": "retained_host",
    "reuse.kv_host_pool_bytes": "kv_ram_bytes",
    "model.embedding_residency": "embedding",
}
names = st.sets(st.sampled_from(sorted(adaptable))).map(frozenset)


@dataclass(frozen=True)
class Scenario:
    """An ask near the edge between a plan and a refusal, and the sizes it is cut with."""

    ask: Ask
    sizes_of: SizesOf


@st.composite
def scenarios(draw: st.DrawFn, scarce: int = 10) -> Scenario:
    """Memory from `scarce` percent of what is asked for."""
    on_card = draw(st.booleans())
    sizes_of = sizes_by_ask(draw(cores), "m", "cuda" if on_card else "cpu")
    ask = Ask(
        context_tokens=draw(st.integers(1, 1 << 17)),
        lanes=draw(st.integers(1, 8)),
        chunk_tokens=64 * draw(st.integers(1, 32)),
        threads=draw(st.integers(1, 4)),
        kv_format=draw(st.sampled_from(["bf16", "f32"])),
        embedding=draw(st.sampled_from(["host", "device"])) if on_card else "device",
        retained_device=draw(st.integers(0, 3)),
        retained_host=draw(st.integers(0, 3)),
        kv_ram_bytes=draw(st.sampled_from([0, 5 * MIB, 64 * MIB, 1 << 30])),
        kv_disk_bytes=draw(st.sampled_from([0, 1 << 30])),
        pool=draw(pools),
        pool_capped=draw(st.booleans()),
        spare_tokens=draw(st.sampled_from([0, 1000, 65536])),
        free_bytes=0,
        named=draw(names),
    )
    if on_card:
        share = draw(st.integers(0 if scarce < 100 else 100, 200))
        host = cut(ask, sizes_of(ask)).host_bytes * share // 100
        margin = draw(st.sampled_from([0, 100 * MIB]))
        ask = replace(ask, host_free_bytes=host + margin, host_margin_bytes=margin)
    first = cut(ask, sizes_of(ask))
    need = first.needed_bytes + (first.host_bytes if ask.shares_memory else 0)
    budget = max(1, need * draw(st.integers(scarce, 250)) // 100)
    if draw(st.booleans()):
        # Sometimes more than is free.
        free = budget * draw(st.sampled_from([90, 100, 150])) // 100
        return Scenario(replace(ask, free_bytes=free, budget_bytes=budget), sizes_of)
    headroom = draw(st.integers(0, 1 << 30))
    return Scenario(replace(ask, free_bytes=budget + headroom, headroom_bytes=headroom), sizes_of)


def outcome(ask: Ask, sizes_of: SizesOf) -> Plan | PlanRefused:
    try:
        return plan_ask(ask, MODEL, CPU, sizes_of)
    except PlanRefused as refused:
        return refused


FIELDS = {
    "model.max_context": "context_tokens",
    "model.lanes": "lanes",
    "model.prefill_chunk": "chunk_tokens",
    "model.kv_format": "kv_format",
    "model.embedding_residency": "embedding",
    "cpu.threads": "threads",
    "cpu.activations": "activations",
    "cuda.activations": "activations",
    "reuse.retained_device": "retained_device",
    "reuse.retained_host": "retained_host",
    "reuse.kv_host_pool_bytes": "kv_ram_bytes",
    "model.host_margin_bytes": "host_margin_bytes",
    "vram.kv_pool_bytes": "pool",
    "vram.headroom_bytes": "headroom_bytes",
    "vram.budget_bytes": "budget_bytes",
    "vram.allow_oversubscription": "allow_oversubscription",
}


def applied(ask: Ask, suggestion: Suggestion) -> Ask:
    """The ask as if an operator had followed the suggestion, through the option's own reader."""
    value = OPTIONS[suggestion.option].kind.parse(suggestion.fits)
    named = ask.named | {suggestion.option}
    return replace(ask, **{FIELDS[suggestion.option]: value}, named=named)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(scenarios() | scenarios(scarce=120))
def test_a_plan_never_exceeds_its_budget_and_leaves_no_page_unused(scenario: Scenario) -> None:
    ask, sizes_of = scenario.ask, scenario.sizes_of
    plan = outcome(ask, sizes_of)
    assume(isinstance(plan, Plan))
    assert isinstance(plan, Plan)
    assert plan.total_bytes <= plan.budget_bytes <= plan.free_at_start_bytes
    assert plan.pages >= plan.floor_pages
    context_pages = -(-plan.context_tokens // 64)
    slots = plan.retained_device_slots + plan.retained_host_slots
    capped = plan.lanes * context_pages + slots
    if ask.pool is None and not (ask.pool_capped and plan.pages == capped):
        assert plan.total_bytes + plan.kv_page_bytes > plan.budget_bytes
    if ask.pool_capped and ask.pool is None:
        assert plan.pages <= capped
    host = plan.host.total_bytes
    if ask.host_free_bytes is not None:
        assert host <= max(0, ask.host_free_bytes - ask.host_margin_bytes)
    elif ask.budget_bytes is None:
        assert not host or plan.total_bytes + host <= ask.free_bytes - ask.headroom_bytes
    else:
        assert plan.total_bytes + host <= ask.free_bytes
    assert plan.kv_ram_bytes % plan.window_bytes == 0


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_a_named_value_is_never_lowered(scenario: Scenario) -> None:
    ask, sizes_of = scenario.ask, scenario.sizes_of
    plan = outcome(ask, sizes_of)
    lowered = {
        str(step["option"])
        for step in (
            plan.adapted if isinstance(plan, PlanRefused) else [s.as_dict() for s in plan.adapted]
        )
    }
    assert not lowered & ask.named
    if isinstance(plan, Plan):
        found = {
            "model.lanes": (plan.lanes, ask.lanes),
            "model.max_context": (plan.context_tokens, ask.context_tokens),
            "reuse.retained_host": (plan.retained_host_slots, ask.retained_host),
            "reuse.kv_host_pool_bytes": (
                plan.kv_ram_bytes,
                ask.kv_ram_bytes // plan.window_bytes * plan.window_bytes,
            ),
        }
        for option, (after, before) in found.items():
            assert after <= before
            assert option in lowered or after == before, option


@settings(max_examples=100, deadline=None)
@given(scenarios() | scenarios(scarce=120), st.integers(0, 1 << 30))
def test_more_memory_never_turns_a_plan_into_a_refusal(scenario: Scenario, more: int) -> None:
    ask, sizes_of = scenario.ask, scenario.sizes_of
    plan = outcome(ask, sizes_of)
    assume(isinstance(plan, Plan))
    assert isinstance(plan, Plan)
    larger = outcome(
        replace(
            ask,
            free_bytes=ask.free_bytes + more,
            budget_bytes=None if ask.budget_bytes is None else ask.budget_bytes + more,
        ),
        sizes_of,
    )
    assert isinstance(larger, Plan)
    assert larger.lanes >= plan.lanes


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_every_suggestion_fits_when_it_is_followed(scenario: Scenario) -> None:
    ask, sizes_of = scenario.ask, scenario.sizes_of
    refused = outcome(ask, sizes_of)
    assume(isinstance(refused, PlanRefused))
    assert isinstance(refused, PlanRefused)
    for suggestion in refused.suggestions:
        assert isinstance(outcome(applied(ask, suggestion), sizes_of), Plan), suggestion
    together = ask
    for suggestion in refused.together:
        together = applied(together, suggestion)
    if refused.together:
        assert isinstance(outcome(together, sizes_of), Plan), refused.together


def test_less_margin_is_suggested_where_it_keeps_a_table_on_the_host() -> None:
    """With the margin as it is the table goes to the device, where it leaves too little."""
    core = FakeCore(
        weights=67_108_864,
        row_bytes=20_720,
        lane_bytes=9_740_986,
        slot_bytes=682_165,
        table_bytes=1_629_366,
        token_bytes=200_000,
    )
    sizes_of = sizes_by_ask(core, "m", "cuda")
    ask = Ask(
        context_tokens=5136,
        lanes=8,
        chunk_tokens=2048,
        threads=4,
        kv_format="f32",
        embedding="host",
        pool_capped=False,
        spare_tokens=0,
        free_bytes=655_302_925,
        headroom_bytes=24,
        host_free_bytes=100 * MIB,
        host_margin_bytes=100 * MIB,
    )
    refused = outcome(ask, sizes_of)
    assert isinstance(refused, PlanRefused)
    together = [one.option for one in refused.together]
    assert together == ["model.max_context", "model.host_margin_bytes"]
    for suggestion in refused.together:
        ask = applied(ask, suggestion)
    assert isinstance(outcome(ask, sizes_of), Plan)


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_a_refusal_leaves_out_no_option_that_would_fit(scenario: Scenario) -> None:
    ask, sizes_of = scenario.ask, scenario.sizes_of
    refused = outcome(ask, sizes_of)
    assume(isinstance(refused, PlanRefused))
    assert isinstance(refused, PlanRefused)
    below_floor = ask.pool is not None and cut(ask, sizes_of(ask)).pool_below_floor
    assert refused.needed_bytes > refused.budget_bytes or below_floor
    assert refused.shortfall_bytes == max(0, refused.needed_bytes - refused.budget_bytes)
    assume(ask.budget <= ask.free_bytes)
    named = {one.option for one in refused.suggestions}
    for option, field, least in (
        ("model.lanes", "lanes", 1),
        ("model.prefill_chunk", "chunk_tokens", 64),
        ("model.max_context", "context_tokens", 64),
    ):
        if getattr(ask, field) > least and option not in named:
            lowest = replace(ask, **{field: least}, named=ask.named | {option})  # type: ignore[arg-type]
            assert isinstance(outcome(lowest, sizes_of), PlanRefused), option
