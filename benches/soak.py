"""A thousand mixed requests after a warm-up: the plan must not allocate, the process must not grow.

The mix is seeded: streams and whole answers, short and long prompts, clients that leave in the
middle, log-probabilities, penalties, several answers at once, both classes. The warm-up sends the
same mix, so that what any kind of request touches for the first time is not counted as growth.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benches import record
from benches.replay import words
from benches.server import Answer, Server, add_arguments, running

GROWTH_MAX_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request and how often it is drawn."""

    name: str
    weight: int
    why: str
    extra: Callable[[random.Random], dict[str, Any]]
    prompt_words: tuple[int, int] = (4, 40)
    stream: bool = False
    leave_after: tuple[int, int] | None = None


def _tokens(low: int, high: int) -> Callable[[random.Random], dict[str, Any]]:
    return lambda draw: {"max_tokens": draw.randint(low, high)}


KINDS = (
    Kind("short", 20, "the common case", _tokens(1, 24)),
    Kind("stream", 30, "one event a token", _tokens(4, 48), stream=True),
    Kind("long prompt", 8, "many chunks, many pages", _tokens(1, 8), (300, 900)),
    Kind(
        "leaves", 20, "a lane freed in the middle", _tokens(48, 96), stream=True, leave_after=(1, 8)
    ),
    Kind(
        "log-probabilities",
        10,
        "the widest answer a token can have",
        lambda draw: {"max_tokens": draw.randint(1, 16), "logprobs": True, "top_logprobs": 20},
    ),
    Kind(
        "several answers",
        6,
        "one request, more sequences than lanes",
        lambda draw: {"max_tokens": draw.randint(1, 12), "n": draw.randint(2, 5)},
    ),
    Kind(
        "penalties",
        6,
        "counts of the whole vocabulary",
        lambda draw: {
            "max_tokens": draw.randint(4, 24),
            "frequency_penalty": 0.5,
            "presence_penalty": 0.2,
            "logit_bias": {str(draw.randrange(1000)): -5},
        },
    ),
)


async def send(server: Server, kind: Kind, draw: random.Random) -> Answer:
    """One request of a kind."""
    text = words(draw, draw.randint(*kind.prompt_words))
    body = {
        "messages": [{"role": "user", "content": text}],
        "temperature": draw.choice([0.0, 0.7, 1.0]),
        "seed": draw.getrandbits(32),
        "class": draw.choice(["interactive", "agent"]),
        **kind.extra(draw),
    }
    leave = draw.randint(*kind.leave_after) if kind.leave_after else None
    if kind.stream:
        return await server.stream("/v1/chat/completions", body, leave)
    return await server.ask("/v1/chat/completions", body)


async def mix(
    server: Server, count: int, clients: int, seed: int
) -> tuple[Counter[str], list[str]]:
    """`count` requests from `clients` at once; outcomes by kind, and what went wrong."""
    outcomes: Counter[str] = Counter()
    errors: list[str] = []
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            draw = random.Random(f"{seed} {number}")
            kind = draw.choices(KINDS, [kind.weight for kind in KINDS])[0]
            answer = await send(server, kind, draw)
            outcomes[f"{kind.name}: {answer.outcome}"] += 1
            if answer.error:
                errors.append(f"{kind.name}: {answer.status} {answer.error}")

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes, errors


async def settled(server: Server) -> int:
    """Memory once every request has ended and nothing moves: the least of a few readings.

    Pages stay used: retained slots hold them.
    """
    families = ("ignis_scheduler_requests", "ignis_moves_in_flight")
    while True:
        found = await server.metrics()
        if sum(value for name, value in found.items() if name.startswith(families)) == 0:
            break
        await asyncio.sleep(0.1)
    readings = []
    for _ in range(5):
        await asyncio.sleep(0.2)
        readings.append(server.memory_bytes())
    return min(readings)


async def soak(
    server: Server, requests: int, warm_up: int, clients: int, seed: int = 1
) -> dict[str, Any]:
    """Warm-up, then the requests; memory before, after and at points between."""
    await mix(server, warm_up, clients, seed)
    before = await settled(server)
    points = [{"requests": 0, "memory_bytes": before}]
    outcomes: Counter[str] = Counter()
    errors: list[str] = []
    part = max(1, requests // 10)
    for done in range(0, requests, part):
        count = min(part, requests - done)
        some, wrong = await mix(server, count, clients, seed=seed + 1 + done)
        outcomes += some
        errors += wrong
        points.append({"requests": done + count, "memory_bytes": await settled(server)})
    found = await server.metrics()
    return {
        "requests": requests,
        "warm_up": warm_up,
        "clients": clients,
        "memory_growth_bytes": points[-1]["memory_bytes"] - before,
        "plan_allocations": found["ignis_plan_allocations_total"],
        "pages_used_at_end": found["ignis_kv_pool_used_pages"],
        "outcomes": dict(sorted(outcomes.items())),
        "errors": errors,
        "points": points,
    }


def failures(found: dict[str, Any], growth_max: int) -> list[str]:
    """Why the soak failed; empty if it passed."""
    wrong = []
    if found["plan_allocations"]:
        wrong.append(f"the plan was asked for memory {found['plan_allocations']:.0f} times")
    if found["memory_growth_bytes"] > growth_max:
        wrong.append(f"the process grew by {found['memory_growth_bytes'] / 2**20:.1f} MiB")
    if found["errors"]:
        wrong.append(f"{len(found['errors'])} requests failed, first: {found['errors'][0]}")
    return wrong


def markdown(found: dict[str, Any], wrong: list[str]) -> str:
    """The report for people."""
    text = "# Soak\n\n" + record.conditions_markdown(found["conditions"]) + "\n"
    text += f"{found['requests']} requests from {found['clients']} clients, after a warm-up of "
    text += f"{found['warm_up']}: growth {found['memory_growth_bytes'] / 2**20:.2f} MiB, plan "
    text += f"allocations {found['plan_allocations']:.0f}. "
    text += "Passed.\n" if not wrong else f"Failed: {'; '.join(wrong)}.\n"
    text += "\n| requests | memory (MiB) |\n|---:|---:|\n"
    for point in found["points"]:
        text += f"| {point['requests']} | {point['memory_bytes'] / 2**20:.2f} |\n"
    text += "\n| kind: outcome | requests |\n|---|---:|\n"
    for outcome, count in found["outcomes"].items():
        text += f"| {outcome} | {count} |\n"
    return text


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    async with running(arguments) as server:
        return await soak(server, arguments.requests, arguments.warm_up, arguments.clients)


def main() -> int:
    """Runs the soak; status 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m benches.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--growth-max-mib", type=float, default=GROWTH_MAX_BYTES / 2**20)
    add_arguments(parser)
    arguments = parser.parse_args()
    found = asyncio.run(_run(arguments))
    found = {"conditions": record.conditions("benches.soak"), **found}
    wrong = failures(found, int(arguments.growth_max_mib * 2**20))
    text = markdown(found, wrong)
    record.write("soak", found, text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
