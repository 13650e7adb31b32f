"""A pool of two sequences, one conversation in front of it, six agents behind.

Why: a server that recomputes or drops what it pushes aside shows it here, as lost work or as other
text. The same requests run with KV-RAM, with KV-disk, with both and with neither; every answer is
then asked again, alone, of a model that keeps nothing, and must have the same token ids.

`--card` runs random weights on the card, and draws no plot.

A run with a tier counts only if at least 50 sequences moved each way and 20 prompts were reused.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import record
from benches.card import checkpoint
from benches.card.ready import folder_for
from benches.replay import words
from benches.scenarios.model import Asked, Run, loaded, percentiles
from benches.scenarios.pressure_plot import plot
from ignis.engine.api import SamplingParams
from ignis.plan.cuda import find_facts

SEQUENCES = 2  # that the pool holds
SLOTS = 8
AGENTS = 6
AGENT_ANSWER_TOKENS = 300
AGENT_ROOM = 356  # of its context, for that and for what frames messages
INSTRUCTION_TOKENS = 400  # of them, the same for all
TURNS = 10
MOVES_LEAST, HITS_LEAST = 50, 20

Setup = tuple[str, str, str]

# Name, bytes of KV-RAM, bytes of KV-disk. "both" has room for one moved sequence in RAM.
SETUPS: tuple[Setup, ...] = (
    ("KV-RAM", "512M", "0"),
    ("KV-disk", "0", "1G"),
    ("both", "56M", "1G"),
    ("neither", "0", "0"),
)

# The same for the model that `--card` runs, whose sequences take 352 MB each.
CARD_GEOMETRY = "qwen3-0.6b"
CARD_SETUPS: tuple[Setup, ...] = (
    ("KV-RAM", "2G", "0"),
    ("KV-disk", "0", "4G"),
    ("both", "384M", "4G"),
    ("neither", "0", "0"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """What runs, and where."""

    model: str
    device: str
    context: int  # an agent fills it, so two of them leave no room for the conversation
    setups: tuple[Setup, ...]


def where(place: Place) -> dict[str, object]:
    """The device, and on a card a budget of which the driver may count more: it still counts what
    it took for the loads before this one."""
    if place.device == "cpu":
        return {"device": "cpu"}
    return {"device": "cuda", "vram.budget_bytes": "8G", "vram.allow_oversubscription": "on"}


def options(place: Place, kv_ram: str, kv_disk: str, folder: Path) -> dict[str, object]:
    """The configuration of one setup."""
    return {
        **where(place),
        "model.path": place.model,
        "model.max_context": place.context,
        "model.lanes": 4,
        "vram.kv_pool_bytes": f"{SEQUENCES * place.context + SLOTS * 64}tok",
        "reuse.retained_host": SLOTS,
        "reuse.kv_host_pool_bytes": kv_ram,
        "kv_disk.bytes": kv_disk,
        "kv_disk.path": folder,
        "kv_disk.margin_bytes": "1G",
    }


def alone_options(place: Place) -> dict[str, object]:
    """A model that keeps nothing of one request for the next."""
    return {
        **where(place),
        "model.path": place.model,
        "model.max_context": place.context,
        "model.lanes": 1,
        "reuse.prompt": "off",
        "reuse.kv_host_pool_bytes": "0",
    }


def sampling_of(draw: random.Random) -> SamplingParams:
    """Greedy, or drawn with a seed and penalties."""
    if draw.random() < 0.5:
        return SamplingParams(temperature=0.0)
    return SamplingParams(
        temperature=0.8,
        top_p=0.95,
        seed=draw.getrandbits(32),
        repetition_penalty=1.1,
        frequency_penalty=0.2,
    )


def cut(run: Run, text: str, tokens: int) -> str:
    """The beginning of a text, so many tokens long."""
    tokenizer = run.model.tokenizer
    return tokenizer.decode(tokenizer.encode(text)[:tokens])


async def conversation(run: Run, number: int, seed: int, pause_s: float) -> None:
    """Ten turns over one document of 950 tokens."""
    draw = random.Random(f"conversation {number} {seed}")
    messages = [{"role": "system", "content": cut(run, words(draw, 950), 950)}]
    for _ in range(TURNS):
        messages.append({"role": "user", "content": words(draw, 14)})
        text = await run.chat(messages, sampling_of(draw), 32, "interactive")
        messages.append({"role": "assistant", "content": text})
        await asyncio.sleep(pause_s)


async def agent(run: Run, number: int, context: int, seed: int, over: asyncio.Event) -> None:
    """One task that fills the context after another, until the conversations are over."""
    task, tokens = 0, context - AGENT_ROOM
    while not over.is_set() or task == 0:
        draw = random.Random(f"agent {number} {task} {seed}")
        shared = random.Random(f"instructions {seed}")
        instructions = cut(run, words(shared, INSTRUCTION_TOKENS), INSTRUCTION_TOKENS)
        task_text = cut(run, words(draw, tokens), tokens - INSTRUCTION_TOKENS)
        messages = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": task_text},
        ]
        await run.chat(messages, sampling_of(draw), AGENT_ANSWER_TOKENS, "agent")
        task += 1


async def under_pressure(
    run: Run, context: int, conversations: int, seed: int, pause_s: float
) -> None:
    """Six agents, and one conversation after another in front of them."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(AGENTS):
            group.create_task(agent(run, number, context, seed, over))
        await asyncio.sleep(1.0)
        for number in range(conversations):
            await conversation(run, number, seed, pause_s)
        over.set()


