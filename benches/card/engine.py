"""Rows of one model on one device: `python -m benches.card.engine GEOMETRY FORMAT`.

Drives the core directly, but for `hand-over`, which serves. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from benches.card.loaded import Loaded
from benches.card.rows import FULL, ROWS, SMALL, Load, Sizes
from ignis import _native
from ignis.cli.geometries import FORMATS, geometry, random_model
from ignis.engine import EngineOptions, EngineService, SamplingParams, SequenceRequest, native_core
from ignis.engine.metrics import NoMetrics, RoundStats

# Bits that a value takes in a file.
BITS = {"bf16": 16, "q8_0": 8.5, "q4_k": 4.5}
GREEDY = _native.Sampling(temperature=0.0)
SAMPLED = _native.Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=3)
KV_RAM, OUT_LANDED, IN_LANDED = 0, 0, 2

Found = dict[str, dict[str, Any]]


def bytes_read(name: str, matrices: str) -> int:
    """Bytes of weights that a decode round reads: all but a table that is no matrix too."""
    shape = geometry(name)
    stored = random_model(name, matrices).stored_bytes()
    if shape["tie_word_embeddings"]:
        return stored
    return stored - int(shape["vocab_size"] * shape["hidden_size"] * BITS[matrices] / 8)


def limits_of(sizes: Sizes) -> _native.Limits:
    """What a load must hold for the rows: the deep sequence, and every lane near its start."""
    near = -(-(64 + 3 * sizes.rounds) // 64) + 1
    pages = -(-sizes.context // 64) + sizes.lanes * near
    pages = max(pages, 2 * (sizes.moved // 64 + 2))
    return _native.Limits(sizes.lanes, sizes.prompt, sizes.context, pages)


@dataclass(frozen=True, slots=True)
class Where:
    """What a model runs on: "cuda" or "cpu", and which kernels of a card (`cuda.kernels`)."""

    device: str = "cuda"
    kernels: str = "own"


class Suite:
    """The rows of one loaded model."""

    def __init__(
        self, name: str, matrices: str, sizes: Sizes, where: Where, moves: bool, load: Load
    ) -> None:
        self.sizes = sizes
        limits = limits_of(sizes)
        context = max(sizes.context, geometry(name)["max_position_embeddings"])
        model = random_model(name, matrices, max_position_embeddings=context)
        page = _native.needs(model, limits, _native.DeviceOptions(where.device)).kv_page_bytes
        image = (sizes.moved // 64 + 2) * page
        tiers = _native.TierOptions(ram_bytes=image + image // 4 + (256 << 20)) if moves else None
        began = time.perf_counter()
        self.model = Loaded(
            model,
            limits,
            device=where.device,
            tiers=tiers,
            table=load.table,
            products=load.products,
            kernels=where.kernels,
        )
        self.load_s = time.perf_counter() - began
        self.weight_bytes = bytes_read(name, matrices)
        self.kv_token_bytes = self.model.page_bytes / 64
        self.random = random.Random(1)

    def prompt(self, tokens: int) -> list[int]:
        """Random tokens."""
        vocab = self.model.engine.vocab
        return [self.random.randrange(vocab) for _ in range(tokens)]

    def decode(self, lanes: int, depth: int, sampling: Any = GREEDY) -> dict[str, Any]:
        """Rounds of `lanes` sequences at a depth; each sample seats them anew."""
        sizes, model = self.sizes, self.model
        every = list(range(lanes))
        samples = []
        for _ in range(sizes.repetitions):
            for lane in every:
                model.prefill(lane, self.prompt(depth), sampling, 2 * sizes.rounds, sizes.prompt)
            samples.append(self._rounds(every))
            for lane in every:
                model.engine.release(lane)
        return self._decoded(samples, lanes, depth + sizes.rounds // 2)

    def _rounds(self, lanes: list[int]) -> float:
        """Seconds of a decode round, after some that are not timed."""
        self.model.decode(lanes, max(1, self.sizes.rounds // 8))
        return self._timed(lambda: self.model.decode(lanes, self.sizes.rounds)) / self.sizes.rounds

    def _decoded(self, samples: list[float], lanes: int, depth: int) -> dict[str, Any]:
        seconds = statistics.median(samples)
        read = self.weight_bytes + lanes * depth * self.kv_token_bytes
        return {
            "value": lanes / seconds,
            "ms": seconds * 1e3,
            "read_bytes": round(read),
            "read_tb_s": read / seconds / 1e12,
            "samples_ms": [round(sample * 1e3, 4) for sample in samples],
        }

    def prefill(self) -> dict[str, Any]:
        """One chunk at the start of a sequence; once more than is timed."""
        samples = []
        for _ in range(self.sizes.repetitions + 1):
            self.model.seat(0, self.prompt(self.sizes.prompt), GREEDY, 1)
            samples.append(self._chunk())
            self.model.engine.release(0)
        return self._prefilled(samples[1:])

    def deep(self) -> Found:
        """Three chunks around the depth, and decode behind them."""
        sizes, model = self.sizes, self.model
        total = sizes.depth + 2 * sizes.prompt  # the second of three chunks begins at the depth
        model.seat(0, self.prompt(total), GREEDY, 2 * sizes.rounds)
        model.chunks(0, sizes.depth - sizes.prompt, sizes.prompt)
        chunks = [self._chunk() for _ in range(3)]
        rounds = [self._rounds([0])]
        model.engine.release(0)
        return {
            "prefill-deep": self._prefilled(chunks),
            "decode-1-deep": self._decoded(rounds, 1, total + sizes.rounds // 2),
        }

    def _chunk(self) -> float:
        tokens = self.sizes.prompt
        return self._timed(lambda: self.model.chunks(0, tokens, tokens))

    def _prefilled(self, samples: list[float]) -> dict[str, Any]:
        seconds = statistics.median(samples)
        return {
            "value": self.sizes.prompt / seconds,
            "ms": seconds * 1e3,
            "samples_ms": [round(sample * 1e3, 3) for sample in samples],
        }

    def moves(self) -> Found:
        """A sequence to KV-RAM and back, in windows that follow each other without a round."""
        model, engine = self.model, self.model.engine
        tokens = self.prompt(self.sizes.moved)
        out, back = [], []
        for _ in range(self.sizes.repetitions + 1):
            first = model.prefill(0, tokens, GREEDY, 64, self.sizes.prompt)
            image = engine.move_out(0, KV_RAM)
            out.append(self._timed(lambda: self._until(OUT_LANDED)))
            held = array("I", [*tokens, first])
            pages = (len(tokens) + 64) // engine.page_tokens + 1
            engine.move_in(image, 0, held, pages, GREEDY, len(tokens))
            back.append(self._timed(lambda: self._until(IN_LANDED)))
            model.decode([0], 1)
            engine.release(0)
            engine.drop_image(image)
        payload = -(-self.sizes.moved // 64) * model.page_bytes
        return {
            name: {"value": payload / statistics.median(samples[1:]) / 1e9, "bytes": payload}
            for name, samples in (("move-out", out), ("move-in", back))
        }

    def beside_move(self) -> dict[str, Any]:
        """Decode rounds of one lane while another lane's sequence goes to KV-RAM and back, and
        alone at the same depths: each round begun, the move advanced once, the round finished, as
        in service."""
        sizes, model, engine = self.sizes, self.model, self.model.engine
        tokens = self.prompt(sizes.moved)
        first = model.prefill(1, tokens, GREEDY, 64, sizes.prompt)
        held = array("I", [*tokens, first])
        pages = (len(tokens) + 64) // engine.page_tokens + 1
        alone: list[float] = []
        beside_out: list[float] = []
        beside_in: list[float] = []
        advances: list[float] = []
        for _ in range(sizes.repetitions):
            self._seat_beside()
            image = engine.move_out(1, KV_RAM)
            beside_out += self._rounds_beside(sizes.rounds, advances)
            self._seat_beside()
            engine.move_in(image, 1, held, pages, GREEDY, len(tokens))
            found = self._rounds_beside(sizes.rounds, advances)
            beside_in += found
            self._seat_beside()
            alone += self._rounds_beside(len(found), [])
            engine.drop_image(image)
        engine.release(1)
        # Not medians: not every round has windows beside it.
        out, back = statistics.mean(beside_out), statistics.mean(beside_in)
        one = statistics.mean(alone)
        return {
            "value": 100 * (max(out, back) / one - 1),
            "alone_ms": one * 1e3,
            "out_ms": out * 1e3,
            "in_ms": back * 1e3,
            "in_rounds": len(beside_in) / sizes.repetitions,
            "advance_us": statistics.mean(advances) * 1e6,
            "advance_us_max": max(advances) * 1e6,
        }

    def _seat_beside(self) -> None:
        self.model.prefill(0, self.prompt(64), GREEDY, 2 * self.sizes.rounds, self.sizes.prompt)

    def _rounds_beside(self, most: int, advances: list[float]) -> list[float]:
        """Times of `most` rounds of lane 0, which is emptied: of those under way in a move only,
        if one is, which then ends. `advances` takes the times of the advance in each."""
        engine, lane = self.model.engine, array("I", [0])
        moving = any(engine.moving())
        rounds: list[float] = []
        while len(rounds) < most and moving == any(engine.moving()):
            began = time.perf_counter()
            engine.begin_round(-1, 0, lane, 1)
            advance = time.perf_counter()
            engine.advance(0)
            advances.append(time.perf_counter() - advance)
            engine.finish_round(self.model.out)
            rounds.append(time.perf_counter() - began)
        while any(engine.moving()):
            engine.advance(1000)
        engine.release(0)
        return rounds

    def _until(self, wanted: int) -> None:
        while True:
            for event, _, _, text in self.model.engine.advance(0):
                assert event == wanted, text
                return

    def hand_over(self) -> dict[str, Any]:
        """A round's time in service beside the core's own, back to back, at the same depths."""
        sizes = self.sizes
        rounds = 2 * sizes.rounds
        prompts = [self.prompt(64) for _ in range(sizes.lanes)]
        served, gap = asyncio.run(self._serve(prompts, rounds))
        for lane, prompt in enumerate(prompts):
            self.model.prefill(lane, prompt, SAMPLED, rounds + 64, sizes.prompt)
        lanes = list(range(sizes.lanes))
        self.model.decode(lanes, rounds // 4)
        alone = self._timed(lambda: self.model.decode(lanes, rounds // 2)) / (rounds // 2)
        for lane in lanes:
            self.model.engine.release(lane)
        return {
            "value": max(0.0, served / alone - 1) * 100,
            "served_ms": served * 1e3,
            "alone_ms": alone * 1e3,
            "gap_us": None if gap is None else gap * 1e6,
        }

    async def _serve(self, prompts: list[list[int]], tokens: int) -> tuple[float, float | None]:
        """Seconds of a round with every lane, in the middle half of the answers, and between
        rounds."""
        rounds = _Rounds(len(prompts))
        options = EngineOptions(
            context_tokens_max=self.sizes.context,
            chunk_tokens_max=self.sizes.prompt,
            default_tokens_max=tokens,
            queue_max=len(prompts),
            decode_share_percent=50,
            reuse_prompt=False,
        )
        sampling = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=3)

        async def ask(service: EngineService[Any, Any], number: int, prompt: list[int]) -> None:
            request = SequenceRequest(f"{number}", tuple(prompt), tokens, sampling)
            async with service.submit(request) as stream:
                async for _ in stream:
                    pass

        async with EngineService(native_core(self.model.engine), options, rounds) as service:
            await asyncio.gather(*(ask(service, *one) for one in enumerate(prompts)))
        ends = rounds.ends
        assert len(ends) >= 8, f"every lane decoded together in {len(ends)} rounds only"
        first, last = len(ends) // 4, len(ends) * 3 // 4
        gap = statistics.median(rounds.gaps) if rounds.gaps else None
        return (ends[last] - ends[first]) / (last - first), gap

    def memory(self) -> dict[str, Any]:
        """What the driver counts to this process beyond the plan; None where it does not say."""
        counted = _native.process_bytes()
        planned = self.model.planned
        value = None if counted is None else (counted - planned) / 2**20
        return {"value": value, "planned_bytes": planned, "driver_bytes": counted}

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


class _Rounds(NoMetrics):
    """When rounds of every lane ended."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self.ends: list[float] = []
        self.gaps: list[float] = []  # as the engine counts them, where it does

    def round_done(self, stats: RoundStats) -> None:
        if stats.decode_lanes == self._lanes:
            self.ends.append(time.perf_counter())
            if (gap := getattr(stats, "gap_s", None)) is not None:
                self.gaps.append(gap)


