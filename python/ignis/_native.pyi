"""The Rust core, as Python sees it. Private: `ignis.plan` and `ignis.engine` are its only users.

Sizes are bytes, counts are tokens or pages. Every call that may take long releases the interpreter.
Buffers are flat arrays (`array.array`), preallocated by the caller and written in place.
"""

from array import array
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import final

__all__ = [
    "__version__",
    "CudaCard",
    "CudaFacts",
    "DeviceFaultError",
    "DeviceOptions",
    "DeviceUnavailableError",
    "DeviceUnsuitedError",
    "Engine",
    "FileError",
    "Limits",
    "LoadProgress",
    "MemoryRefusedError",
    "ModelInfo",
    "NativeError",
    "Needs",
    "RandomModel",
    "RoundOut",
    "Sampling",
    "ShapeUnsupportedError",
    "TierOptions",
    "close_card",
    "disk_available",
    "free_bytes",
    "inspect",
    "kernel_units",
    "kernels_made",
    "needs",
    "prefix_chain",
    "process_bytes",
    "read_metadata",
    "witness_next",
]

__version__: str

class NativeError(Exception):
    """Base of what the core raises; its text names file, key or line, found and expected."""

class FileError(NativeError):
    """A model file is missing, damaged, or not what this version reads. Names file and key."""

class ShapeUnsupportedError(NativeError):
    """The model's architecture or a shape in it is not supported."""

class DeviceUnsuitedError(ShapeUnsupportedError):
    """The device has no kernels for an op, a dtype or a shape of the model; another may have."""

class MemoryRefusedError(NativeError):
    """The system did not give the planned memory or file, or a region differs from its line."""

class DeviceUnavailableError(NativeError):
    """There is no such device here, or something that it needs is missing; names the remedy."""

class DeviceFaultError(NativeError):
    """The device failed while running."""

def read_metadata(path: str) -> dict[str, object]:
    """GGUF metadata, or the content of a folder's config.json, as plain Python values.

    Reads headers only. Raises FileError.
    """

@final
class ModelInfo:
    """What the headers of a checkpoint say."""

    format: str  # "gguf" or "safetensors"
    architecture: str  # "llama", "qwen2", "qwen3"
    name: str
    file: str  # the GGUF file or the folder
    stored_bytes: int
    parameters: int
    quantisation: str  # "Q4_1 210, F32 61, Q8_0 1"
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_trained: int

def inspect(path: str) -> ModelInfo:
    """Headers of a checkpoint: a GGUF file (its first megabytes are enough) or a folder."""

@final
class RandomModel:
    """Random weights in the geometry of a config.json, for measuring: taken where a path is."""

    def __new__(cls, config: str, matrices: str) -> RandomModel:
        """`config` is the text of a config.json, `matrices` "bf16", "q8_0" or "q4_k"; vectors are
        f32. Raises FileError or ShapeUnsupportedError."""
    def stored_bytes(self) -> int:
        """Bytes of all weights, as a file would store them."""

@final
class Limits:
    """What a load is sized for; every plan line is a function of these and the model's shape."""

    lanes_max: int
    chunk_tokens_max: int
    context_tokens_max: int
    pages: int
    retained_device: int  # retained slots in device memory
    retained_host: int  # retained slots in host memory
    def __new__(
        cls,
        lanes_max: int,
        chunk_tokens_max: int,
        context_tokens_max: int,
        pages: int,
        retained_device: int = 0,
        retained_host: int = 0,
    ) -> Limits: ...

@final
class DeviceOptions:
    """Which device, and how it is run."""

    device: str  # "cpu", "cuda", "sim"
    threads: int  # cpu: worker threads, at least 1
    kv_format: str  # "bf16", "f32"
    activations: str  # "int8", "f32"; "bf16", "f32" on a card
    products: str  # "same", "fast"
    kernels: str  # "own", "portable"
    def __new__(
        cls,
        device: str,
        threads: int = 1,
        kv_format: str = "bf16",
        activations: str | None = None,
        nvrtc: Sequence[str | PathLike[str]] = ...,
        cache: str | PathLike[str] | None = None,
        embedding: str = "device",
        products: str = "same",
        kernels: str = "own",
    ) -> DeviceOptions:
        """`activations` None is the device's default: "bf16" on a card, "int8" elsewhere.
        `products` "fast" is for a card with "bf16" alone; `kernels` "portable" leaves out those that
        are made for one generation of cards.
        `embedding` is "host" or "device": where a card finds a table that is no product's. `nvrtc`
        names files that may be NVRTC, beside what the system's search finds, and `cache` the folder
        where compiled kernels are kept (None: nowhere). Both are for "cuda" alone."""
    def check_cuda(self) -> CudaCard:
        """The card that would be used; no context is made. Raises DeviceUnavailableError."""
    def cuda_facts(self) -> CudaFacts:
        """Everything that was found of a card, whether or not it can be used; no context is
        made."""
    def measured(self, model: str | PathLike[str] | RandomModel) -> list[tuple[str, int]]:
        """Bytes that the driver takes beside the reservation, by plan line, with the kernels that
        the model needs: opens the card, which stays open. Nothing for other devices."""

