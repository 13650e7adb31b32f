"""The second turn of a conversation of 4,000 tokens, with its checkpoint and without.

Why: agents and people ask again about what was just read. With the checkpoint only the new turn is
computed; the same prompt on a model that keeps nothing is what it would have cost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from benches import record
from benches.replay import words
from benches.scenarios.model import Run, loaded
from ignis.engine.api import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
TOKENS = 4000
# Where the checkpoint lies when the second turn comes: in a slot, or given up to KV-RAM or KV-disk.
REUSE = {"reuse.kv_host_pool_bytes": "512M"}
COLD = {"reuse.prompt": "off", "reuse.kv_host_pool_bytes": "0"}


async def turns(run: Run, draw: random.Random) -> tuple[float, float, int]:
    """Seconds to the first token of both turns, and the tokens that the second did not compute."""
    tokenizer = run.model.tokenizer
    text = tokenizer.decode(tokenizer.encode(words(draw, TOKENS))[:TOKENS])
    messages = [{"role": "user", "content": text}]
    answer = await run.chat(messages, GREEDY, 32, "interactive")
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": words(draw, 20)},
    ]
    await run.chat(messages, GREEDY, 8, "interactive")
    first, second = run.asked[-2:]
    return first.ttft_s, second.ttft_s, second.cached_tokens


async def _run(model: str, repetitions: int, seed: int) -> dict[str, Any]:
    shared = {"model.path": model, "model.lanes": 2}
    async with loaded(shared | REUSE) as kept, loaded(shared | COLD) as cold:
        rows = []
        for number in range(repetitions):
            _, with_checkpoint, cached = await turns(kept, random.Random(f"{seed} {number}"))
            first, without, _ = await turns(cold, random.Random(f"{seed} {number}"))
            rows.append(
                {
                    "first_turn_s": first,
                    "second_turn_cold_s": without,
                    "second_turn_s": with_checkpoint,
                    "cached_tokens": cached,
                    "prompt_tokens": len(kept.asked[-1].prompt.ids),
                    "ratio": with_checkpoint / without,
                }
            )
        same = [a.ids == b.ids for a, b in zip(kept.asked, cold.asked, strict=True)]
    return {
        "rows": rows,
        "ratio_median": statistics.median(row["ratio"] for row in rows),
        "ratio_most": max(row["ratio"] for row in rows),
        "same_answers": all(same),
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = "# Second turn of a conversation of 4,000 tokens\n\n"
    text += record.conditions_markdown(found["conditions"])
    text += "\n| tokens | cached | cold, ms | with checkpoint, ms | ratio |\n"
    text += "|---:|---:|---:|---:|---:|\n"
    for row in found["rows"]:
        text += (
            f"| {row['prompt_tokens']:,} | {row['cached_tokens']:,} "
            f"| {row['second_turn_cold_s'] * 1e3:,.0f} | {row['second_turn_s'] * 1e3:,.0f} "
            f"| {row['ratio']:.3f} |\n"
        )
    return text + f"\nMedian ratio {found['ratio_median']:.3f}, worst {found['ratio_most']:.3f}.\n"


def main() -> int:
    """Measures and writes the results; status 1 if an answer differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scenarios.second_turn", description=__doc__
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    conditions = record.conditions("benches.scenarios.second_turn")
    found = asyncio.run(_run(arguments.model, arguments.repetitions, arguments.seed))
    found = {"conditions": conditions, **found}
    record.write("second-turn", found, text := markdown(found), arguments.out)
    print(text)
    return 0 if found["same_answers"] else 1


if __name__ == "__main__":
    sys.exit(main())
