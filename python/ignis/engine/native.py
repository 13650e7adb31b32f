"""The part of the Rust core that serving uses, as a protocol: tests can put another there."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ignis.engine.api import SamplingParams

if TYPE_CHECKING:
    from ignis import _native

TOP_MAX = 20  # alternatives of one token; entry i of a round's results starts at i * TOP_MAX

SamplingT = TypeVar("SamplingT")
SamplingT_contra = TypeVar("SamplingT_contra", contravariant=True)
OutT = TypeVar("OutT", bound="RoundResults")
OutT_contra = TypeVar("OutT_contra", contravariant=True)


class RoundResults(Protocol):
    """Preallocated results of a round; see `_native.RoundOut`."""

    @property
    def lanes(self) -> array[int]: ...
    @property
    def tokens(self) -> array[int]: ...
    @property
    def logprobs(self) -> array[float]: ...
    @property
    def top_len(self) -> array[int]: ...
    @property
    def top_ids(self) -> array[int]: ...
    @property
    def top_logprobs(self) -> array[float]: ...


class RoundEngine(Protocol[SamplingT_contra, OutT_contra]):
    """One loaded model; see `_native.Engine`, whose contracts these calls keep."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def lanes_max(self) -> int: ...
    @property
    def pages_total(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    def pages_free(self) -> int: ...
    def plan_allocations_after_seal(self) -> int: ...
    def admit(
        self, lane: int, prompt: array[int], pages: int, sampling: SamplingT_contra
    ) -> None: ...
    def round(
        self,
        prefill_lane: int,
        prefill_tokens: int,
        decode_lanes: array[int],
        decode_count: int,
        out: OutT_contra,
    ) -> int: ...
    def release(self, lane: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Core(Generic[SamplingT, OutT]):
    """An engine, the results it writes into, and how it takes sampling parameters."""

    engine: RoundEngine[SamplingT, OutT]
    out: OutT
    sampling: Callable[[SamplingParams], SamplingT]


def native_core(engine: _native.Engine) -> Core[_native.Sampling, _native.RoundOut]:
    """The real one."""
    from ignis import _native

    def sampling(params: SamplingParams) -> _native.Sampling:
        return _native.Sampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=params.seed,
            logprobs=params.logprobs,
            logit_bias=list(params.logit_bias),
        )

    return Core(engine, _native.RoundOut(engine.lanes_max), sampling)
