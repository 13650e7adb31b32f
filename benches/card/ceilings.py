"""What the card's memory and units give to others: `python -m benches.card.ceilings GEOMETRY...`.

Through torch: a copy on the card, reading memory (a sum, and a matrix-vector product), bf16
products at the shapes of each geometry, copies from and to pinned memory. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benches.card.rows import FULL
from ignis.cli.geometries import geometry

GIB = 1 << 30


def products(name: str) -> list[tuple[int, int, int]]:
    """(out, in, how many) of every product of a chunk, those of one input together."""
    shape = geometry(name)
    hidden, inner, layers = (
        shape[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    queries = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    return [
        (queries + 2 * keys, hidden, layers),
        (hidden, queries, layers),
        (2 * inner, hidden, layers),
        (hidden, inner, layers),
    ]


def flops(name: str, rows: int) -> int:
    """Operations of the products of a chunk."""
    return sum(2 * rows * out * into * count for out, into, count in products(name))


class Probe:
    """A clock for work on the card."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def seconds(self, work: Callable[[], object], repetitions: int = 10) -> float:
        """Median seconds of `work`, by the card's own clock, after two runs that do not count."""
        torch = self.torch
        samples = []
        for at in range(repetitions + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            if at >= 2:
                samples.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(samples)

    def copy(self) -> float:
        """Bytes a second of a copy on the card, read and written ones together."""
        source = self.torch.zeros(2 * GIB, dtype=self.torch.uint8, device="cuda")
        to = self.torch.empty_like(source)
        return 2 * source.numel() / self.seconds(lambda: to.copy_(source))

    def read(self) -> dict[str, float]:
        """Bytes a second that are read: by a sum, and by a matrix-vector product in bf16."""
        torch = self.torch
        values = torch.ones(GIB, dtype=torch.float32, device="cuda")
        found = {"sum": 4 * values.numel() / self.seconds(values.sum)}
        matrix = values.view(torch.bfloat16).view(-1, 4096)
        x = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
        found["matrix_vector"] = 2 * matrix.numel() / self.seconds(lambda: matrix @ x)
        return found

    def pinned(self) -> dict[str, float]:
        """Bytes a second from and to pinned memory."""
        torch = self.torch
        host = torch.zeros(GIB, dtype=torch.uint8, pin_memory=True)
        card = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
        return {
            "in": GIB / self.seconds(lambda: card.copy_(host, non_blocking=True)),
            "out": GIB / self.seconds(lambda: host.copy_(card, non_blocking=True)),
        }

    def gemm(self, name: str, rows: int) -> dict[str, Any]:
        """Seconds of all products of a chunk, each shape timed with its weights in turn."""
        torch = self.torch
        total = 0.0
        for out, into, count in products(name):
            x = torch.randn(rows, into, dtype=torch.bfloat16, device="cuda")
            weights = [
                torch.randn(out, into, dtype=torch.bfloat16, device="cuda") for _ in range(4)
            ]

            def four(x: Any = x, weights: Any = weights) -> None:
                for weight in weights:
                    torch.nn.functional.linear(x, weight)

            total += self.seconds(four) / 4 * count
        return {"seconds": total, "tflops": flops(name, rows) / total / 1e12}


def measure(names: list[str]) -> dict[str, Any]:
    """Every ceiling."""
    probe = Probe()
    read = probe.read()
    return {
        "torch": probe.torch.__version__,
        "copy": probe.copy(),
        "read": max(read.values()),
        "read_by": read,
        "pinned": probe.pinned(),
        "gemm": {name: probe.gemm(name, FULL.prompt) for name in names},
    }


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benches.card.ceilings", description=__doc__)
    parser.add_argument("geometry", nargs="*", default=["qwen3-8b"])
    print(json.dumps(measure(parser.parse_args().geometry)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
