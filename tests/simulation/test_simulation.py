"""Thousands of random requests: no page leaked, nobody passed or left waiting, each text right.

IGNIS_SIM_REQUESTS is how many requests in all, IGNIS_SIM_SEED the first run's seed; each run takes
the next seed and draws its own limits. `make simulate` asks for 100,000.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.simulation import cores
from tests.simulation.driver import CoreFactory, Simulation, Totals
from tests.simulation.witness import witness_next

RUN_REQUESTS = 1_000
# Read here: no test sees the variables of the shell.
REQUESTS = int(os.environ.get("IGNIS_SIM_REQUESTS", "5000"))
SEED = int(os.environ.get("IGNIS_SIM_SEED", "0"))


def simulate(make_core: CoreFactory, seed: int, requests: int) -> Totals:
    simulation = Simulation(make_core, seed)
    try:
        totals = simulation.run(requests)
    except BaseException as error:
        error.add_note(f"replay: make simulate SEED={seed} REQUESTS={requests}")
        error.add_note(f"{simulation.shape} {simulation.limits}")
        raise
    assert totals.refused + totals.finished + totals.cancelled == requests
    return totals


@pytest.mark.timeout(1800)
def test_each_text_is_the_witness_of_its_prefix() -> None:
    left, seed = REQUESTS, SEED
    finished = 0
    while left > 0:
        requests = min(left, RUN_REQUESTS)
        finished += simulate(cores.native, seed, requests).finished
        left -= requests
        seed += 1
    assert finished > REQUESTS // 2, "most requests are to finish, or little was tested"


@pytest.mark.parametrize("seed", [0, 1, 7, (1 << 64) - 1])
def test_both_witnesses_agree(seed: int) -> None:
    from ignis import _native

    draw = random.Random(seed)
    for vocab in (1, 2, 251, 49_152, (1 << 32) - 1):
        prefix = [draw.getrandbits(32) for _ in range(draw.randint(0, 100))]
        assert witness_next(prefix, vocab, seed) == _native.witness_next(prefix, vocab, seed)


@pytest.mark.parametrize("seed", range(8))
def test_the_twin_in_python_gives_the_same_run(seed: int) -> None:
    """Same rounds, same tokens: the core's page table against lists."""
    assert simulate(cores.native, seed, 100) == simulate(cores.reference, seed, 100)


@pytest.mark.parametrize("seed", range(8))
def test_one_seed_gives_one_run(seed: int) -> None:
    assert simulate(cores.reference, seed, 50) == simulate(cores.reference, seed, 50)
