"""Replays a recorded trace against a server and plots memory and tokens over time.

Every turn of a conversation sends the whole conversation so far, as a chat client does; the answer
that comes becomes part of it. Conversations run beside each other. While they do, the process's
memory, the plan and the pool are sampled from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from benches import record
from benches.server import Answer, Server, add_arguments, running

SAMPLE_SECONDS = 0.5
WORDS = (
    "river",
    "stone",
    "window",
    "quiet",
    "morning",
    "paper",
    "green",
    "engine",
    "lamp",
    "forest",
    "winter",
    "garden",
    "signal",
    "copper",
    "harbour",
    "letter",
    "small",
    "bright",
    "early",
    "under",
    "across",
    "between",
    "follows",
    "carries",
    "opens",
    "reads",
    "holds",
    "builds",
    "a",
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "with",
    "from",
)


def words(draw: random.Random, count: int) -> str:
    """Seeded text of `count` words."""
    return " ".join(draw.choice(WORDS) for _ in range(count)).capitalize() + "."


async def converse(
    server: Server, conversation: dict[str, Any], draw: random.Random, speed: float
) -> list[Answer]:
    """Runs one conversation, turn after turn."""
    await asyncio.sleep(conversation["start_s"] / speed)
    messages: list[dict[str, str]] = []
    answers = []
    for turn in conversation["turns"]:
        await asyncio.sleep(turn["pause_s"] / speed)
        messages.append({"role": "user", "content": words(draw, int(turn["words"]))})
        body = {
            "messages": messages,
            "max_tokens": int(turn["max_tokens"]),
            "temperature": 0.7,
            "seed": draw.getrandbits(32),
            "class": conversation["class"],
        }
        answer = await server.stream("/v1/chat/completions", body)
        answers.append(answer)
        if answer.error:
            break
        messages.append({"role": "assistant", "content": answer.text})
    return answers


async def sample(server: Server, samples: list[dict[str, float]]) -> None:
    """Appends a sample every half second, until cancelled."""
    while True:
        found = await server.metrics()
        samples.append(
            {
                "t": server.now(),
                "memory_bytes": server.memory_bytes(),
                "reserved_bytes": sum(
                    value
                    for key, value in found.items()
                    if key.startswith("ignis_vram_reserved_bytes")
                ),
                "pages": found.get("ignis_kv_pool_pages", 0.0),
                "pages_used": found.get("ignis_kv_pool_used_pages", 0.0),
                "running": found.get('ignis_scheduler_requests{state="running"}', 0.0),
                "waiting": found.get('ignis_scheduler_requests{state="waiting"}', 0.0),
                "tokens": found.get("ignis_generated_tokens_total", 0.0),
                "plan_allocations": found.get("ignis_plan_allocations_total", 0.0),
            }
        )
        await asyncio.sleep(SAMPLE_SECONDS)


async def replay(server: Server, trace: dict[str, Any], speed: float = 1.0) -> dict[str, Any]:
    """The whole trace; every sample and every request."""
    samples: list[dict[str, float]] = []
    sampler = asyncio.create_task(sample(server, samples))
    try:
        answers = await asyncio.gather(
            *(
                converse(server, conversation, random.Random(f"{trace['seed']} {number}"), speed)
                for number, conversation in enumerate(trace["conversations"])
            )
        )
        await asyncio.sleep(SAMPLE_SECONDS)
    finally:
        sampler.cancel()
    requests = [
        {"conversation": conversation["name"], "class": conversation["class"], **_figures(answer)}
        for conversation, several in zip(trace["conversations"], answers, strict=True)
        for answer in several
    ]
    return {"summary": summary(samples, requests), "samples": samples, "requests": requests}


def _figures(answer: Answer) -> dict[str, Any]:
    """A request without its text."""
    return {k: v for k, v in asdict(answer).items() if k not in {"text", "token_times"}}


def summary(samples: list[dict[str, float]], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What the replay is asked for."""
    times = [r["first_token"] - r["started"] for r in requests if r["first_token"] is not None]
    first, last = samples[0], samples[-1]
    return {
        "requests": len(requests),
        "failed": sum(1 for r in requests if r["error"]),
        "seconds": last["t"] - first["t"],
        "tokens": last["tokens"] - first["tokens"],
        "memory_growth_bytes": last["memory_bytes"] - first["memory_bytes"],
        "memory_peak_growth_bytes": max(s["memory_bytes"] for s in samples) - first["memory_bytes"],
        "plan_allocations": last["plan_allocations"],
        "pages_used_most": max(s["pages_used"] for s in samples),
        "pages_used_at_end": last["pages_used"],
        "first_token_s_median": statistics.median(times) if times else None,
        "first_token_s_most": max(times, default=None),
    }


