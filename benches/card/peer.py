"""transformers on the same geometry: `python -m benches.card.peer GEOMETRY`.

bf16, random weights, torch's own attention (SDPA). Decode runs as one CUDA graph over a static
cache where that can be recorded, else as plain calls; `how` says which. torch.compile is off: it
takes minutes. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benches.card.rows import FULL, ROWS, Sizes
from ignis.cli.geometries import geometry

ROUNDS_BEFORE = 8
PEER_ROWS = ("decode-1", "decode-8", "decode-1-deep", "prefill", "prefill-deep")


class Peer:
    """A model of transformers on the card."""

    def __init__(self, name: str, sizes: Sizes) -> None:
        import torch
        import transformers

        self.torch, self.transformers, self.sizes = torch, transformers, sizes
        fields = {key: value for key, value in geometry(name).items() if key != "model_type"}
        fields["max_position_embeddings"] = max(fields["max_position_embeddings"], sizes.context)
        config = transformers.AutoConfig.for_model(geometry(name)["model_type"], **fields)
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = model.to_empty(device="cuda")
        model.tie_weights()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, config.hidden_size**-0.5)
            else:
                parameter.data.fill_(1.0)
        # Frequencies are no parameters: made again, where `to_empty` left them without values.
        with torch.device("cuda"):
            model.model.rotary_emb = type(model.model.rotary_emb)(config)
        self.model, self.config = model.eval(), config
        self.how = "a CUDA graph over a static cache"

    def tokens(self, lanes: int, count: int) -> Any:
        """Random ids."""
        shape = (lanes, count)
        return self.torch.randint(0, self.config.vocab_size, shape, device="cuda")

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds of `work`, to its end on the card."""
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        self.torch.cuda.synchronize()
        return time.perf_counter() - began

    def forward(self, ids: Any, cache: Any, at: int) -> Any:
        """One call over ids that stand at a position."""
        places = self.torch.arange(at, at + ids.shape[1], device="cuda")
        return self.model(
            input_ids=ids,
            position_ids=places.unsqueeze(0).expand(ids.shape[0], -1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )

    def prefill(self) -> dict[str, Any]:
        """A chunk at the start."""
        samples = []
        for _ in range(self.sizes.repetitions + 1):
            ids = self.tokens(1, self.sizes.prompt)
            cache = self.transformers.DynamicCache(config=self.config)
            samples.append(self.timed(lambda ids=ids, cache=cache: self.forward(ids, cache, 0)))
        seconds = statistics.median(samples[1:])
        return {"value": self.sizes.prompt / seconds, "ms": seconds * 1e3}

    def deep(self, wanted: list[str]) -> dict[str, Any]:
        """Chunks around the depth, and decode behind them."""
        sizes = self.sizes
        total = sizes.depth + 2 * sizes.prompt
        cache = self.transformers.DynamicCache(config=self.config)
        samples = []
        for at in range(0, total, sizes.prompt):
            ids = self.tokens(1, sizes.prompt)
            samples.append(self.timed(lambda ids=ids, at=at: self.forward(ids, cache, at)))
        seconds = statistics.median(samples[-3:])
        found = {"prefill-deep": {"value": sizes.prompt / seconds, "ms": seconds * 1e3}}
        if "decode-1-deep" in wanted:
            found["decode-1-deep"] = self.decode(1, total)
        return found

    def decode(self, lanes: int, depth: int) -> dict[str, Any]:
        """Rounds at a depth whose keys and values are zeros: their time does not depend on it."""
        try:
            seconds = self._graph_round(lanes, depth)
            how = self.how
        except Exception as error:  # whatever cannot be recorded runs as plain calls
            how = f"plain calls over a dynamic cache ({type(error).__name__})"
            self.torch.cuda.synchronize()
            seconds = self._plain_round(lanes, depth)
        return {"value": lanes / seconds, "ms": seconds * 1e3, "how": how}

    def _graph_round(self, lanes: int, depth: int) -> float:
        torch, sizes = self.torch, self.sizes
        room = depth + 4 * sizes.rounds
        cache = self.transformers.StaticCache(config=self.config, max_cache_len=room)
        self.forward(self.tokens(lanes, 2), cache, 0)  # makes the cache's tensors
        ids = self.tokens(lanes, 1)
        place = torch.empty((lanes, 1), dtype=torch.long, device="cuda")

        def stand() -> None:
            place.fill_(depth)
            for layer in cache.layers:
                layer.cumulative_length.fill_(depth)

        def step() -> None:
            out = self.model(
                input_ids=ids,
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            ids.copy_(out.logits[:, -1:].argmax(-1))
            place.add_(1)

        stand()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(ROUNDS_BEFORE):
            graph.replay()
        stand()

        def rounds() -> None:
            for _ in range(sizes.rounds):
                graph.replay()
                ids.tolist()  # a server needs each token before the next

        return self.timed(rounds) / sizes.rounds

    def _plain_round(self, lanes: int, depth: int) -> float:
        cache = self.transformers.DynamicCache(config=self.config)
        for at in range(0, depth, self.sizes.prompt):
            count = min(self.sizes.prompt, depth - at)
            self.forward(self.tokens(lanes, count), cache, at)
        ids, at = self.tokens(lanes, 1), depth

        def rounds(count: int) -> None:
            nonlocal ids, at
            for _ in range(count):
                ids = self.forward(ids, cache, at).logits[:, -1:].argmax(-1)
                ids.tolist()
                at += 1

        rounds(ROUNDS_BEFORE)
        return self.timed(lambda: rounds(self.sizes.rounds)) / self.sizes.rounds


def measure(name: str, wanted: list[str], sizes: Sizes) -> dict[str, Any]:
    """The wanted rows, as transformers runs them."""
    peer = Peer(name, sizes)
    found: dict[str, Any] = {}
    with peer.torch.inference_mode():
        if "prefill" in wanted:
            found["prefill"] = peer.prefill()
        if "decode-1" in wanted:
            found["decode-1"] = peer.decode(1, 64)
        if "decode-8" in wanted:
            found["decode-8"] = peer.decode(sizes.lanes, 64)
        if {"prefill-deep", "decode-1-deep"} & set(wanted):
            found |= peer.deep(wanted)
    versions = f"transformers {peer.transformers.__version__}, torch {peer.torch.__version__}"
    return {"geometry": name, "version": versions, "rows": found}


def main() -> int:
    """Measures one geometry."""
    parser = argparse.ArgumentParser(prog="python -m benches.card.peer", description=__doc__)
    parser.add_argument("geometry")
    parser.add_argument("--row", action="append", choices=[*ROWS], help="these rows only")
    args = parser.parse_args()
    print(json.dumps(measure(args.geometry, args.row or list(PEER_ROWS), FULL)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
