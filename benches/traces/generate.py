"""Traces for `benches.replay`: one main conversation, and agents beside it that come and go.

A trace has no text, only sizes and pauses, so that it is small and free of anyone's words; replay
makes the words from the seed. `python -m benches.traces.generate` writes the files beside this one
again, the same to the byte.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def trace(
    seed: int, main_turns: int, agents: int, agent_turns: int, words: int, answer: int
) -> dict[str, Any]:
    """Conversations of turns: words the user adds, tokens the answer may take, the pause before."""
    draw = random.Random(seed)

    def turns(count: int, scale: float, pause: float) -> list[dict[str, float]]:
        return [
            {
                "words": max(4, round(draw.lognormvariate(0, 0.6) * words * scale)),
                "max_tokens": max(4, round(draw.uniform(0.4, 1.0) * answer * scale)),
                "pause_s": round(draw.expovariate(1 / pause), 2),
            }
            for _ in range(count)
        ]

    main = {
        "name": "main",
        "class": "interactive",
        "start_s": 0.0,
        "turns": turns(main_turns, 1.0, 2.0),
    }
    others = [
        {
            "name": f"agent {number}",
            "class": "agent",
            "start_s": round(draw.uniform(1, main_turns * 2.0), 2),
            "turns": turns(agent_turns, 1.5, 0.3),
        }
        for number in range(1, agents + 1)
    ]
    return {"seed": seed, "conversations": [main, *others]}


TRACES = {
    "small": trace(1, main_turns=2, agents=2, agent_turns=2, words=12, answer=8),
    "agents": trace(2, main_turns=24, agents=12, agent_turns=10, words=60, answer=64),
}


def main() -> None:
    """Writes every trace."""
    for name, content in TRACES.items():
        text = json.dumps(content, separators=(",", ":")).replace('{"name"', '\n{"name"')
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
