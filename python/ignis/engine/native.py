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
    @property
    def retained_slots(self) -> int: ...
    def pages_free(self) -> int: ...
    def pages_held(self, lanes: array[int], count: int) -> int: ...
    def plan_allocations_after_seal(self) -> int: ...
    def admit(
        self,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: SamplingT_contra,
        prompt_tokens: int | None = None,
        slot: int = -1,
    ) -> None: ...
    def begin_round(
        self, prefill_lane: int, prefill_tokens: int, decode_lanes: array[int], decode_count: int
    ) -> bool: ...
    def finish_round(self, out: OutT_contra) -> int: ...
    def release(self, lane: int) -> None: ...
    def adopt(self, lane: int, slot: int) -> None: ...
    def capture(self, lane: int, slot: int) -> None: ...
    def drop_slot(self, slot: int) -> None: ...
    def windows_for(self, position: int) -> int: ...
    def windows_free(self, tier: int) -> int: ...
    def windows_total(self, tier: int) -> int: ...
    def move_out(self, lane: int, tier: int) -> int: ...
    def spill(self, slot: int, tier: int, kind: int, klass: int) -> int: ...
    def copy_image(self, image: int, klass: int) -> int: ...
    def move_in(
        self,
        image: int,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: SamplingT_contra,
        prompt_tokens: int | None = None,
    ) -> None: ...
    def advance(self, wait_us: int) -> list[tuple[int, int, bool, str]]: ...
    def abandon_out(self) -> None: ...
    def drop_image(self, image: int) -> None: ...
    def found_images(self) -> list[tuple[int, int, int, list[int]]]: ...


@dataclass(frozen=True, slots=True)
class Core(Generic[SamplingT, OutT]):
    """An engine, the results it writes into, and how it takes sampling parameters.

    `prefix_chain(tokens, seed)`, with a seed of 16 bytes, gives 16 bytes for each whole page: a
    hash of all tokens up to the page's end, which nobody without the seed can foresee.
    """

    engine: RoundEngine[SamplingT, OutT]
    out: OutT
    sampling: Callable[[SamplingParams], SamplingT]
    prefix_chain: Callable[[array[int], bytes], bytes]


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

    return Core(engine, _native.RoundOut(engine.lanes_max), sampling, _native.prefix_chain)