def measure(
    name: str, matrices: str, wanted: Collection[str], sizes: Sizes, where: Where
) -> dict[str, Any]:
    """The wanted rows, and what the first of them were loaded with. Rows that are loaded alike
    share a load, made when the one before it is gone."""
    alike: dict[Load, list[str]] = {}
    for row in wanted:
        alike.setdefault(ROWS[row].load, []).append(row)
    loads = [
        _measure_load(name, matrices, rows, sizes, where, load) for load, rows in alike.items()
    ]
    rows = {row: values for load in loads for row, values in load["rows"].items()}
    return loads[0] | {"rows": rows}


def _measure_load(
    name: str, matrices: str, wanted: Collection[str], sizes: Sizes, where: Where, load: Load
) -> dict[str, Any]:
    moving = {"move-out", "move-in", "beside-move"} & set(wanted)
    suite = Suite(name, matrices, sizes, where, bool(moving), load)
    one: dict[str, Callable[[], dict[str, Any]]] = {
        "decode-1": lambda: suite.decode(1, 64),
        "decode-8": lambda: suite.decode(sizes.lanes, 64),
        "decode-1-host": lambda: suite.decode(1, 64),
        "prefill": suite.prefill,
        "prefill-host": suite.prefill,
        "prefill-fast": suite.prefill,
        "hand-over": suite.hand_over,
        "beside-move": suite.beside_move,
    }
    found: Found = {row: work() for row, work in one.items() if row in wanted}
    if "decode-1" in found:
        found["decode-1"]["sampled_ms"] = suite.decode(1, 64, SAMPLED)["ms"]
    if {"prefill-deep", "decode-1-deep"} & set(wanted):
        found |= suite.deep()
    if {"move-out", "move-in"} & set(wanted):
        found |= suite.moves()
    if "memory" in wanted:
        found["memory"] = suite.memory()
    return {
        "geometry": name,
        "format": matrices,
        "device": suite.model.engine.description,
        "load_s": round(suite.load_s, 2),
        "plan": suite.model.lines,
        "rows": {row: values for row, values in found.items() if row in wanted},
    }


def main() -> int:
    """Measures one model."""
    parser = argparse.ArgumentParser(prog="python -m benches.card.engine", description=__doc__)
    parser.add_argument("geometry")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--row", action="append", choices=[*ROWS], help="these rows only")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--kernels", default="own", choices=["own", "portable"])
    parser.add_argument("--small", action="store_true", help="a small run, which says nothing")
    args = parser.parse_args()
    sizes = SMALL if args.small else FULL
    where = Where(args.device, args.kernels)
    found = measure(args.geometry, args.format, args.row or [*ROWS], sizes, where)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
