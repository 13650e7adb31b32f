"""Seconds to make an image of a sequence and to restore it, with nothing else to do.

Why: a request that needs room waits for the first, a sequence that comes back for the second. The
windows are advanced one after the other, as the engine does while no lane runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from rich.console import Console

from benches import record
from ignis import _native
from ignis.config import load_config
from ignis.engine.load import load_engine
from ignis.server.loading import plan_model

TOKENS = (500, 2000, 8000)
TIERS = ("KV-RAM", "KV-disk")
WAIT_US = 100_000  # for the disk, when nothing else can go on


def load(model: str, folder: str) -> Any:
    """An engine with one lane and room for the longest image in both tiers."""
    flags = {
        "model.path": model,
        "model.lanes": "1",
        "model.max_context": "8192",
        "reuse.prompt": "off",
        "reuse.kv_host_pool_bytes": "256M",
        "kv_disk.bytes": "256M",
        "kv_disk.path": folder,
        "kv_disk.margin_bytes": "1G",
    }
    return load_engine(plan_model(load_config(flags, environ={}), Console(quiet=True)))


def until_landed(engine: Any, began: float) -> float:
    """Seconds from `began` to the end of the move."""
    while not (events := engine.advance(WAIT_US)):
        pass
    [(event, _, _, text)] = events
    assert event in {0, 2}, text
    return time.perf_counter() - began


def measure(engine: Any, tokens: int, tier: int, repetitions: int) -> dict[str, Any]:
    """Medians of an image of so many tokens."""
    sampling = _native.Sampling(temperature=0.0)
    prompt = array("I", [(7 * at) % 40_000 for at in range(tokens + 1)])
    pages = -(-(tokens + 2) // engine.page_tokens)
    out, nobody = _native.RoundOut(1), array("I")
    engine.admit(0, prompt, pages, sampling)
    for at in range(0, tokens, 500):
        engine.round(0, min(500, tokens - at), nobody, 0, out)
    seconds: dict[str, list[float]] = {"out": [], "in": []}
    for _ in range(repetitions):
        began = time.perf_counter()
        image = engine.move_out(0, tier)
        seconds["out"].append(until_landed(engine, began))
        began = time.perf_counter()
        engine.move_in(image, 0, prompt, pages, sampling)
        seconds["in"].append(until_landed(engine, began))
        engine.drop_image(image)
    engine.release(0)
    windows = engine.windows_for(tokens)
    return {
        "tokens": tokens,
        "tier": TIERS[tier],
        "windows": windows,
        "out_ms": statistics.median(seconds["out"]) * 1e3,
        "in_ms": statistics.median(seconds["in"]) * 1e3,
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = "# Images made and restored\n\n" + record.conditions_markdown(found["conditions"])
    text += "\n| tokens | tier | windows of 1 MiB | out, ms | in, ms |\n|---:|---|---:|---:|---:|\n"
    for row in found["rows"]:
        text += (
            f"| {row['tokens']:,} | {row['tier']} | {row['windows']} "
            f"| {row['out_ms']:.1f} | {row['in_ms']:.1f} |\n"
        )
    return text


def main() -> int:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scenarios.image_times", description=__doc__
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    conditions = record.conditions("benches.scenarios.image_times")
    with tempfile.TemporaryDirectory() as folder:
        engine = load(arguments.model, folder)
        rows = [
            measure(engine, tokens, tier, arguments.repetitions)
            for tokens in TOKENS
            for tier in range(2)
        ]
    found = {"conditions": conditions, "rows": rows}
    record.write("image-times", found, text := markdown(found), arguments.out)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
