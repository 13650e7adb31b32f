"""What the engine reports while it serves, as a protocol that `ignis.telemetry` fulfils.

Every call comes from the event loop's thread. A request is reported once on each of its ways:
`request_refused`, or `request_submitted` followed by exactly one `request_done`, whose outcome is
the finish reason that its reader was given. So totals by outcome equal what clients count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ignis.engine.api import FinishReason, RequestClass

RefusalReason = Literal["queue_full", "never_fits", "draining", "failed"]
TierName = Literal["device", "kv_ram", "disk"]
KindName = Literal["checkpoint", "prefix"]
FactName = Literal[
    "evicted",  # a sequence landed in `tier`, its pages are free
    "resumed",  # a sequence came back from `tier`
    "live_dropped",  # KV-RAM gave a moved sequence up for a newer one
    "prefilled_again",  # a sequence starts over: `amount` tokens are computed again
    "move_refused_write",  # a write to `tier` failed; what was to move stayed where it was
    "move_refused_read",  # a read from `tier` failed or found damage
    "retained_hit",  # a prompt starts from what is retained in `tier`
    "retained_miss",  # a prompt with marks found nothing that is retained
    "retained_reused_tokens",  # `amount` prompt tokens were not computed
    "retained_spill",  # retained state was copied down to `tier`
    "retained_discard",  # retained state in `tier` was given up, and there was no other copy
    "retained_restore",  # retained state was brought back from `tier`
    "skipped_publish_no_slot",  # a prefix was not retained: no slot could be had
    "skipped_capture_no_slot",  # a checkpoint was not retained: no slot could be had
]


class Fact(NamedTuple):
    """Something that happened to a sequence's or to retained state, once or `amount` times."""

    name: FactName
    tier: TierName | None = None
    kind: KindName | None = None
    amount: int = 1
    source: TierName = "device"  # where what was copied down lay


@dataclass(frozen=True, slots=True)
class RoundStats:
    """One round, and the engine's state after it.

    What was done without a round has duration and tokens 0; it is reported for the state.
    """

    duration_s: float
    prefill_tokens: int  # prompt tokens computed; 0 for a decode round
    decode_lanes: int  # lanes that decoded
    tokens: int  # tokens sampled, that of a prefill's end included
    running: int  # sequences with a lane
    waiting: int  # sequences without one
    pages_free: int
    plan_allocations: int  # attempts to take memory from a plan space since the seal
    parked: int = 0  # sequences in KV-RAM or KV-disk; they are waiting too
    retained_slots_used: int = 0
    kv_ram_windows_used: int = 0
    kv_disk_windows_used: int = 0
    moving_out: bool = False
    moving_in: bool = False
    gap_s: float | None = None  # from the round before, if nothing lay between, to its start


class EngineMetrics(Protocol):
    """Seconds are monotonic differences; counts are of tokens."""

    def request_submitted(self, request_class: RequestClass) -> None:
        """A request was accepted and waits."""

    def request_refused(self, reason: RefusalReason) -> None:
        """`submit` raised."""

    def request_admitted(self, request_class: RequestClass, queued_s: float) -> None:
        """A request got its lane and pages, `queued_s` after its submit."""

    def first_token(self, request_class: RequestClass, ttft_s: float) -> None:
        """Its first token was sampled, `ttft_s` after its submit."""

    def token_gap(self, request_class: RequestClass, gap_s: float) -> None:
        """A later token was sampled, `gap_s` after the one before."""

    def request_done(
        self,
        request_class: RequestClass,
        outcome: FinishReason,
        prompt_tokens: int,
        completion_tokens: int,
        duration_s: float,
    ) -> None:
        """Its reader was given `outcome`, `duration_s` after the submit."""

    def round_done(self, stats: RoundStats) -> None:
        """A round ran."""

    def fact(self, fact: Fact) -> None:
        """Something moved, or was retained, reused or given up."""


class NoMetrics:
    """Reports to nobody."""

    def request_submitted(self, request_class: RequestClass) -> None: ...
    def request_refused(self, reason: RefusalReason) -> None: ...
    def request_admitted(self, request_class: RequestClass, queued_s: float) -> None: ...
    def first_token(self, request_class: RequestClass, ttft_s: float) -> None: ...
    def token_gap(self, request_class: RequestClass, gap_s: float) -> None: ...
    def request_done(
        self,
        request_class: RequestClass,
        outcome: FinishReason,
        prompt_tokens: int,
        completion_tokens: int,
        duration_s: float,
    ) -> None: ...
    def round_done(self, stats: RoundStats) -> None: ...
    def fact(self, fact: Fact) -> None: ...
