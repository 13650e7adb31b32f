"""Gaps between the tokens of three sequences, while a fourth moves out and in and while none does.

Why: a move must not be felt. Each round decodes three lanes; beside it the fourth moves by at most
one window each way. The gap of a round is its time and that of the windows, so the longest gap may
grow by one window's copy, and not by an image's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from rich.console import Console

from benches import record
from benches.scenarios.model import percentiles
from ignis import _native
from ignis.config import load_config
from ignis.server.loading import plan_model

PROMPT_TOKENS = 1500
ANSWER_TOKENS = 500
OUT_LANDED, IN_LANDED = 0, 2


class Lanes:
    """An engine whose lanes 0 to 2 decode, and whose lane 3 moves."""

    def __init__(self, model: str, folder: str) -> None:
        flags = {"model.path": model, "model.lanes": "4", "model.max_context": "2048"}
        plan = plan_model(load_config(flags, environ={}), Console(quiet=True))
        limits = _native.Limits(plan.lanes, plan.chunk_tokens, plan.context_tokens, plan.pages)
        device = _native.DeviceOptions(
            plan.device.kind, plan.threads, plan.kv_format, plan.activations
        )
        tiers = _native.TierOptions(1 << 28, folder, 1 << 28)
        lines = [(name, size) for name, size in plan.line_bytes() if name != "retained_slots"]
        self.engine = _native.Engine.load(plan.model.path, limits, device, lines, None, None, tiers)
        self.sampling = _native.Sampling(temperature=0.0)
        self.out = _native.RoundOut(4)
        self.three = array("I", [0, 1, 2])
        self.moved: list[int] = []  # tokens of lane 3

    def fill(self, lane: int) -> None:
        """A prompt, up to its first token."""
        prompt = array("I", [(lane * 31 + 7 * at) % 40_000 for at in range(PROMPT_TOKENS)])
        pages = (PROMPT_TOKENS + ANSWER_TOKENS) // self.engine.page_tokens + 1
        self.engine.admit(lane, prompt, pages, self.sampling)
        for at in range(0, PROMPT_TOKENS, 500):
            self.engine.round(lane, min(500, PROMPT_TOKENS - at), array("I"), 0, self.out)
        if lane == 3:
            self.moved = [*prompt, self.out.tokens[0]]

    def round(self) -> tuple[float, float]:
        """Seconds of a decode round of the three lanes, and of the windows beside it."""
        began = time.perf_counter()
        self.engine.round(-1, 0, self.three, 3, self.out)
        ran = time.perf_counter()
        self.events = self.engine.advance(0) if any(self.engine.moving()) else []
        return ran - began, time.perf_counter() - ran


def measure(model: str, tier: int, rounds: int) -> dict[str, Any]:
    """Gaps of `rounds` rounds, in turn with a move under way and with none."""
    still: list[float] = []
    moving: list[float] = []
    windows: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        lanes = Lanes(model, folder)
        for lane in range(4):
            lanes.fill(lane)
        image = -1
        moves = 0
        for at in range(rounds):
            if at % 100 == 0:
                if image < 0:
                    image = lanes.engine.move_out(3, tier)
                else:
                    tokens = array("I", lanes.moved)
                    pages = (PROMPT_TOKENS + ANSWER_TOKENS) // lanes.engine.page_tokens + 1
                    lanes.engine.move_in(image, 3, tokens, pages, lanes.sampling, PROMPT_TOKENS)
            under_way = any(lanes.engine.moving())
            decoded, copied = lanes.round()
            (moving if under_way else still).append(decoded + copied)
            if under_way:
                windows.append(copied)
            for event, _, _, text in lanes.events:
                assert event in {OUT_LANDED, IN_LANDED}, text
                moves += 1
                if event == IN_LANDED:
                    lanes.engine.drop_image(image)
                    image = -1
    return {
        "moves": moves,
        "windows_an_image": lanes.engine.windows_for(PROMPT_TOKENS),
        "gap_still": percentiles(still),
        "gap_moving": percentiles(moving),
        "window": percentiles(windows),
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = "# Gaps between tokens, beside a move\n\n"
    text += record.conditions_markdown(found["conditions"])
    text += "\n| | KV-RAM | KV-disk |\n|---|---:|---:|\n"
    tiers = (found["kv_ram"], found["kv_disk"])
    text += f"| moves | {tiers[0]['moves']} | {tiers[1]['moves']} |\n"
    text += (
        f"| windows an image | {tiers[0]['windows_an_image']} | {tiers[1]['windows_an_image']} |\n"
    )
    names = {"gap_still": "gap, none moves", "gap_moving": "gap beside a move", "window": "window"}
    for row, name in names.items():
        for part in ("p50_ms", "p99_ms", "max_ms"):
            cells = " | ".join(f"{tier[row][part]:.2f}" for tier in tiers)
            text += f"| {name}, {part.removesuffix('_ms')}, ms | {cells} |\n"
    return text


def main() -> int:
    """Measures both tiers and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scenarios.window_gaps", description=__doc__
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    conditions = record.conditions("benches.scenarios.window_gaps")
    found = {
        "conditions": conditions,
        "kv_ram": measure(arguments.model, 0, arguments.rounds),
        "kv_disk": measure(arguments.model, 1, arguments.rounds),
    }
    record.write("window-gaps", found, text := markdown(found), arguments.out)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
