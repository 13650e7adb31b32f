"""`ignis bench`: how fast a model runs here, and how well it predicts a text.

Runs the core directly, without server or scheduler, with memory planned as for a server: the same
dry run gives the bytes, and the load fails if a region differs from them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ignis._native import DeviceOptions, Engine, Limits, needs
from ignis.cli import perplexity, rates
from ignis.cli.machine import describe_machine, usable_cores

CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How the model is loaded for a run."""

    path: str
    device: str = "cpu"
    threads: int = 1
    activations: str = "int8"
    kv_format: str = "bf16"
    chunk_tokens: int = CHUNK_TOKENS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis bench`."""
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="catalogue id, GGUF file or folder")
    add("--threads", type=int, default=usable_cores(), help="worker threads")
    add("--repetitions", type=int, default=5, metavar="N", help="timed runs of each row")
    add("--only", action="append", metavar="NAME", help='rows to run, such as "pp512"; repeatable')
    add("--chunk", type=int, default=CHUNK_TOKENS, help="tokens of a prefill chunk")
    add("--activations", choices=("int8", "f32"), default="int8")
    add("--kv-format", choices=("bf16", "f32"), default="bf16")
    add("--perplexity", metavar="FILE", help="score this text instead of timing")
    add("--json", metavar="FILE", help="write the record to FILE; - for standard output")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the exit status."""
    options = LoadOptions(
        path=str(model_path(arguments.model)),
        threads=arguments.threads,
        activations=arguments.activations,
        kv_format=arguments.kv_format,
        chunk_tokens=arguments.chunk,
    )
    # The table goes to standard error where the record takes standard output.
    console = Console(stderr=arguments.json == "-")
    if arguments.perplexity:
        record = run_perplexity(options, Path(arguments.perplexity), arguments.only, console)
    else:
        record = run_rates(options, arguments.only, arguments.repetitions, console)
    record = {"model": arguments.model, **record, "machine": describe_machine().record()}
    if arguments.json == "-":
        json.dump(record, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def load(options: LoadOptions, lanes: int, context_tokens: int, pages: int) -> Engine:
    """Plans and loads the model for `lanes` sequences; `pages` in all."""
    limits = Limits(lanes, options.chunk_tokens, context_tokens, pages)
    device = DeviceOptions(options.device, options.threads, options.kv_format, options.activations)
    need = needs(options.path, limits, device)
    plan = [*need.lines, ("kv_pool", pages * need.kv_page_bytes)]
    return Engine.load(options.path, limits, device, plan)


def run_rates(
    options: LoadOptions, only: list[str] | None, repetitions: int, console: Console
) -> dict[str, object]:
    """Times the scenarios and prints one row for each."""
    scenarios = tuple(s for s in rates.SCENARIOS if not only or s.name in only)
    if not scenarios:
        names = ", ".join(s.name for s in rates.SCENARIOS)
        raise SystemExit(f"ignis bench: no row is named {only}; rows are {names}")
    page_tokens = 64
    engine = load(
        options,
        lanes=max(s.lanes for s in scenarios),
        context_tokens=max(s.pages(page_tokens) for s in scenarios) * page_tokens,
        pages=max(s.pages(page_tokens) * s.lanes for s in scenarios),
    )
    table = Table(title=f"{engine.description}: tokens a second, mean ± sd of {repetitions}")
    table.add_column("test")
    table.add_column("tok/s", justify="right")
    table.add_column("why", style="dim")
    rows: list[dict[str, object]] = []
    bench = rates.Bench(engine, options.chunk_tokens)
    with console.status("measuring"):
        for rate in bench.run(scenarios, repetitions):
            name = rate.scenario.name
            table.add_row(name, f"{rate.mean():.1f} ± {rate.deviation():.1f}", rate.scenario.why)
            samples = [round(sample, 3) for sample in rate.samples]
            rows.append({"test": name, "mean": round(rate.mean(), 3), "samples": samples})
    console.print(table)
    return {"device": engine.description, "threads": options.threads, "tokens_a_second": rows}


def run_perplexity(
    options: LoadOptions, text: Path, only: list[str] | None, console: Console
) -> dict[str, object]:
    """Scores the text by each procedure, beside the reference that lies next to it, if any."""
    content = text.read_bytes()
    tokens = tokenize(options.path, content.decode("utf-8"))
    reference = read_reference(text, content)
    longest = perplexity.LONGEST + 64
    engine = load(options, lanes=1, context_tokens=longest, pages=longest // 64)
    table = Table(title=f"{engine.description}: perplexity of {text.name}, {len(tokens):,} tokens")
    for column in ("procedure", "tokens scored", "perplexity", "reference", "difference"):
        table.add_column(column, justify="left" if column == "procedure" else "right")
    rows: list[dict[str, object]] = []
    with console.status("scoring"):
        for procedure in perplexity.PROCEDURES:
            if only and procedure.name not in only:
                continue
            found = perplexity.score(engine, procedure, tokens, options.chunk_tokens)
            if found is None:
                continue
            row: dict[str, object] = {
                "procedure": found.procedure,
                "tokens_scored": found.tokens_scored,
                "perplexity": round(found.perplexity, 4),
            }
            expected = reference.get(found.procedure)
            off = "-" if expected is None else f"{found.perplexity / expected - 1:+.3%}"
            if expected is not None:
                row |= {"reference": expected, "ratio": round(found.perplexity / expected, 6)}
            rows.append(row)
            cells = [found.procedure, f"{found.tokens_scored:,}", f"{found.perplexity:.4f}"]
            table.add_row(*cells, "-" if expected is None else f"{expected:.4f}", off)
    console.print(table)
    return {
        "device": engine.description,
        "threads": options.threads,
        "activations": options.activations,
        "kv_format": options.kv_format,
        "text_sha256": hashlib.sha256(content).hexdigest(),
        "text_tokens": len(tokens),
        "perplexity": rows,
    }


def read_reference(text: Path, content: bytes) -> dict[str, float]:
    """Reference figures from `<text>.json`, if it was made for this very text; else none."""
    beside = text.with_suffix(".json")
    if not beside.exists():
        return {}
    found = json.loads(beside.read_text(encoding="utf-8"))
    if found.get("sha256") != hashlib.sha256(content).hexdigest():
        return {}
    return {row["procedure"]: float(row["reference"]) for row in found["procedures"]}


def model_path(model: str) -> Path:
    """The file or folder of a catalogue id or path."""
    raise NotImplementedError(model)


def tokenize(path: str, text: str) -> list[int]:
    """Ids of a text by the model's own tokenizer, with no special tokens added."""
    raise NotImplementedError(path, text)
