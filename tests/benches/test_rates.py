"""The small size of `ignis bench`, on the simulated engine."""

from __future__ import annotations

import pytest

from ignis._native import Engine, Limits
from ignis.cli import rates

LANES = 3
CHUNK = 32


@pytest.fixture
def engine() -> Engine:
    limits = Limits(lanes_max=LANES, chunk_tokens_max=CHUNK, context_tokens_max=256, pages=12)
    return Engine.simulated(limits, vocab=1000, seed=1)


def test_every_small_row_is_timed_and_leaves_the_pool_free(engine: Engine) -> None:
    ticks = iter(range(1_000_000))
    bench = rates.Bench(engine, CHUNK, clock=lambda: float(next(ticks)))
    found = list(bench.run(rates.SMALL, repetitions=2))
    assert [rate.scenario for rate in found] == list(rates.SMALL)
    # One tick of the clock passes while the work runs.
    assert [rate.samples for rate in found] == [[96.0] * 2, [4.0] * 2, [4.0] * 2, [12.0] * 2]
    assert engine.pages_free() == engine.pages_total
    assert engine.plan_allocations_after_seal() == 0


def test_a_failed_run_leaves_no_lane_taken(engine: Engine) -> None:
    def broken() -> float:
        raise RuntimeError("clock")

    with pytest.raises(RuntimeError, match="clock"):
        rates.Bench(engine, CHUNK, clock=broken).once(rates.SMALL[0])
    assert engine.pages_free() == engine.pages_total


def test_rows_have_names_of_their_own() -> None:
    names = [scenario.name for scenario in rates.SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(scenario.why for scenario in rates.SCENARIOS)


@pytest.mark.parametrize(
    ("depth", "decode", "pages"), [(63, 0, 1), (64, 0, 2), (0, 62, 1), (0, 64, 2)]
)
def test_a_row_reserves_its_prompt_its_tokens_and_one_more(
    depth: int, decode: int, pages: int
) -> None:
    assert rates.Scenario("x", "decode", "", depth, decode).pages(64) == pages
