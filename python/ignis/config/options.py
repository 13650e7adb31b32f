"""The table of options: every one there is, declared once.

A value of None means "decided at load from the model and the device"; the plan holds what was
decided. Sizes are bytes, times are seconds.
"""

# ruff: noqa: RUF009 - `option` declares a field, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ignis.config.kinds import (
    Address,
    Bind,
    Choice,
    Count,
    Number,
    Place,
    Pool,
    PoolSize,
    Size,
    Switch,
    Text,
)
from ignis.config.option import Option, declared_options, option

FLASH_NEXT = "Flash-Next models"
OFFLOADED = "Flash-Next models whose experts do not all fit on the device"
PINNED = "devices with memory of their own; on the CPU device vram.headroom_bytes is the margin"
SERVER = "ignis serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOptions:
    """Options that belong to no group."""

    device: str = option(
        Choice(("auto", "cpu", "cuda")),
        "auto",
        "Where the model runs. auto takes the card if it can be used, runs the model and holds it, "
        "else the CPU, and says why; a device you name is used or the start is refused.",
    )
    profile: str | None = option(
        Text("NAME"),
        None,
        "A named set of defaults: a built-in one, or one from `profiles` in the configuration "
        "file. Anything you set yourself wins over it.",
    )
    traceback: bool = option(
        Switch(),
        "off",
        "Show the Python traceback of an error instead of one line.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and what it is loaded for."""

    path: str = option(
        Text("MODEL"),
        "smollm2-135m",
        "The model: a GGUF file, a folder with config.json and safetensors files, an id of "
        "`ignis models list`, or hf:OWNER/NAME.",
        flag_alias="--model",
    )
    id: str | None = option(
        Text("NAME"),
        None,
        "The name clients use for the model.",
        default_note="the catalogue id, or the name of the file or folder",
    )
    max_context: int | None = option(
        Count(1, 2**31, suffixes=True, metavar="TOKENS"),
        None,
        "The longest sequence in tokens, prompt and answer together. At most what the model was "
        "trained for. Left alone, it is lowered when memory does not hold it.",
        default_note="what the model was trained for, lowered to what fits",
    )
    default_max_tokens: int = option(
        Count(1, 2**31, suffixes=True, metavar="TOKENS"),
        "8192",
        "The longest answer in tokens when a request names none; the context's remainder if less. "
        "A request reserves room for its prompt and this much.",
    )
    lanes: int | None = option(
        Count(1, 1024),
        None,
        "Sequences generated at the same time. Left alone, it is lowered when memory does not "
        "hold them.",
        default_note="4 on the CPU, 8 on a GPU",
    )
    prefill_chunk: int | None = option(
        Count(64, 65536, step=64, metavar="TOKENS"),
        None,
        "Prompt tokens computed at once, a multiple of 64. Smaller takes less workspace and lets "
        "running answers go on sooner; larger reads prompts faster.",
        default_note="512 on the CPU, 1024 on a GPU",
    )
    decode_share: int = option(
        Count(0, 99, metavar="PERCENT"),
        "50",
        "The percentage of the engine's time that running answers keep while prompts are read, "
        "from 0 (prompts go first) to 99 (answers go first).",
    )
    kv_format: str = option(
        Choice(("bf16", "f32")),
        "bf16",
        "How keys and values are stored: bf16, or f32 at twice the bytes for exact comparisons.",
    )
    embedding_residency: str = option(
        Choice(("host", "device")),
        "host",
        "Where a card finds the embedding table: in pinned host memory, of which a round reads a "
        "few rows, or on the device. A table that is the output's matrix too is always on the "
        "device.",
        applies_to="GPUs, and models whose table is not the output's matrix",
    )
    chat_template: Path | None = option(
        Place("FILE"),
        None,
        "A Jinja chat template to use instead of the model's own.",
        default_note="the model's own",
    )
    host_margin_bytes: int = option(
        Size(),
        "6G",
        "RAM that the plan of host memory leaves to everything else.",
        applies_to=PINNED,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VramOptions:
    """The memory of the device, which on the CPU is RAM: what the process may hold."""

    headroom_bytes: int = option(
        Size(),
        "1536M",
        "Leave this much of the device memory free at start to others; the rest is the budget. "
        "Not with vram.budget_bytes.",
    )
    budget_bytes: int | None = option(
        Size(minimum=1),
        None,
        "The device memory the whole process may hold, weights included. More than is free "
        "refuses the start. Not with vram.headroom_bytes.",
        default_note="free at start minus vram.headroom_bytes",
    )
    allow_oversubscription: bool = option(
        Switch(),
        "off",
        "With vram.budget_bytes only: start above free memory, below the plan's minimum, or where "
        "a card's driver took more than was planned, with a warning instead of a refusal.",
    )
    kv_pool_bytes: PoolSize | None = option(
        Pool(),
        None,
        "The KV pool, in bytes or tokens (256Ktok). The rest of the budget then stays unused.",
        default_note="the rest of the budget; on the CPU at most every lane's whole context",
    )
    adapt_spare_tokens: int = option(
        Count(0, 2**31, suffixes=True, metavar="TOKENS"),
        "65536",
        "At more than one lane, keep a context that the load lowered only if the KV pool holds it "
        "and a second request of this many tokens (of one whole context, if that is less). 0: one "
        "sequence is enough.",
        applies_to="models held whole on the device",
    )
    allow_expert_cache_below_floor: bool = option(
        Switch(),
        "off",
        "Start with an expert cache below its 12 GiB floor, with a warning.",
        applies_to=OFFLOADED,
        missing=True,
    )
    pinned_expert_bytes: int = option(
        Size(),
        "0",
        "Hold the most used experts in the expert cache for the whole load, up to this much.",
        applies_to=FLASH_NEXT,
        missing=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseOptions:
    """Keeping what was computed for a prompt, for the next one that begins alike."""

    prompt: bool = option(
        Switch(bare=False),
        "on",
        "Keep what was computed of a prompt, and begin a later prompt that starts alike from it. "
        "off: nothing is captured or matched, unless you name retained slots; those then serve "
        "shared prefixes alone.",
    )
    retained_device: int = option(
        Count(0, 32768),
        "0",
        "Retained slots in device memory, counted in the plan and used before any in host memory. "
        "Each also holds a page of the KV pool.",
    )
    retained_host: int | None = option(
        Count(0, 32768),
        None,
        "Retained slots in one block of host memory reserved at start. Each also holds a page of "
        "the KV pool. Left alone, it is lowered when host memory does not hold it.",
        default_note="two per lane; 0 with reuse.prompt off",
    )
    retained_interactive_ttl: float = option(
        Number(),
        "300",
        "Idle seconds after which a checkpoint of an interactive conversation in KV-RAM ranks as "
        "an agent's. Needs reuse.prompt.",
    )
    kv_host_pool_bytes: int = option(
        Size(),
        "2G",
        "KV-RAM: one block of host memory, reserved at start, for sequences that were moved out "
        "and for retained state. Whole windows of it are used; 0 turns it off. Left alone, it is "
        "lowered when host memory does not hold it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDiskOptions:
    """KV-disk, the file for sequences that were moved out and for retained state."""

    bytes: int = option(
        Size(),
        "0",
        "Bytes of the file, all of which the volume reserves at start; 0 turns KV-disk off. "
        "Retained state in it serves the next start.",
    )
    path: Path | None = option(
        Place("FOLDER"),
        None,
        "The folder of that file. One process uses a folder at a time.",
        default_note="the folder kv in the cache folder",
    )
    margin_bytes: int = option(
        Size(),
        "10G",
        "Bytes that stay free on that file's volume; a start that would leave less is refused.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOptions:
    """How the CPU device runs."""

    threads: int | None = option(
        Count(1, 1024),
        None,
        "Worker threads. More than the physical cores seldom helps.",
        default_note="the physical cores this process may use",
        applies_to="device cpu",
    )
    activations: str = option(
        Choice(("int8", "f32")),
        "int8",
        "Arithmetic on quantised weights: int8 products, or f32, which is exact and slower.",
        applies_to="device cpu",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """How an NVIDIA card runs."""

    activations: str = option(
        Choice(("bf16", "f32")),
        "bf16",
        "Arithmetic of products: inputs and weights rounded to bf16, or f32, which keeps 16 bits "
        "of both and is slower.",
        applies_to="device cuda",
    )
    products: str = option(
        Choice(("same", "fast")),
        "same",
        "Products of many rows: same, to the bits that few rows have, or fast, which long chunks "
        "of a prompt gain from; then last digits depend on how a prompt is cut into chunks, and "
        "on what is computed beside it.",
        applies_to="device cuda of compute capability 9.0, with activations in bf16",
    )
    kernels: str = option(
        Choice(("own", "portable")),
        "own",
        "Kernels of long prompts: own, which are made for the card's generation where there are "
        "such, or portable, which run on every card, to the same bits; to compare them, or where "
        "one is suspected.",
        applies_to="device cuda of compute capability 9.0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The HTTP server."""

    bind: Bind = option(
        Address(),
        "127.0.0.1:8000",
        "Where to listen: host:port, [ipv6]:port or unix:PATH. An address that other machines "
        "can reach needs server.api_key.",
        applies_to=SERVER,
    )
    api_key: str | None = option(
        Text("KEY"),
        None,
        "The key every request must carry. Better in the variable or the file than as a flag, "
        "which other users of the machine can read.",
        secret=True,
        applies_to=SERVER,
    )
    request_timeout: float = option(
        Number(0.001),
        "600",
        "Seconds after which a request that does not stream is given up.",
        applies_to=SERVER,
    )
    queue_max: int = option(
        Count(0, 1_000_000),
        "256",
        "Requests that may wait for a lane; one more is answered 503 with Retry-After.",
        applies_to=SERVER,
    )
    body_max_bytes: int = option(
        Size(minimum=1, maximum=2**40),
        "16M",
        "The largest request body.",
        applies_to=SERVER,
    )
    keepalive_seconds: float = option(
        Number(0.001),
        "15",
        "Silence after which a stream sends a comment, so that proxies keep it open.",
        applies_to=SERVER,
    )
    drain_timeout: float = option(
        Number(),
        "30",
        "Seconds that running requests get to finish after SIGTERM.",
        applies_to=SERVER,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The structured log on standard output."""

    format: str = option(
        Choice(("auto", "console", "json")),
        "auto",
        "auto is console on a terminal and one JSON object a line otherwise.",
    )
    level: str = option(
        Choice(("debug", "info", "warning", "error")),
        "info",
        "The least severe events to print.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Files that can be fetched again."""

    dir: Path | None = option(
        Place("FOLDER"),
        None,
        "The folder for fetched models, and for KV-disk where kv_disk.path names no other.",
        default_note="the platform's, ~/.cache/ignis on Linux",
    )


GROUPS: dict[str, type] = {
    "": RootOptions,
    "model": ModelOptions,
    "vram": VramOptions,
    "cpu": CpuOptions,
    "cuda": CudaOptions,
    "server": ServerOptions,
    "reuse": ReuseOptions,
    "kv_disk": KvDiskOptions,
    "log": LogOptions,
    "cache": CacheOptions,
}

OPTIONS: dict[str, Option] = {
    declared.key: declared
    for group, options_class in GROUPS.items()
    for declared in declared_options(group, options_class)
}

# Names of other versions, and what to say to those who use them.
REMOVED: dict[str, str] = {
    "retained_slots": "was replaced by reuse.retained_device (slots in device memory) and "
    "reuse.retained_host (slots in pinned host memory)",
    "reuse.retained_slots": "was replaced by reuse.retained_device (slots in device memory) and "
    "reuse.retained_host (slots in pinned host memory)",
    "decode_lanes": "is called model.lanes",
    "model.decode_lanes": "is called model.lanes",
    "spec.decode_lanes": "is called model.lanes",
    "model.artifact": "is called model.path",
}

# Built-in profiles: defaults for a card. A value whose option has nothing to apply to is passed
# over in silence, because nobody named it.
PROFILES: dict[str, dict[str, object]] = {
    "rtx5090": {
        "model.lanes": 8,
        "model.prefill_chunk": 2048,
        "vram.headroom_bytes": "1536M",
        "vram.pinned_expert_bytes": "2G",
    },
    "rtxpro6000": {"model.lanes": 8, "model.prefill_chunk": 2048},
    "rtx-24gb": {"model.lanes": 8, "model.prefill_chunk": 1024},
    "rtx-16gb": {"model.lanes": 2, "model.prefill_chunk": 1024},
}