def plot(found: dict[str, Any], title: str, path: Path) -> None:
    """Memory, pool and tokens over time, one above the other."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    samples = found["samples"]
    t = [s["t"] for s in samples]
    figure, (memory, pool, rate) = plt.subplots(3, 1, sharex=True, figsize=(9, 8))
    memory.plot(t, [s["memory_bytes"] / 2**20 for s in samples], label="process (Pss + Swap)")
    memory.plot(t, [s["reserved_bytes"] / 2**20 for s in samples], "--", label="plan")
    memory.set(ylabel="MiB", title=title)
    memory.set_ylim(bottom=0)
    pool.fill_between(t, [s["pages_used"] for s in samples], step="post", alpha=0.4)
    pool.axhline(samples[-1]["pages"], linestyle="--", color="grey", label="pool")
    pool.plot(t, [s["pages_used"] for s in samples], drawstyle="steps-post", label="pages used")
    pool.set(ylabel="pages")
    rates = [(b["tokens"] - a["tokens"]) / max(b["t"] - a["t"], 1e-9) for a, b in pairwise(samples)]
    rate.plot(t[1:], rates, drawstyle="steps-post", label="tokens a second")
    rate.plot(t, [s["running"] for s in samples], drawstyle="steps-post", label="running")
    rate.plot(t, [s["waiting"] for s in samples], drawstyle="steps-post", label="waiting")
    rate.set(ylabel="tokens/s, requests", xlabel="seconds")
    for axes in (memory, pool, rate):
        axes.legend(loc="lower right", fontsize="small")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def markdown(name: str, found: dict[str, Any]) -> str:
    """The report for people."""
    text = f"# Replay of {name}\n\n" + record.conditions_markdown(found["conditions"])
    text += "\n| | |\n|---|---:|\n"
    for key, value in found["summary"].items():
        shown = f"{value:,.2f}" if isinstance(value, float) and value % 1 else f"{value:,}"
        text += f"| {key} | {shown if value is not None else '-'} |\n"
    return text + f"\n![memory, pages and tokens over time](replay-{name}.png)\n"


async def _run(arguments: argparse.Namespace, trace: dict[str, Any]) -> dict[str, Any]:
    async with running(arguments) as server:
        # One request first: what a process touches on its first answer is not growth.
        body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8}
        await server.stream("/v1/chat/completions", body)
        return await replay(server, trace, arguments.speed)


def main() -> int:
    """Replays and writes the results; status 1 if a request failed or the plan allocated."""
    parser = argparse.ArgumentParser(prog="python -m benches.replay", description=__doc__)
    parser.add_argument("trace", type=Path, help="such as benches/traces/agents.json")
    parser.add_argument("--speed", type=float, default=1.0, help="divides every pause")
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    add_arguments(parser)
    arguments = parser.parse_args()
    trace = json.loads(arguments.trace.read_text(encoding="utf-8"))
    found = asyncio.run(_run(arguments, trace))
    found = {"conditions": record.conditions("benches.replay"), **found}
    name = arguments.trace.stem
    text = markdown(name, found)
    record.write(f"replay-{name}", found, text, arguments.out)
    plot(found, f"{name}, {arguments.model}", arguments.out / f"replay-{name}.png")
    print(text)
    summary_found = found["summary"]
    return 1 if summary_found["failed"] or summary_found["plan_allocations"] else 0


if __name__ == "__main__":
    sys.exit(main())
