"""A core without files: a model whose lines are simple functions of what is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ignis.plan import VRAM_LINES, Model
from ignis.plan.ask import Ask, Sizes

MODEL = Model(
    path="tiny.gguf",
    name="Tiny",
    architecture="llama",
    format="gguf",
    quantisation="Q4_1 210",
    parameters=134_515_008,
    stored_bytes=98_362_432,
    layers=30,
    hidden=576,
    ffn=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab=49_152,
    context_trained=8192,
)


@dataclass
class FakeCore:
    """`PlanCore` with figures near those of a small model; `calls` counts the dry runs.

    `free` is what the device has, and the host beside a device with memory of its own.
    """

    model: Model = MODEL
    free: int = 8 << 30
    weights: int = 98_000_000
    row_bytes: int = 20_000  # of workspace, for each row of a round
    lane_bytes: int = 800_000
    slot_bytes: int = 2_000_000
    table_bytes: int = 30_000_000  # of a table that may stay on the host
    round_bytes: int = 500_000  # pinned for rounds
    token_bytes: int = 23_040
    window_bytes: int = 1 << 20
    disk: int = 1 << 40
    unsuited: str | None = None  # what a card has no kernels for
    calls: int = 0

    def inspect(self, path: str) -> Model:
        return replace(self.model, path=path)

    def misfit(self, path: str, device: str, kv_format: str, activations: str) -> str | None:
        return self.unsuited if device == "cuda" else None

    def free_bytes(self, device: str) -> int:
        return self.free

    def disk_available(self, folder: Path) -> int:
        return self.disk

    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]:
        return (("cuda_context", 500 << 20), ("residual", 4 << 20))

    def close_card(self) -> None:
        pass

    def sizes(self, path: str, device: str, ask: Ask) -> Sizes:
        self.calls += 1
        lines = dict.fromkeys((name for name in VRAM_LINES if name != "kv_pool"), 0)
        on_host = device == "cuda" and ask.embedding == "host"
        lines["weights"] = self.weights - (self.table_bytes if on_host else 0)
        lines["workspace"] = (ask.chunk_tokens + ask.lanes) * self.row_bytes + ask.threads * 4096
        lines["lane_state"] = ask.lanes * self.lane_bytes
        lines["retained_slots"] = ask.retained_device * self.slot_bytes
        lines["decode_graph"] = ask.context_tokens * 8
        page = 64 * self.token_bytes * (2 if ask.kv_format == "f32" else 1)
        context_pages = -(-ask.context_tokens // 64)
        return Sizes(
            tuple(lines.items()),
            page,
            64,
            retained_slot_bytes=self.slot_bytes,
            pinned_bytes=(self.round_bytes if device == "cuda" else 0)
            + (self.table_bytes if on_host else 0),
            image_payload_bytes=context_pages * page + self.slot_bytes,
            window_bytes=self.window_bytes,
        )
