"""The card suite: `python -m benches.card --profile h200`.

Each model, the ceilings, the peer and the time to ready run in processes of their own, one after
another, in one run. A part that fails costs its rows, is said, and makes the status 1. Writes
`benches/results/card-<profile>.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benches import record
from benches.card import report
from benches.card.peer import PEER_ROWS
from benches.card.profiles import PROFILES, Profile
from benches.card.rows import ROWS
from ignis.plan.cuda import find_facts

Run = Callable[[str, Sequence[str]], dict[str, Any]]


def run_part(module: str, words: Sequence[str]) -> dict[str, Any]:
    """Runs a part in a process of its own; its record, or `{"failed": why}`."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", f"benches.card.{module}", *words],
        cwd=record.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
    else:
        said = done.stderr.strip().splitlines()
        found = {"failed": said[-1] if said else f"status {done.returncode}"}
        sys.stderr.write(done.stderr[-4000:])
    return found | {"took_s": round(time.monotonic() - began, 1)}


def _rows(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--row", name)]


def measure(
    profile: Profile,
    models: Sequence[tuple[str, str]],
    rows: Sequence[str],
    *,
    peers: bool,
    engine_words: Sequence[str] = (),
    ready_words: Sequence[str] = (),
    run: Run = run_part,
) -> dict[str, Any]:
    """Every part that the wanted rows need."""

    def part(module: str, *words: str) -> dict[str, Any]:
        print(f"{module} {' '.join(words)}", file=sys.stderr, flush=True)
        found = run(module, words)
        print(f"  {found.get('failed') or found['took_s']}", file=sys.stderr, flush=True)
        return found | {"part": " ".join([module, *words[:2]])}

    geometries = list(dict.fromkeys(name for name, _ in models))
    found: dict[str, Any] = {"ceilings": {}, "models": [], "peers": []}
    if peers:
        found["ceilings"] = part("ceilings", *geometries)
    for at, (name, matrices) in enumerate(models):
        wanted = [
            row for row in rows if ROWS[row].part == "engine" and (at == 0 or not ROWS[row].heavy)
        ]
        if wanted:
            found["models"].append(part("engine", name, matrices, *engine_words, *_rows(wanted)))
    if "ready" in rows and geometries:
        ready = part("ready", geometries[0], *ready_words)
        found["models"].append({"format": "bf16", **ready})
    for name in geometries if peers else []:
        wanted = [row for row in rows if row in PEER_ROWS]
        if name in profile.peers and wanted:
            found["peers"].append(part("peer", name, *_rows(wanted)))
    return found


def card_facts() -> dict[str, Any]:
    """The card and what drives it. Ends the run where no card can be used."""
    facts = find_facts()
    if facts.refusal:
        raise SystemExit(f"bench: {facts.refusal}")
    return {
        "card": facts.name,
        "capability": facts.capability,
        "driver": facts.release or "unknown",
        "driver_cuda": facts.driver,
        "nvrtc": facts.nvrtc,
    }


def main() -> int:
    """Runs the suite; status 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benches.card", description=__doc__)
    add = parser.add_argument
    add("--profile", choices=[*PROFILES], default="h200")
    add("--row", action="append", choices=[*ROWS], help="these rows only; repeatable")
    add("--geometry", action="append", help="these geometries only; repeatable")
    add("--format", action="append", help="these formats only; repeatable")
    add("--no-peers", action="store_true", help="without ceilings and transformers, or torch")
    add("--folder", type=Path, help="where the checkpoint of `ready` is written (memory)")
    add("--commit", help="what is measured, where git is not there to say")
    add("--out", type=Path, default=record.RESULTS, help="folder of the report")
    args = parser.parse_args()
    profile = PROFILES[args.profile]
    models = [
        (name, matrices)
        for name, matrices in profile.models
        if (not args.geometry or name in args.geometry)
        and (not args.format or matrices in args.format)
    ]
    if not models:
        parser.error("no model of the profile is left to measure")
    began = time.monotonic()
    found = {
        "conditions": record.conditions("benches.card", args.commit) | card_facts(),
        "profile": args.profile,
        **measure(
            profile,
            models,
            args.row or [*ROWS],
            peers=not args.no_peers,
            ready_words=["--folder", str(args.folder)] if args.folder else [],
        ),
    }
    found["took_s"] = round(time.monotonic() - began, 1)
    found["table"] = report.lines(profile, found)
    text = report.markdown(profile, found)
    record.write(f"card-{args.profile}", found, text, args.out)
    print(text)
    return 1 if report.failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
