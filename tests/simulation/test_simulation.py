"""Many random requests: each text right, nobody passed or lost, no page and no window leaked.

Each run takes the next seed, draws its own limits and sends RUN_REQUESTS requests.
IGNIS_SIM_REQUESTS is how many in all, IGNIS_SIM_SEED the first run's seed. `make simulate` asks for
1,000,000 requests over 10,000 seeds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor

import pytest
import structlog

from tests.simulation import cores
from tests.simulation.driver import CoreFactory, Simulation, Totals
from tests.simulation.witness import witness_next

RUN_REQUESTS = 100
BLOCK_SEEDS = 20  # runs of one process before it reports
# Read here: no test sees the variables of the shell.
REQUESTS = int(os.environ.get("IGNIS_SIM_REQUESTS", "30000"))
SEED = int(os.environ.get("IGNIS_SIM_SEED", "0"))

# What must have happened where this many requests were sent, or little was tested.
ENOUGH_REQUESTS = 30_000
HAPPENED = (
    ["evicted kv_ram", "evicted disk", "resumed kv_ram", "resumed disk"]
    + ["live_dropped kv_ram", "prefilled_again None"]
    + ["move_refused_write disk", "move_refused_read disk"]
    + [f"retained_hit {place}" for place in ("device", "kv_ram", "disk")]
    + [f"retained_discard {place}" for place in ("device", "kv_ram", "disk")]
    + ["retained_spill kv_ram", "retained_spill disk", "retained_miss device"]
)
STATES = {"WAITING", "RUNNING", "LEAVING", "PARKED", "ARRIVING"}


def simulate(make_core: CoreFactory, seed: int, requests: int, *, disk: bool = True) -> Totals:
    """One run."""
    # A log line is not what is tested, and a run has many.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        simulation = Simulation(make_core, seed, disk=disk)
        totals = simulation.run(requests)
    except BaseException as error:
        error.add_note(f"replay: make simulate SEED={seed} REQUESTS={requests}")
        raise
    finally:
        structlog.reset_defaults()
    assert totals.refused + totals.finished + totals.cancelled == requests
    return totals


def simulate_block(first_seed: int, requests: int) -> Totals:
    """Runs of consecutive seeds, in a process of its own."""
    totals = Totals()
    for seed in range(first_seed, first_seed + -(-requests // RUN_REQUESTS)):
        totals += simulate(cores.native, seed, min(requests, RUN_REQUESTS))
        requests -= RUN_REQUESTS
    return totals


@pytest.mark.timeout(3600)
def test_each_text_is_the_witness_of_its_prefix() -> None:
    block = BLOCK_SEEDS * RUN_REQUESTS
    sizes = [min(block, REQUESTS - sent) for sent in range(0, REQUESTS, block)]
    seeds = [SEED + BLOCK_SEEDS * at for at in range(len(sizes))]
    totals = Totals()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for part in pool.map(simulate_block, seeds, sizes):
            totals += part
    print(totals)
    assert totals.finished > REQUESTS // 2, "most requests are to finish, or little was tested"
    if REQUESTS >= ENOUGH_REQUESTS:
        assert [name for name in HAPPENED if not totals.facts[name]] == []
        assert totals.cancelled_in.keys() == STATES


@pytest.mark.parametrize("seed", [0, 1, 7, (1 << 64) - 1])
def test_both_witnesses_agree(seed: int) -> None:
    from ignis import _native

    draw = random.Random(seed)
    for vocab in (1, 2, 251, 49_152, (1 << 32) - 1):
        prefix = [draw.getrandbits(32) for _ in range(draw.randint(0, 100))]
        assert witness_next(prefix, vocab, seed) == _native.witness_next(prefix, vocab, seed)


@pytest.mark.parametrize("seed", range(16))
def test_the_twin_in_python_gives_the_same_run(seed: int) -> None:
    """Same rounds, tokens, moves and matches: the core against lists. A disk has its own times."""
    runs = [simulate(core, seed, 100, disk=False) for core in (cores.native, cores.reference)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("seed", range(16))
def test_the_twin_in_python_keeps_every_promise_on_its_own_disk(seed: int) -> None:
    simulate(cores.reference, 1_000 + seed, 60)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make_core", [cores.native, cores.reference])
def test_one_seed_gives_one_run(make_core: CoreFactory, seed: int) -> None:
    assert simulate(make_core, seed, 50) == simulate(make_core, seed, 50)
