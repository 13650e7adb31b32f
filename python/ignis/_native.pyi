"""The Rust core, as Python sees it. Private: `ignis.plan` and `ignis.engine` are its only users.

Sizes are bytes, counts are tokens or pages. Every call that may take long releases the interpreter.
Buffers are flat arrays (`array.array`), preallocated by the caller and written in place.
"""

from array import array
from typing import final

__all__ = [
    "__version__",
    "DeviceFaultError",
    "DeviceOptions",
    "Engine",
    "FileError",
    "Limits",
    "LoadProgress",
    "MemoryRefusedError",
    "ModelInfo",
    "NativeError",
    "Needs",
    "RoundOut",
    "Sampling",
    "ShapeUnsupportedError",
    "free_bytes",
    "inspect",
    "needs",
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

class MemoryRefusedError(NativeError):
    """The system did not give the planned memory, or a region differs from its plan line."""

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
class Limits:
    """What a load is sized for; every plan line is a function of these and the model's shape."""

    lanes_max: int
    chunk_tokens_max: int
    context_tokens_max: int
    pages: int
    def __new__(
        cls, lanes_max: int, chunk_tokens_max: int, context_tokens_max: int, pages: int
    ) -> Limits: ...

@final
class DeviceOptions:
    """Which device, and how it is run."""

    device: str  # "cpu", "cuda" (sizes only), "sim"
    threads: int  # cpu: worker threads, at least 1
    kv_format: str  # "bf16", "f32"
    activations: str  # "int8", "f32"
    def __new__(
        cls, device: str, threads: int = 1, kv_format: str = "bf16", activations: str = "int8"
    ) -> DeviceOptions: ...

@final
class Needs:
    """Bytes of each plan line, from a dry run of the code that binds. `kv_pool` is left out."""

    lines: list[tuple[str, int]]  # every line of the plan but kv_pool, in print order
    kv_page_bytes: int
    page_tokens: int

def needs(path: str, limits: Limits, options: DeviceOptions) -> Needs:
    """Headers only; no weights are read and no device is needed. `limits.pages` is ignored."""

def free_bytes(device: str) -> int:
    """Device memory free now; for "cpu", available RAM capped by the container's limit."""

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
        path: str,
        limits: Limits,
        options: DeviceOptions,
        plan: list[tuple[str, int]],
        progress: LoadProgress | None = None,
        ids: int | None = None,
    ) -> Engine:
        """Reserve, load weights, warm up, verify every region against `plan`, seal.

        `plan` lists every line, `kv_pool` included. Only ids below `ids` are drawn; None: every row
        of the vocabulary, padding too. Raises MemoryRefusedError naming the line that
        differs; nothing stays reserved after an error.
        """
    @staticmethod
    def simulated(limits: Limits, vocab: int, seed: int, fault_ppm: int = 0) -> Engine:
        """The witness model: its next token is a hash of the whole prefix, read through pages.

        `fault_ppm` in a million rounds fail with DeviceFaultError, drawn from `seed`; every lane of
        a failed round can only be released.
        """

    page_tokens: int
    lanes_max: int
    pages_total: int
    vocab: int
    description: str
    def pages_free(self) -> int: ...
    def reserved(self) -> list[tuple[str, int]]:
        """Bytes of each plan line, read back from the arena."""
    def plan_allocations_after_seal(self) -> int:
        """Attempts to take memory from any plan space since the seal; 0 unless there is a bug."""
    def admit(self, lane: int, prompt: array[int], pages: int, sampling: Sampling) -> None:
        """Seat a sequence: reserve `pages` pages and keep its prompt (typecode "I").

        The lane must be empty, the prompt non-empty and inside the vocabulary, and
        `pages * page_tokens` must hold the prompt and at least one token. Raises ValueError
        otherwise; nothing changes then.
        """
    def round(
        self,
        prefill_lane: int,  # -1: none
        prefill_tokens: int,  # next tokens of that lane's prompt, at most chunk_tokens_max
        decode_lanes: array[int],  # "I"; each has its whole prompt done
        decode_count: int,
        out: RoundOut,
    ) -> int:
        """Run one round; returns the number of results.

        A prefill that reaches the end of its prompt samples that lane's first token. Every decode
        lane appends its last token and samples the next. Results: the prefill lane's (if any)
        first, then the decode lanes' in order.
        """
    def score(self, lane: int, tokens: int, logprobs: array[float]) -> int:
        """Prefill `tokens` more prompt tokens and write each one's log-probability of the *next*
        prompt token ("f"); returns how many were written. For perplexity; not used in serving."""
    def release(self, lane: int) -> None:
        """Empty the lane and free its pages."""
    def position(self, lane: int) -> int:
        """Tokens of the lane whose keys and values are stored."""
