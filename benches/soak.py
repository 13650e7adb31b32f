"""A thousand mixed requests after a warm-up: the plan must not allocate, the process must not grow.

The mix is seeded: streams and whole answers, short and long prompts, clients that leave in the
middle, log-probabilities, penalties, several answers at once, further turns of known conversations,
both classes. The warm-up sends the same mix, so that what any kind of request touches for the first
time is not counted as growth.

`--card` serves random weights on the card over a small pool, so that sequences move and retained
state comes and goes: there, the bytes that the driver counts to the process must not grow by one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import record
from benches.card import checkpoint
from benches.card.ready import folder_for
from benches.replay import words
from benches.server import Answer, Server, add_arguments, running
from ignis import _native

GROWTH_MAX_BYTES = 4 * 2**20
CONVERSATIONS = 6
# What a run on the card must have done for its figure to say something.
NEEDED = ("moves out", "moves in", "reused prompts", "discarded state", "clients that left")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request and how often it is drawn."""

    name: str
    weight: int
    why: str
    extra: Callable[[random.Random], dict[str, Any]]
    prompt_words: tuple[int, int] = (4, 40)
    turns: int = 0  # messages of a known conversation before the prompt
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
        "next turn", 10, "state of an earlier prompt is used, or given up", _tokens(1, 16), turns=4
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
            "logit_bias": {str(draw.randrange(200)): -5},
        },
    ),
)


def known_turns(draw: random.Random, count: int) -> list[dict[str, str]]:
    """The first messages of one of a few conversations."""
    known = random.Random(draw.randrange(CONVERSATIONS))
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": words(known, 60)} for at in range(count)]


async def send(server: Server, kind: Kind, draw: random.Random) -> Answer:
    """One request of a kind."""
    text = words(draw, draw.randint(*kind.prompt_words))
    body = {
        "messages": [*known_turns(draw, kind.turns), {"role": "user", "content": text}],
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


def device_bytes(pid: int) -> int | None:
    """What the driver counts to the server; None without a card, or where it does not say."""
    return _native.process_bytes(pid)


def activity(found: dict[str, float]) -> dict[str, int]:
    """What was done besides answering, by the server's own counts."""

    def total(name: str) -> int:
        return round(sum(value for key, value in found.items() if key.split("{")[0] == name))

    return {
        "moves out": total("ignis_kv_cache_evictions_total"),
        "moves in": total("ignis_kv_cache_resumes_total"),
        "reused prompts": total("ignis_retained_state_hits_total"),
        "discarded state": total("ignis_retained_state_discards_total"),
        "clients that left": total("ignis_requests_cancelled_total"),
    }


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
    device_before = device_bytes(server.pid)
    points = [{"requests": 0, "memory_bytes": before, "device_bytes": device_before}]
    outcomes: Counter[str] = Counter()
    errors: list[str] = []
    part = max(1, requests // 10)
    for done in range(0, requests, part):
        count = min(part, requests - done)
        some, wrong = await mix(server, count, clients, seed=seed + 1 + done)
        outcomes += some
        errors += wrong
        memory = await settled(server)
        device = device_bytes(server.pid)
        points.append({"requests": done + count, "memory_bytes": memory, "device_bytes": device})
    found = await server.metrics()
    device_after = device_bytes(server.pid)
    known = device_before is not None and device_after is not None
    return {
        "requests": requests,
        "warm_up": warm_up,
        "clients": clients,
        "memory_growth_bytes": points[-1]["memory_bytes"] - before,
        "device_growth_bytes": device_after - device_before if known else None,
        "activity": activity(found),
        "plan_allocations": found["ignis_plan_allocations_total"],
        "pages_used_at_end": found["ignis_kv_pool_used_pages"],
        "outcomes": dict(sorted(outcomes.items())),
        "errors": errors,
        "points": points,
    }


def failures(found: dict[str, Any], growth_max: int, *, card: bool = False) -> list[str]:
    """Why the soak failed; empty if it passed."""
    wrong = []
    if found["device_growth_bytes"]:
        wrong.append(f"the card's part grew by {found['device_growth_bytes']:,} bytes")
    if card and found["device_growth_bytes"] is None:
        wrong.append("the driver counts no bytes to the server's process")
    wrong += [f"no {name}" for name in NEEDED if card and not found["activity"][name]]
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
    text += f"allocations {found['plan_allocations']:.0f}"
    if (device := found["device_growth_bytes"]) is not None:
        text += f", device bytes {device:,}"
    done = ", ".join(f"{count} {name}" for name, count in found["activity"].items())
    text += f"; {done}. "
    text += "Passed.\n" if not wrong else f"Failed: {'; '.join(wrong)}.\n"
    text += "\n| requests | memory (MiB) | device (bytes) |\n|---:|---:|---:|\n"
    for point in found["points"]:
        device = point["device_bytes"]
        text += f"| {point['requests']} | {point['memory_bytes'] / 2**20:.2f} | "
        text += f"{'-' if device is None else f'{device:,}'} |\n"
    text += "\n| kind: outcome | requests |\n|---|---:|\n"
    for outcome, count in found["outcomes"].items():
        text += f"| {outcome} | {count} |\n"
    return text


def pressed(folder: Path, geometry: str) -> tuple[str, str]:
    """A model of random weights in the folder, and flags under which its sequences move."""
    checkpoint.write(folder / "model", geometry)
    flags = {
        "model-max-context": 7168,
        "model-lanes": 8,
        "vram-kv-pool-bytes": "8192tok",
        "reuse-kv-host-pool-bytes": "1G",
        "kv-disk-bytes": "1G",
        "kv-disk-path": folder / "disk",
        "kv-disk-margin-bytes": "64M",
    }
    return str(folder / "model"), " ".join(f"--{name} {value}" for name, value in flags.items())


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    async with running(arguments) as server:
        return await soak(server, arguments.requests, arguments.warm_up, arguments.clients)


def main() -> int:
    """Runs the soak; status 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m benches.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--growth-max-mib", type=float, default=GROWTH_MAX_BYTES / 2**20)
    parser.add_argument("--card", action="store_true", help="random weights on the card, pressed")
    parser.add_argument("--geometry", default="qwen3-0.6b", help="of --card")
    parser.add_argument("--folder", type=Path, help="where --card writes its model (memory)")
    parser.add_argument("--commit", help="what is measured, where git is not there to say")
    add_arguments(parser)
    arguments = parser.parse_args()
    place = arguments.folder
    if arguments.card and place is None:
        place = folder_for(4 << 30)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        if arguments.card:
            arguments.model, flags = pressed(Path(folder), arguments.geometry)
            arguments.serve_args = f"--device cuda {flags} {arguments.serve_args}"
        found = asyncio.run(_run(arguments))
    found = {"conditions": record.conditions("benches.soak", arguments.commit), **found}
    wrong = failures(found, int(arguments.growth_max_mib * 2**20), card=arguments.card)
    text = markdown(found, wrong)
    record.write("soak-card" if arguments.card else "soak", found, text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