async def references(place: Place, asked: list[Asked]) -> dict[tuple[object, ...], tuple[int, ...]]:
    """The answer to every question, each alone."""
    found: dict[tuple[object, ...], tuple[int, ...]] = {}
    async with loaded(alone_options(place)) as run:
        for one in asked:
            if one.question not in found:
                answer = await run.ask(one.prompt, one.sampling, one.max_tokens, one.request_class)
                found[one.question] = answer.ids
    return found


def summary(run: Run, tier_on: bool) -> dict[str, Any]:
    """What one setup came to, without the comparison."""
    facts = run.recorder.facts
    interactive = [one.ttft_s for one in run.asked if one.request_class == "interactive"]
    agents = [one.ttft_s for one in run.asked if one.request_class == "agent"]
    moved = min(facts["evicted"], facts["resumed"])
    return {
        "requests": len(run.asked),
        "failed": sum(one.outcome not in {"stop", "length"} for one in run.asked),
        "seconds": round(run.recorder.rounds[-1][0], 2),
        "moved_out": facts["evicted"],
        "moved_in": facts["resumed"],
        "given_up_in_kv_ram": facts["live_dropped"],
        "tokens_prefilled_again": facts["prefilled_again"],
        "retained_hits": facts["retained_hit"],
        "retained_tokens": facts["retained_reused_tokens"],
        "facts": dict(sorted(facts.items())),
        "plan_allocations": run.recorder.rounds[-1][1].plan_allocations,
        "first_token_interactive": percentiles(interactive),
        "first_token_agents": percentiles(agents),
        "token_gap_while_moving": percentiles(run.recorder.gaps_moving),
        "token_gap_otherwise": percentiles(run.recorder.gaps_still),
        "counts": not tier_on or (moved >= MOVES_LEAST and facts["retained_hit"] >= HITS_LEAST),
    }


async def run_setup(
    place: Place, arguments: argparse.Namespace, setup: Setup
) -> tuple[dict[str, Any], Run]:
    """One setup, with what it was seen to do."""
    name, kv_ram, kv_disk = setup
    # Where nothing can move, a third of the conversations tells as much.
    conversations = arguments.conversations if name != "neither" else 3
    with tempfile.TemporaryDirectory() as folder:
        async with loaded(options(place, kv_ram, kv_disk, Path(folder))) as run:
            await under_pressure(run, place.context, conversations, arguments.seed, arguments.pause)
    found = summary(run, tier_on=name != "neither")
    print(f"{name}: {found['requests']} requests in {found['seconds']} s", file=sys.stderr)
    return found, run


async def _run(
    place: Place, arguments: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Run]]:
    setups, runs = {}, {}
    for setup in place.setups:
        if arguments.setup and setup[0] not in arguments.setup:
            continue
        found, run = await run_setup(place, arguments, setup)
        setups[setup[0]], runs[setup[0]] = found, run
    asked = [one for run in runs.values() for one in run.asked]
    expected = await references(place, asked)
    for name, run in runs.items():
        wrong = sum(one.ids != expected[one.question] for one in run.asked)
        setups[name]["wrong_answers"] = wrong
    return setups, runs


