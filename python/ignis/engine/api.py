"""What the server asks of the engine and what it gets back: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ignis.admission.rank import RequestClass

__all__ = [
    "EngineOptions",
    "FinishReason",
    "Mark",
    "RequestClass",
    "ReuseSource",
    "SamplingParams",
    "SequenceRequest",
    "SequenceTimes",
    "TokenBatch",
    "TokenOut",
]

FinishReason = Literal["stop", "length", "cancelled", "error"]
ReuseSource = Literal["device", "kv_ram", "disk"]


class Mark(NamedTuple):
    """A place in a prompt after which later prompts may go on: its state there is retained.

    `prefix` is the end of the part that many conversations share, `checkpoint` the end of one
    conversation's turn.
    """

    position: int  # tokens before it
    kind: Literal["checkpoint", "prefix"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence samples; ranges are validated where the request is parsed.

    `seed` is an unsigned 64-bit number; the server draws one when the client named none.
    `logprobs` is the number of alternatives (0 to 20) or None for no log-probabilities.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the configuration and the plan decide about serving, besides the engine's own sizes.

    `default_tokens_max` is `model.default_max_tokens` (0: up to the context). `queue_max` requests
    may be open beyond one for each lane. After a prefill chunk, decode gets at least
    `decode_share_percent` (0 to 99) of the time before the next one. Without `reuse_prompt` no
    prompt is retained or matched. A checkpoint of an interactive request that lay idle in KV-RAM
    for `retained_interactive_ttl_s` is given up as if it were an agent's.
    """

    context_tokens_max: int
    chunk_tokens_max: int
    default_tokens_max: int
    queue_max: int
    decode_share_percent: int
    reuse_prompt: bool = True
    retained_interactive_ttl_s: float = 300.0


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One run of tokens to generate.

    `max_tokens` None means `model.default_max_tokens`; either is clamped to what the context
    leaves. `stop_ids` end the sequence (finish reason "stop"); the stop token itself is reported.
    `marks` are in ascending order; those outside 1 .. len(prompt) - 1 are ignored.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    request_class: RequestClass = "interactive"
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenOut:
    """One generated token. `top` holds (id, log-probability), most likely first."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of one hand-over; the last batch of a sequence carries its finish reason."""

    tokens: tuple[TokenOut, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True)
class SequenceTimes:
    """Monotonic seconds, for logs and histograms; None until it happened."""

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    gap_max_s: float = 0.0  # longest time between two tokens
