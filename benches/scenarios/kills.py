"""A server that is killed at random moments under load, and started again over the same KV-disk.

Why: what KV-disk keeps must be true after any end of the process. Clients ask fixed questions, more
than the pool holds, so that sequences move to KV-disk and prompts are kept there; then the process
gets SIGKILL. The next one must answer every question as a server that keeps nothing does, and the
folder must hold the one file, at its size.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benches import record
from benches.replay import words
from benches.server import Answer, Server, running

SERVE = (
    "--model-max-context 2048 --model-lanes 4 --vram-kv-pool-bytes 4608tok"
    " --reuse-retained-host 8 --reuse-kv-host-pool-bytes 0"
)
ALONE = "--model-max-context 2048 --reuse-prompt off --reuse-kv-host-pool-bytes 0"
CLIENTS = 6
KILL_AFTER_SECONDS = (0.05, 2.5)
DISK_BYTES = 512 * 2**20
FILE = "kv-disk.ignis"


@dataclass(slots=True)
class Tally:
    """What all lives together came to."""

    lives: int = 0
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    answers_cut: int = 0
    first_answers_reused: int = 0
    tokens_reused: int = 0
    leaks: list[str] = field(default_factory=list)


def questions(seed: int) -> list[dict[str, Any]]:
    """Twelve requests: four conversations of three turns, whose answers so far are given."""
    found = []
    for number in range(4):
        draw = random.Random(f"{seed} {number}")
        messages = [{"role": "system", "content": words(draw, 400)}]
        for turn in range(3):
            messages.append({"role": "user", "content": words(draw, 120)})
            found.append(
                {
                    "messages": list(messages),
                    "max_tokens": 48,
                    "temperature": 0.0 if turn % 2 == 0 else 0.8,
                    "seed": 7,
                    "class": "agent" if number % 2 else "interactive",
                }
            )
            messages.append({"role": "assistant", "content": words(draw, 40)})
    return found


async def ask(server: Server, question: dict[str, Any]) -> Answer:
    """One question, streamed."""
    return await server.stream("/v1/chat/completions", question)


async def client(
    server: Server,
    asked: list[dict[str, Any]],
    expected: list[str],
    draw: random.Random,
    all_: Tally,
) -> None:
    """Asks one question after another until the server is gone."""
    while True:
        at = draw.randrange(len(asked))
        try:
            answer = await ask(server, asked[at])
        except (aiohttp.ClientError, ConnectionError):
            all_.answers_cut += 1
            return
        check(answer, at, expected, all_)


def check(answer: Answer, at: int, expected: list[str], tally: Tally) -> None:
    """Counts an answer that came whole; one that was cut must be the beginning of the truth."""
    if answer.error or answer.outcome not in {"stop", "length"}:
        tally.answers_cut += 1
        if not expected[at].startswith(answer.text):
            tally.wrong.append(f"question {at}, cut: {answer.text!r}")
        return
    tally.answers += 1
    tally.tokens_reused += answer.cached_tokens
    if answer.text != expected[at]:
        tally.wrong.append(f"question {at}: {answer.text!r}")


async def live(
    arguments: argparse.Namespace,
    asked: list[dict[str, Any]],
    expected: list[str],
    draw: random.Random,
    tally: Tally,
) -> None:
    """One process, from its start to its kill."""
    async with running(arguments) as server:
        at = draw.randrange(len(asked))
        first = await ask(server, asked[at])
        check(first, at, expected, tally)
        tally.first_answers_reused += first.cached_tokens > 0
        clients = [
            asyncio.create_task(
                client(server, asked, expected, random.Random(draw.random()), tally)
            )
            for _ in range(CLIENTS)
        ]
        await asyncio.sleep(draw.uniform(*KILL_AFTER_SECONDS))
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.gather(*clients)
    tally.lives += 1


def leaked(folder: Path) -> list[str]:
    """What lies in the folder beside the file, or the file at another size."""
    found = sorted(path.name for path in folder.iterdir() if path.name != FILE)
    size = (folder / FILE).stat().st_size
    return found if size == DISK_BYTES else [*found, f"{FILE} of {size} B"]


async def _run(model: str, restarts: int, seed: int) -> Tally:
    asked = questions(seed)
    namespace = argparse.Namespace(model=model, url=None, pid=None, serve_args=ALONE)
    async with running(namespace) as server:
        expected = [(await ask(server, question)).text for question in asked]
    draw, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as folder:
        namespace.serve_args = (
            f"{SERVE} --kv-disk-bytes {DISK_BYTES} --kv-disk-path {folder}"
            " --kv-disk-margin-bytes 1G"
        )
        for life in range(restarts):
            await live(namespace, asked, expected, draw, tally)
            tally.leaks += leaked(Path(folder))
            if life % 20 == 19:
                print(f"{life + 1} restarts, {tally.answers} answers", file=sys.stderr)
    return tally


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = "# Killed under load\n\n" + record.conditions_markdown(found["conditions"])
    text += "\n| | |\n|---|---:|\n"
    for key in (
        "lives",
        "answers",
        "answers_wrong",
        "answers_cut",
        "first_answers_reused",
        "tokens_reused",
        "leaks",
    ):
        text += f"| {key.replace('_', ' ')} | {found[key]:,} |\n"
    return text


def main() -> int:
    """Kills and compares; status 1 if an answer was wrong or a file leaked."""
    parser = argparse.ArgumentParser(prog="python -m benches.scenarios.kills", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    conditions = record.conditions("benches.scenarios.kills")
    tally = asyncio.run(_run(arguments.model, arguments.restarts, arguments.seed))
    found = {
        "conditions": conditions,
        "lives": tally.lives,
        "answers": tally.answers,
        "answers_wrong": len(tally.wrong),
        "answers_cut": tally.answers_cut,
        "first_answers_reused": tally.first_answers_reused,
        "tokens_reused": tally.tokens_reused,
        "leaks": len(tally.leaks),
    }
    record.write("kills", found, text := markdown(found), arguments.out)
    print(text)
    for line in (*tally.wrong, *tally.leaks)[:20]:
        print(line)
    return 1 if tally.wrong or tally.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
