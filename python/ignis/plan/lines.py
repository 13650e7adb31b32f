"""The named lines of the plans: their order, and what each is for. Names never change."""

from __future__ import annotations

from dataclasses import dataclass

KV_POOL = "kv_pool"

# In print order. The name is the event field (`<line>_bytes`) and the metric label.
VRAM_LINES: dict[str, str] = {
    "weights": "the model's parameters, in their stored quantisation",
    "workspace": "results between the operations of one round",
    "lane_state": "what a lane keeps besides its keys and values",
    "retained_slots": "state kept of earlier prompts",
    "media_embedding": "encoded images",
    "cuda_context": "the driver's own part",
    "verify_round": "checking drafted tokens",
    "decode_graph": "recorded decode rounds",
    "drafter_round": "drafting tokens",
    "residual": "rounding and library handles",
    "sampling": "logits and the candidates for the next token",
    KV_POOL: "keys and values of the sequences",
}

# In print order; the names are event fields too.
HOST_LINES: dict[str, str] = {
    "retained_host_slots": "state kept of earlier prompts",
    "kv_ram_arena": "KV-RAM: moved sequences and retained state",
    "kv_disk_staging": "windows on their way to and from KV-disk",
    "device_pinned": "what the card reads and writes here: rounds, sums, the embedding table",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plan. `estimated` marks a recorded figure that only a load can measure."""

    name: str
    bytes: int
    purpose: str
    estimated: bool = False
