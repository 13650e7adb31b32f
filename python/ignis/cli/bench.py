"""`ignis bench`: how fast a model runs here, and how well it predicts a text.

`--synthetic` measures random weights of a real geometry instead: no file and no download.

Runs the core directly, without server or scheduler. Its memory is planned as a server's is: the
same dry run gives the bytes of every line, and the load fails if a region differs from them.
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

from ignis._native import Engine, Limits, RandomModel, needs
from ignis.catalogue import fetch_if_missing
from ignis.cli import geometries, perplexity, rates
from ignis.cli.flags import add_model_argument, add_option_flags, config_from
from ignis.cli.machine import describe_machine
from ignis.config import Config
from ignis.errors import ConfigError
from ignis.plan import device_to_run
from ignis.plan.core import native_errors
from ignis.plan.cores import physical_cores
from ignis.plan.cuda import device_options
from ignis.plan.plan import activations_of, products_of
from ignis.server.loading import text_of_model

PAGE_TOKENS = 64
SCORED_ROWS = 32  # lanes of a scoring load: logits are computed for as many rows at once

Rows = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How the model is loaded for a run."""

    model: str | RandomModel
    device: str
    threads: int
    activations: str
    products: str
    kernels: str
    embedding: str
    kv_format: str
    chunk_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis bench`."""
    parser.usage = "%(prog)s [MODEL] [options]"
    add_model_argument(parser)
    rows = ", ".join(scenario.name for scenario in rates.SCENARIOS)
    add = parser.add_argument
    add(
        "--synthetic",
        metavar="GEOMETRY",
        help=f"random weights instead of a model: {', '.join(geometries.GEOMETRIES)}",
    )
    add(
        "--format",
        choices=geometries.FORMATS,
        help="format of its matrices (bf16)",
    )
    add("--threads", type=int, metavar="N", help="the same as --cpu-threads")
    add("--repetitions", type=int, default=5, metavar="N", help="timed runs of each row (5)")
    add("--only", action="append", metavar="ROW", help=f"this row only; repeatable. Rows: {rows}")
    add("--perplexity", metavar="FILE", type=Path, help="score this text instead of timing")
    add("--json", metavar="FILE", help="write the record to FILE; - for standard output")
    add_option_flags(parser, ("", "model", "cpu", "cuda", "cache"))


def main(args: argparse.Namespace) -> int:
    """Measure, print a table, and write the record; the exit status."""
    config = config_from(args)
    if args.repetitions < 1:
        raise ConfigError("--repetitions must be at least 1")
    # The table goes to standard error where the record takes standard output.
    console = Console(stderr=args.json == "-")
    if args.format and not args.synthetic:
        raise ConfigError("--format is the format of --synthetic, which is missing")
    matrices = args.format or geometries.FORMATS[0]
    model: str | RandomModel
    if args.synthetic:
        refuse_beside_synthetic(config, args)
        model = geometries.random_model(args.synthetic, matrices)
        name = f"{args.synthetic} {matrices}, random weights"
    else:
        path = fetch_if_missing(config.model.path, config.cache_folder, Console(stderr=True))
        model, name = str(path), config.model.path
    device = device_to_run(config)
    options = LoadOptions(
        model=model,
        device=device.kind,
        threads=args.threads or config.cpu.threads or physical_cores(),
        activations=activations_of(config, device.kind),
        products=products_of(config, device.kind),
        kernels=config.cuda.kernels,
        kv_format=config.model.kv_format,
        embedding=config.model.embedding_residency,
        chunk_tokens=config.model.prefill_chunk or device.chunk_tokens,
    )
    if args.perplexity:
        measured = run_perplexity(config, options, args.perplexity, args.only, console)
    else:
        measured = run_rates(options, args.only, args.repetitions, console)
    record = {
        "model": name,
        "threads": options.threads,
        "activations": options.activations,
        "products": options.products,
        "kernels": options.kernels,
        "kv_format": options.kv_format,
        "embedding_residency": options.embedding,
        "prefill_chunk": options.chunk_tokens,
        **measured,
        "machine": describe_machine().record(),
    }
    text = json.dumps(record, indent=2) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    elif args.json:
        Path(args.json).write_text(text, encoding="utf-8")
    return 0


def refuse_beside_synthetic(config: Config, args: argparse.Namespace) -> None:
    """Raises ConfigError for what random weights cannot be asked."""
    if config.named("model.path"):
        raise ConfigError(f"--synthetic takes the place of a model; {config.model.path} is named")
    if args.perplexity:
        raise ConfigError("--perplexity of random weights says nothing; leave out --synthetic")


def load(options: LoadOptions, lanes: int, pages_a_lane: int, pages: int) -> Engine:
    """Plans and loads the model for `lanes` sequences of at most `pages_a_lane` pages."""
    limits = Limits(lanes, options.chunk_tokens, pages_a_lane * PAGE_TOKENS, pages)
    device = device_options(
        options.device,
        threads=options.threads,
        kv_format=options.kv_format,
        activations=options.activations,
        products=options.products,
        kernels=options.kernels,
        embedding=options.embedding,
    )
    with native_errors():
        need = needs(options.model, limits, device)
        lines = dict(need.lines) | dict(device.measured(options.model))
        plan = [*lines.items(), ("kv_pool", pages * need.kv_page_bytes)]
        return Engine.load(options.model, limits, device, plan)


def run_rates(
    options: LoadOptions, only: list[str] | None, repetitions: int, console: Console
) -> dict[str, object]:
    """Times the scenarios and prints one row for each."""
    known = [scenario.name for scenario in rates.SCENARIOS]
    _check_names(only, known)
    scenarios = tuple(s for s in rates.SCENARIOS if not only or s.name in only)
    engine = load(
        options,
        lanes=max(s.lanes for s in scenarios),
        pages_a_lane=max(s.pages(PAGE_TOKENS) for s in scenarios),
        pages=max(s.pages(PAGE_TOKENS) * s.lanes for s in scenarios),
    )
    table = Table(title=f"{engine.description}: tokens a second, mean ± sd of {repetitions}")
    table.add_column("test")
    table.add_column("tok/s", justify="right")
    table.add_column("why", style="dim")
    rows: Rows = []
    bench = rates.Bench(engine, options.chunk_tokens)
    with console.status("measuring"):
        for rate in bench.run(scenarios, repetitions):
            name = rate.scenario.name
            table.add_row(name, f"{rate.mean():.1f} ± {rate.deviation():.1f}", rate.scenario.why)
            samples = [round(sample, 3) for sample in rate.samples]
            rows.append({"test": name, "mean": round(rate.mean(), 3), "samples": samples})
    console.print(table)
    return {"device": engine.description, "tokens_a_second": rows}


def run_perplexity(
    config: Config, options: LoadOptions, text: Path, only: list[str] | None, console: Console
) -> dict[str, object]:
    """Scores the text by each procedure, beside the reference that lies next to it, if any."""
    _check_names(only, [procedure.name for procedure in perplexity.PROCEDURES])
    content = text.read_bytes()
    assert isinstance(options.model, str), "random weights have no tokenizer"
    tokenizer, _ = text_of_model(config, Path(options.model))
    tokens = tokenizer.encode(content.decode("utf-8"))
    reference = read_reference(text, content)
    pages = perplexity.LONGEST // PAGE_TOKENS + 1
    engine = load(options, SCORED_ROWS, pages, pages)
    table = Table(title=f"{engine.description}: perplexity of {text.name}, {len(tokens):,} tokens")
    for column in ("procedure", "tokens scored", "perplexity", "reference", "difference"):
        table.add_column(column, justify="left" if column == "procedure" else "right")
    rows: Rows = []
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
            cells = [found.procedure, f"{found.tokens_scored:,}", f"{found.perplexity:.4f}"]
            if (expected := reference.get(found.procedure)) is None:
                cells += ["-", "-"]
            else:
                off = found.perplexity / expected - 1
                row |= {"reference": expected, "difference": round(off, 6)}
                cells += [f"{expected:.4f}", f"{off:+.3%}"]
            rows.append(row)
            table.add_row(*cells)
    console.print(table)
    return {
        "device": engine.description,
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


def _check_names(only: list[str] | None, known: list[str]) -> None:
    for name in only or []:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such row; rows are {', '.join(known)}")