@final
class CudaCard:
    """A card and what drives it."""

    name: str
    capability: tuple[int, int]
    driver: tuple[int, int]  # the CUDA version it is for
    nvrtc: tuple[int, int]
    total_bytes: int

@final
class CudaFacts:
    """What using a card depends on; None is what could not be learnt."""

    driver: tuple[int, int] | None  # the CUDA version it is for
    driver_problem: str | None
    release: str | None  # of the driver, such as 580.159.04
    cards: int
    name: str | None  # of the first card, like what follows
    capability: tuple[int, int] | None
    mode: str | None  # "shared", "exclusive", "prohibited"
    total_bytes: int | None
    free_bytes: int | None
    others: list[tuple[int, int | None, str]]  # (process, bytes, program), most bytes first
    nvrtc: tuple[int, int] | None  # that would be taken; None: none suits card and driver
    nvrtc_file: Path | None
    nvrtc_found: list[tuple[tuple[int, int], Path]]  # every one, by version and file
    nvrtc_broken: list[Path]  # candidates that cannot be loaded
    refusal: str | None  # why it cannot be used, and what to do; None: it can

@final
class Needs:
    """Bytes of each plan line, from a dry run of the code that binds. `kv_pool` is left out."""

    lines: list[tuple[str, int]]  # every line of the plan but kv_pool, in print order
    kv_page_bytes: int
    page_tokens: int
    retained_slot_bytes: int  # host memory of one retained slot
    pinned_bytes: int  # host memory that the device pins for itself
    image_payload_bytes: int  # of the longest image: tokens, sections, pages of a whole context
    window_bytes: int  # of KV-RAM and KV-disk, for such images

def needs(model: str | RandomModel, limits: Limits, options: DeviceOptions) -> Needs:
    """Headers only; no weights are read and no device is needed. `limits.pages` is ignored. Raises
    DeviceUnsuitedError for a model that the device has no kernels for."""

def free_bytes(device: str) -> int:
    """Device memory free now; for "cpu", available RAM capped by the container's limit; for
    "cuda", as the driver says without a context."""

def kernels_made() -> int:
    """Pieces of kernels that this process has begun to compile, and did not find compiled. Grows
    while a card is opened."""

def close_card() -> None:
    """Gives back the card that was opened, and what its driver took: now, or when the last engine
    on it goes. A later load opens it again. Nothing where none is open."""

def process_bytes(pid: int | None = None) -> int | None:
    """Bytes of the card that the driver counts to a process, this one if none is named; None where
    it does not say."""

def kernel_units(capability: tuple[int, int]) -> list[tuple[str, str, list[str]]]:
    """Every unit of kernels that a load on a card of compute capability (major, minor) may compile:
    a name of its own, its file in `crates/cuda/kernels`, and the compiler's options."""

@final
class TierOptions:
    """Where moved sequences and retained state go. Sizes are bytes; 0 turns a tier off."""

    ram_bytes: int  # whole windows of it are used
    disk_path: Path | None  # the folder of the file
    disk_bytes: int
    disk_margin_bytes: int  # what must stay free on the volume
    def __new__(
        cls,
        ram_bytes: int = 0,
        disk_path: str | PathLike[str] | None = None,
        disk_bytes: int = 0,
        disk_margin_bytes: int = 0,
    ) -> TierOptions: ...

def disk_available(folder: str | PathLike[str]) -> int:
    """Bytes that a file of KV-disk in `folder` could have: free on the volume, or its own already.

    The folder need not exist. Raises MemoryRefusedError if the volume cannot be asked.
    """

def prefix_chain(tokens: array[int], seed: bytes) -> bytes:
    """16 bytes for each whole page of `tokens` ("I"): hash k covers `tokens[: 64 * k]`.

    A chain of SipHash-1-3-128 under `seed`, 16 bytes.
    """

