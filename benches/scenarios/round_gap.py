"""Time from the end of a round to the start of the next, at eight decoding lanes.

Why: the device stands still meanwhile. Of a round of 5 ms it may be 3 %, 150 us. The rounds are
real, from the scheduler to the core's binding; the device is simulated, one that runs rounds by
itself. Rows:

- all that a round leads to done between two rounds, as it would be without `begin` and `finish`;
- the same done beside the next round;
- the same on the engine thread, while an event loop reads the eight streams of rounds of 5 ms;
- two of rounds of 5 ms beside a loop that is busy for 3 ms at a time, from when a round is due: so
  the wait for the interpreter is in it, under Python's switch interval and under the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import structlog

from benches import record
from ignis import _native
from ignis.admission import reserve
from ignis.admission.reservation import Room
from ignis.engine import EngineOptions, EngineService, SequenceRequest
from ignis.engine.api import SamplingParams
from ignis.engine.native import Core, native_core
from ignis.engine.rounds import RoundRunner
from ignis.engine.scheduler import SchedulerLimits
from ignis.engine.sequence import Handover, Sequence
from ignis.server.run import SWITCH_SECONDS

LANES = 8
PROMPT = tuple(range(64))
CONTEXT_TOKENS = 4096
PAGES = LANES * CONTEXT_TOKENS // 64
SEED = 8  # of a simulated device that runs rounds by itself, and computes them when collected
ROUND_S = 0.005
BUSY_S, IDLE_S = 0.003, 0.002
WARM_ROUNDS = 50
GREEDY = SamplingParams(temperature=0.0)


class Timed:
    """The engine, with the times that lie between the end of a round and the start of the next.

    Rounds take `round_s` from their start, the interpreter released.
    """

    def __init__(self, engine: Any, round_s: float) -> None:
        self.gaps: list[float] = []
        self.late: list[float] = []  # the same, from when a round was due
        self._engine = engine
        self._round_s = round_s
        self._began = self._ended = self._due = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def begin_round(self, lane: int, tokens: int, lanes: array[int], count: int) -> bool:
        started: bool = self._engine.begin_round(lane, tokens, lanes, count)
        self._began = time.perf_counter()
        if count == LANES:
            self.gaps.append(self._began - self._ended)
            self.late.append(self._began - self._due)
        return started

    def finish_round(self, out: Any) -> int:
        self._due = self._began + self._round_s
        if self._round_s:
            time.sleep(max(0.0, self._due - time.perf_counter()))
        count: int = self._engine.finish_round(out)
        self._ended = time.perf_counter()
        return count


def timed_core(round_s: float) -> tuple[Core[Any, Any], Timed]:
    """Eight lanes on the simulated device."""
    limits = _native.Limits(LANES, 512, CONTEXT_TOKENS, PAGES)
    core = native_core(_native.Engine.simulated(limits, 1000, SEED))
    timed = Timed(core.engine, round_s)
    return Core(timed, core.out, core.sampling, core.prefix_chain), timed


def decoding(runner: RoundRunner[Any, Any], rounds: int) -> None:
    """Seats a sequence in every lane and runs until all decode."""
    room = Room(CONTEXT_TOKENS, PAGES, 64, 16)
    for key in range(LANES):
        tokens = array("I", PROMPT)
        reservation = reserve(len(PROMPT), rounds, room)
        runner.submit(
            Sequence(key, tokens, len(tokens), reservation, GREEDY, frozenset(), "interactive")
        )
    for _ in range(LANES + WARM_ROUNDS):
        runner.run_round()


def driven(rounds: int, *, beside: bool) -> list[float]:
    """Gaps of the runner alone; what it gives goes to an event loop that nobody runs."""
    core, timed = timed_core(0.0)
    runner = RoundRunner(core, SchedulerLimits(LANES, PAGES, 512, 0, 50))
    decoding(runner, rounds + LANES + WARM_ROUNDS + 8)
    loop = asyncio.new_event_loop()

    def receive(handover: Handover) -> None:
        pass

    runner.begin()
    timed.gaps.clear()
    for at in range(rounds):
        runner.finish()
        if not beside:
            loop.call_soon_threadsafe(receive, runner.give())
            runner.advance()
        runner.begin()
        if beside:
            loop.call_soon_threadsafe(receive, runner.give())
            runner.advance()
        if at % 100 == 99:
            loop.call_soon(loop.stop)
            loop.run_forever()
    runner.close()
    loop.close()
    return timed.gaps


async def served(rounds: int, *, busy: bool = False) -> list[float]:
    """Gaps of the whole service, with a reader for each stream; beside a busy loop, lateness."""
    core, timed = timed_core(ROUND_S)
    options = EngineOptions(CONTEXT_TOKENS, 512, 16, 0, 50)

    async def read(request: SequenceRequest) -> None:
        async with service.submit(request) as stream:
            async for _ in stream:
                pass

    async def work() -> None:
        while True:
            until = time.perf_counter() + BUSY_S
            while time.perf_counter() < until:
                sum(range(50))
            await asyncio.sleep(IDLE_S)

    async with EngineService(core, options) as service:
        working = asyncio.create_task(work()) if busy else None
        requests = (
            SequenceRequest(f"r{at}", PROMPT, rounds + WARM_ROUNDS, GREEDY) for at in range(LANES)
        )
        await asyncio.gather(*map(read, requests))
        if working is not None:
            working.cancel()
    return (timed.late if busy else timed.gaps)[WARM_ROUNDS // 2 :]


def row(name: str, gaps: list[float]) -> dict[str, Any]:
    """Microseconds."""
    cuts = statistics.quantiles(gaps, n=100, method="inclusive")
    return {
        "name": name,
        "rounds": len(gaps),
        "median_us": cuts[49] * 1e6,
        "p99_us": cuts[98] * 1e6,
        "share_of_5_ms_percent": cuts[49] / ROUND_S * 100,
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = "# From the end of a round to the start of the next\n\n"
    text += record.conditions_markdown(found["conditions"])
    text += "\n| eight lanes decode | rounds | median, us | p99, us | median of 5 ms, % |\n"
    text += "|---|---:|---:|---:|---:|\n"
    for one in found["rows"]:
        text += (
            f"| {one['name']} | {one['rounds']:,} | {one['median_us']:.1f} "
            f"| {one['p99_us']:.1f} | {one['share_of_5_ms_percent']:.2f} |\n"
        )
    return text


def measure(rounds: int) -> list[dict[str, Any]]:
    """All rows."""
    rows = [
        row("all between two rounds", driven(rounds, beside=False)),
        row("beside the next round", driven(rounds, beside=True)),
        row("beside it, served to a loop", asyncio.run(served(rounds))),
    ]
    before = sys.getswitchinterval()
    try:
        for interval_s in (before, SWITCH_SECONDS):
            sys.setswitchinterval(interval_s)
            name = f"from when it was due, a busy loop, switches after {interval_s * 1e3:g} ms"
            rows.append(row(name, asyncio.run(served(rounds, busy=True))))
    finally:
        sys.setswitchinterval(before)
    return rows


def main() -> int:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scenarios.round_gap", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    conditions = record.conditions("benches.scenarios.round_gap")
    found = {"conditions": conditions, "rows": measure(arguments.rounds)}
    record.write("round-gap", found, text := markdown(found), arguments.out)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
