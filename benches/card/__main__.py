"""Rates of the CUDA device on the card of this machine: `python -m benches.card`.

Random weights of a real geometry: what a kernel does with a value does not depend on the value.
Prints one JSON object a line, the last of which is the whole record. Without a card it fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benches.card.loaded import Loaded, card_options
from benches.card.weights import QWEN3_8B, write_gguf
from benches.record import commit
from ignis import _native

PROMPT = 2048


def rates(path: Path, read: int) -> dict[str, object]:
    """Prefill and decode rates; `read` bytes of weights are read for a decoded token."""
    begun = time.perf_counter()
    model = Loaded(str(path), _native.Limits(8, PROMPT, 32768, 8 * 64 + 512))
    load_s = time.perf_counter() - begun
    greedy = _native.Sampling(temperature=0.0)
    drawn = _native.Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=3)
    prompt = [(7 * i) % 150000 for i in range(PROMPT)]

    def decode_ms(lanes: list[int], steps: int = 24) -> float:
        model.decode(lanes, 4)
        begun = time.perf_counter()
        model.decode(lanes, steps)
        return (time.perf_counter() - begun) / steps * 1e3

    model.prefill(0, prompt, greedy, 64, PROMPT)
    model.engine.release(0)
    begun = time.perf_counter()
    first = model.prefill(0, prompt, greedy, 128, PROMPT)
    prefill_s = time.perf_counter() - begun
    one = decode_ms([0])
    for lane in range(1, 8):
        assert model.prefill(lane, prompt, greedy, 128, PROMPT) == first
    eight = decode_ms(list(range(8)))
    model.engine.release(0)
    model.prefill(0, prompt, drawn, 128, PROMPT)
    sampled = decode_ms([0])
    return {
        f"prefill_{PROMPT}_tok_s": round(PROMPT / prefill_s),
        "decode_1_ms": round(one, 3),
        "decode_1_tok_s": round(1e3 / one, 1),
        "decode_1_sampled_ms": round(sampled, 3),
        "read_gb": round(read / 1e9, 2),
        "read_tb_s": round(read / one / 1e9, 3),
        "decode_8_ms": round(eight, 3),
        "decode_8_tok_s": round(8e3 / eight, 1),
        "load_s": round(load_s, 2),
        "planned_mib": round(model.planned / 2**20, 1),
        "driver_says_mib": round((_native.process_bytes() or 0) / 2**20, 1),
    }


def main() -> int:
    """Time each format in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="BF16,Q8_0,Q4_K", help="formats to time")
    parser.add_argument("--layers", type=int, default=QWEN3_8B[5])
    parser.add_argument("--folder", type=Path, help="where checkpoints are made (a temporary one)")
    args = parser.parse_args()
    card = card_options().check_cuda()
    record: dict[str, object] = {
        "model": f"random weights of qwen3-8b, {args.layers} layers",
        "card": card.name,
        "capability": card.capability,
        "driver_cuda": card.driver,
        "nvrtc": card.nvrtc,
        "commit": commit(),
        "command": " ".join(["python -m benches.card", *sys.argv[1:]]),
    }
    rows = []
    for kind in args.weights.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / f"{kind}.gguf"
            read = write_gguf(path, kind, (*QWEN3_8B[:5], args.layers, QWEN3_8B[6]))
            rows.append({"weights": kind, **rates(path, read)})
        print(json.dumps(rows[-1]), flush=True)
    print(json.dumps(record | {"rows": rows}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