def passed(setups: dict[str, Any]) -> bool:
    """Whether nothing was lost, and every setup counts."""
    return all(
        found["wrong_answers"] == 0
        and found["failed"] == 0
        and found["plan_allocations"] == 0
        and found["counts"]
        and not (name in {"KV-disk", "both"} and found["tokens_prefilled_again"])
        for name, found in setups.items()
    )


def markdown(found: dict[str, Any], picture: str | None) -> str:
    """The report for people."""
    rows = [
        "requests",
        "failed",
        "wrong_answers",
        "seconds",
        "moved_out",
        "moved_in",
        "given_up_in_kv_ram",
        "tokens_prefilled_again",
        "retained_hits",
        "retained_tokens",
        "plan_allocations",
    ]
    times = [
        "first_token_interactive",
        "first_token_agents",
        "token_gap_while_moving",
        "token_gap_otherwise",
    ]
    setups = found["setups"]
    text = "# Pressure run\n\n" + record.conditions_markdown(found["conditions"])
    text += "\n| | " + " | ".join(setups) + " |\n|---|" + "---:|" * len(setups) + "\n"
    for row in rows:
        cells = " | ".join(f"{one[row]:,}" for one in setups.values())
        text += f"| {row.replace('_', ' ')} | {cells} |\n"
    for row in times:
        for part in ("p50_ms", "p99_ms", "max_ms"):
            cells = " | ".join(
                f"{one[row].get(part, float('nan')):,.1f}" for one in setups.values()
            )
            text += f"| {row.replace('_', ' ')}, {part.replace('_ms', '')}, ms | {cells} |\n"
    text += (
        "\nThe longest gaps while moving are of sequences that moved: the time they were away.\n"
    )
    if picture:
        text += f"\n![pool, KV-RAM, KV-disk and tokens over time]({picture})\n"
    return text


def run_on_cpu(arguments: argparse.Namespace) -> bool:
    """Runs a real model on the CPU, and draws what happened over time."""
    name, place = arguments.name or "pressure", Place(arguments.model, "cpu", 1856, SETUPS)
    conditions = record.conditions("benches.scenarios.pressure", arguments.commit)
    setups, runs = asyncio.run(_run(place, arguments))
    _write(name, {"conditions": conditions, "setups": setups}, f"{name}.png", arguments.out)
    plot(runs, arguments.out / f"{name}.png")
    return passed(setups)


def run_on_card(arguments: argparse.Namespace) -> bool:
    """Runs random weights on the card."""
    facts = find_facts()
    conditions = record.conditions("benches.scenarios.pressure", arguments.commit)
    conditions |= {"card": facts.name, "driver": facts.release or "unknown"}
    with tempfile.TemporaryDirectory(dir=folder_for(4 << 30)) as folder:
        model = Path(folder) / "model"
        checkpoint.write(model, CARD_GEOMETRY)
        # Its answers are of bytes: as text that is asked again, three tokens each.
        place = Place(str(model), "cuda", 3072, CARD_SETUPS)
        setups, _ = asyncio.run(_run(place, arguments))
    found = {"conditions": conditions, "geometry": CARD_GEOMETRY, "setups": setups}
    _write(arguments.name or "pressure-card", found, None, arguments.out)
    return passed(setups)


def _write(name: str, found: dict[str, Any], picture: str | None, out: Path) -> None:
    text = markdown(found, picture)
    record.write(name, found, text, out)
    print(text)


def main() -> int:
    """Runs every setup and writes the results; status 1 if an answer or any work was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scenarios.pressure", description=__doc__
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--conversations", type=int, default=9)
    parser.add_argument("--pause", type=float, default=0.4, help="seconds between two turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setup", action="append", choices=[name for name, _, _ in SETUPS])
    parser.add_argument("--card", action="store_true", help="random weights on the card")
    parser.add_argument("--name", help="of the results")
    parser.add_argument("--commit", help="what is measured, where git is not there to say")
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    run = run_on_card if arguments.card else run_on_cpu
    return 0 if run(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