def witness_next(prefix: list[int], vocab: int, seed: int) -> int:
    """The witness model's next token, computed without pages. For tests."""

@final
class LoadProgress:
    """Read from another thread while `Engine.load` runs."""

    def __new__(cls) -> LoadProgress: ...
    def bytes_done(self) -> int: ...
    def bytes_total(self) -> int: ...

@final
class Sampling:
    """How one sequence samples; ranges are checked by the caller."""

    def __new__(
        cls,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,  # u64
        logprobs: int | None = None,  # 0..20 alternatives
        logit_bias: list[tuple[int, float]] = ...,  # at most 1,024
    ) -> Sampling: ...

@final
class RoundOut:
    """Preallocated results of a round: entry i belongs to `lanes[i]`."""

    def __new__(cls, lanes_max: int) -> RoundOut: ...
    lanes: array[int]  # "I" [lanes_max + 1]
    tokens: array[int]  # "I" [lanes_max + 1]
    logprobs: array[float]  # "f" [lanes_max + 1]
    top_len: array[int]  # "I" [lanes_max + 1]
    top_ids: array[int]  # "I" [(lanes_max + 1) * 20]
    top_logprobs: array[float]  # "f" [(lanes_max + 1) * 20]

@final
class Engine:
    """One loaded model: sealed memory, lanes, pages, rounds. Used by one thread at a time."""

    @staticmethod
    def load(
        model: str | RandomModel,
        limits: Limits,
        options: DeviceOptions,
        plan: list[tuple[str, int]],
        progress: LoadProgress | None = None,
        ids: int | None = None,
        tiers: TierOptions | None = None,
    ) -> Engine:
        """Reserve, load weights, warm up, verify every region against `plan`, seal.

        `plan` lists every line, `kv_pool` included. Only ids below `ids` are drawn; None: every row
        of the vocabulary, padding too. Raises MemoryRefusedError naming the line that
        differs, or the file of KV-disk that cannot be had; nothing stays reserved after an error.
        """
    @staticmethod
    def simulated(
        limits: Limits,
        vocab: int,
        seed: int,
        fault_ppm: int = 0,
        ram_windows: int = 0,
        disk_windows: int = 0,
        disk_fault_ppm: int = 0,
        window_bytes: int = 4096,
    ) -> Engine:
        """The witness model: its next token is a hash of the whole prefix, one half of it read
        through pages, the other carried in a section.

        `fault_ppm` in a million rounds fail with DeviceFaultError, drawn from `seed`; every lane of
        a failed round can only be released. So many disk operations fail, or do harm in silence;
        with a disk, windows travel beside the rounds and take their time, and as many of them fail.
        """

    page_tokens: int
    lanes_max: int
    pages_total: int
    retained_slots: int  # device slots come first
    vocab: int
    description: str
    @property
    def recorded_rounds(self) -> tuple[int, int, int] | None:
        """Kinds of decode rounds that are launched as one, how many kinds there are, and the bytes
        that the driver took; None where the device records none."""
    def pages_free(self) -> int: ...
    def pages_held(self, lanes: array[int], count: int) -> int:
        """Distinct pages that the first `count` of `lanes` ("I") hold together."""
    def reserved(self) -> list[tuple[str, int]]:
        """Bytes of each plan line, read back from the arena."""
    @property
    def pinned_bytes(self) -> int:
        """Host memory that the device has pinned: its own, slots, KV-RAM, buffers of KV-disk."""
    def plan_allocations_after_seal(self) -> int:
        """Attempts to take memory from any plan space since the seal; 0 unless there is a bug."""
    def admit(
        self,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: Sampling,
        prompt_tokens: int | None = None,
        slot: int = ...,  # -1: none
    ) -> None:
        """Seat a sequence: reserve `pages` pages and keep its tokens (typecode "I").

        `tokens[:prompt_tokens]` is the prompt, the rest was drawn before; None: all of it is the
        prompt. With a `slot`, whose tokens must be a proper prefix, it starts behind that state:
        whole pages are shared, so `pages - position // 64` are taken. The lane must be empty, the
        tokens some and inside the vocabulary, and `pages * page_tokens` must hold them and at least
        one more. Raises ValueError otherwise; nothing changes then.
        """
    def adopt(self, lane: int, slot: int) -> None:
        """A lane that has computed nothing since it was seated starts behind a slot's state after
        all, or behind more than it was seated with; pages it shares now replace its own. Raises
        ValueError as `admit` does."""
    def capture(self, lane: int, slot: int) -> None:
        """Keep a lane's state in an empty slot: pages by count, sections by copy. Raises ValueError
        if the lane has stored nothing or the slot is taken."""
    def drop_slot(self, slot: int) -> None:
        """Empty a slot; an image being made of it is abandoned. An empty one stays so."""
    def round(
        self,
        prefill_lane: int,  # -1: none
        prefill_tokens: int,  # next tokens of that lane's prompt, at most chunk_tokens_max
        decode_lanes: array[int],  # "I"; each has its whole prompt done
        decode_count: int,
        out: RoundOut,
    ) -> int:
        """Run one round, begin to finish; returns the number of results.

        A prefill that reaches the end of its prompt samples that lane's first token. Every decode
        lane appends its last token and samples the next. Results: the prefill lane's (if any)
        first, then the decode lanes' in order.
        """
    def begin_round(
        self, prefill_lane: int, prefill_tokens: int, decode_lanes: array[int], decode_count: int
    ) -> bool:
        """Begin the round that `round` would run. True: the device runs it already; False: it runs
        in `finish_round`.

        Until then everything may be read, moves advance, begin (but not `move_in`) and are given
        up, and slots are spilled and dropped. Nobody is seated and no other round begins; a lane of
        the round is not released, captured, adopted for or moved. Raises ValueError for such a
        call, and for a plan that does not suit; nothing changes then.
        """
    def finish_round(self, out: RoundOut) -> int:
        """Wait for the round that was begun, or run it; returns what `round` does. The interpreter
        is released meanwhile. Raises ValueError if none was begun."""
    def score(self, lane: int, tokens: int, logprobs: array[float]) -> int:
        """Prefill `tokens` more prompt tokens and write each one's log-probability of the *next*
        prompt token ("f"); returns how many were written. For perplexity; not used in serving."""
    def release(self, lane: int) -> None:
        """Empty the lane and free its pages, in any state; a move of it is abandoned."""
    def position(self, lane: int) -> int:
        """Tokens of the lane whose keys and values are stored."""

    # Images. A tier is 0 (KV-RAM) or 1 (KV-disk); a kind 0 live, 1 checkpoint, 2 prefix; a class 0
    # interactive, 1 agent. At most one move out and one move in are under way. A call that cannot
    # begin raises ValueError and changes nothing.

    def windows_for(self, position: int) -> int:
        """Windows of the image of so many tokens."""
    def windows_free(self, of: int) -> int:
        """Free windows of a tier."""
    def windows_total(self, of: int) -> int:
        """All windows of a tier; 0: it is off."""
    def move_out(self, lane: int, to: int) -> int:
        """Begin to move a lane to a tier; returns the image. The lane is in no round from now on
        and keeps its pages until the move has landed."""
    def spill(self, slot: int, to: int, of_kind: int, class_: int) -> int:
        """Begin to copy a retained slot to a tier; the slot stays."""
    def copy_image(self, image: int, class_: int) -> int:
        """Begin to copy an image from KV-RAM to KV-disk; the first one stays."""
    def move_in(
        self,
        image: int,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: Sampling,
        prompt_tokens: int | None = None,
    ) -> None:
        """Begin to fill an empty lane from an image of the first of `tokens`, for which `pages`
        pages are reserved. The image stays."""
    def advance(self, wait_us: int) -> list[tuple[int, int, bool, str]]:
        """Move on each way by a window at most, or by the windows that travelled beside the rounds.
        A wait above 0 first waits so long for a disk operation that is in flight.

        Returns what ended, as (event, image, intact, text): event 0 a move out landed, its lane is
        empty; 1 it failed, its lane goes on and its image is gone; 2 a move in landed, its lane is
        ready; 3 it failed, its lane is empty, and its image is gone unless `intact`.
        """
    def moving(self) -> tuple[bool, bool]:
        """Whether a move out, and a move in, is under way."""
    def abandon_out(self) -> None:
        """Give up the move out: its lane goes on, its image is gone."""
    def abandon_in(self) -> None:
        """Give up the move in: its lane is empty, its image stays."""
    def drop_image(self, image: int) -> None:
        """Forget an image that no move uses. Raises ValueError for one that is not there."""
    def found_images(self) -> list[tuple[int, int, int, list[int]]]:
        """(image, kind, class, tokens) of what an earlier process left on KV-disk, once."""
    def disk_state(self) -> tuple[int, int, int, int]:
        """Images removed at start, bytes read, bytes written, operations that failed."""
