"""What the server asks of the engine and what it gets back: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RequestClass = Literal["interactive", "agent"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


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
class SequenceRequest:
    """One run of tokens to generate.

    `max_tokens` None means `model.default_max_tokens`; either is clamped to what the context
    leaves. `stop_ids` end the sequence (finish reason "stop"); the stop token itself is reported.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    request_class: RequestClass = "interactive"


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
    finished: float | None = None
    gaps: list[float] = field(default_factory=list)
