"""What moved between the tiers and what was retained: counts of facts, and their families.

A fact is a word with a tier and a kind (`ignis.engine.metrics.Fact`); here words become counters.
Every label value exists from the start. The families of KV-disk are there only with that tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import structlog
from prometheus_client.core import Metric

from ignis.telemetry.families import counter, counter_by, gauge

log = structlog.get_logger("ignis")

TIERS = ("device", "kv_ram", "disk")
KINDS = ("checkpoint", "prefix")

# Facts that are counted by tier and kind, and the family of each.
RETAINED = {
    "retained_hit": ("state_hits", "Prompts that began from retained state."),
    "retained_miss": ("state_misses", "Prompts that found nothing retained to begin from."),
    "retained_spill": ("state_spills", "Retained state copied down to a tier."),
    "retained_discard": ("state_discards", "Retained state given up without another copy."),
    "retained_restore": ("state_restores", "Retained state brought back from a tier."),
    "retained_reused_tokens": ("reused_tokens", "Prompt tokens that retained state saved."),
}
# Facts that nobody had room for, and the label of each. A capture takes no page, so that the last
# reason, known from other versions, stays 0.
SKIPS = {
    "skipped_publish_no_slot": "publish_skipped_no_slot",
    "skipped_capture_no_slot": "capture_skipped_no_slot",
    "skipped_capture_no_page": "capture_skipped_no_page",
}
FAILURES = {"move_refused_write": "write", "move_refused_read": "read"}


class EngineFact(Protocol):
    """What is read of a fact; see `ignis.engine.metrics.Fact`."""

    @property
    def name(self) -> str: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def amount(self) -> int: ...
    @property
    def source(self) -> str: ...


class TieredPlan(Protocol):
    """What is read of a plan; see `ignis.plan.Plan`."""

    @property
    def retained_device_slots(self) -> int: ...
    @property
    def retained_host_slots(self) -> int: ...
    @property
    def retained_host_bytes(self) -> int: ...
    @property
    def kv_ram_bytes(self) -> int: ...
    @property
    def kv_disk_bytes(self) -> int: ...
    @property
    def window_bytes(self) -> int: ...


class TierRound(Protocol):
    """What is read of a round; see `ignis.engine.metrics.RoundStats`."""

    @property
    def parked(self) -> int: ...
    @property
    def retained_slots_used(self) -> int: ...
    @property
    def kv_ram_windows_used(self) -> int: ...
    @property
    def kv_disk_windows_used(self) -> int: ...
    @property
    def moving_out(self) -> bool: ...
    @property
    def moving_in(self) -> bool: ...


class TierCounts:
    """Totals since the start, sizes of the loaded plan, and what the last round left in use."""

    def __init__(self) -> None:
        self.retained: dict[str, dict[tuple[str, ...], int]] = {
            name: {(tier, kind): 0 for tier in TIERS for kind in KINDS} for name in RETAINED
        }
        self.skips = dict.fromkeys(SKIPS.values(), 0)
        self.evictions = self.live_dropped = 0
        self.resumed = dict.fromkeys(TIERS[1:], 0)
        self.prefilled_again = self.prefilled_again_tokens = 0
        self.disk_spills = {"device": 0, "kv_ram": 0}
        self.failures = {tier: dict.fromkeys(FAILURES.values(), 0) for tier in TIERS[1:]}
        self._disk_refuses = False  # the last write to KV-disk failed
        self.unload()

    def unload(self) -> None:
        """No model is loaded: sizes and what is in use read zero again."""
        self.device_slots = self.host_slots = self.host_bytes = 0
        self.ram_bytes = self.disk_bytes = self.window_bytes = 0
        self.idle()

    def idle(self) -> None:
        """Nothing is in use."""
        self.parked = self.slots_used = self.ram_used_bytes = self.disk_used_bytes = 0
        self.moving = {"out": 0, "in": 0}

    def plan_sealed(self, plan: TieredPlan) -> None:
        """A model is loaded with these sizes."""
        self.device_slots = plan.retained_device_slots
        self.host_slots = plan.retained_host_slots
        self.host_bytes = plan.retained_host_bytes
        self.ram_bytes = plan.kv_ram_bytes
        self.disk_bytes = plan.kv_disk_bytes
        self.window_bytes = plan.window_bytes

    def round_done(self, stats: TierRound) -> None:
        """What was in use after a round."""
        self.parked = stats.parked
        self.slots_used = stats.retained_slots_used
        self.ram_used_bytes = stats.kv_ram_windows_used * self.window_bytes
        self.disk_used_bytes = stats.kv_disk_windows_used * self.window_bytes
        self.moving = {"out": int(stats.moving_out), "in": int(stats.moving_in)}

    def fact(self, fact: EngineFact) -> None:
        """Count one fact. A name that is not known here is a bug of whoever reports it."""
        name, tier = fact.name, fact.tier or "device"
        if name in RETAINED:
            self.retained[name][tier, fact.kind or "checkpoint"] += fact.amount
        elif name in SKIPS:
            self.skips[SKIPS[name]] += fact.amount
        elif name in FAILURES:
            self.failures[tier][FAILURES[name]] += fact.amount
        elif name == "evicted":
            self.evictions += fact.amount
        elif name == "resumed":
            self.resumed[tier] += fact.amount
        elif name == "live_dropped":
            self.live_dropped += fact.amount
        else:
            assert name == "prefilled_again", f"unknown fact {name}"
            self.prefilled_again += 1
            self.prefilled_again_tokens += fact.amount
        if tier == "disk":
            self._disk_fact(name, fact.source, fact.amount)

    def _disk_fact(self, name: str, source: str, amount: int) -> None:
        """Count what reached KV-disk, and say once when it begins to refuse writes."""
        if name in {"evicted", "retained_spill"}:
            self.disk_spills[source] += amount
            self._disk_refuses = False
        elif name == "move_refused_write" and not self._disk_refuses:
            self._disk_refuses = True
            log.warning("ignis.kv_disk.write_refused", failures=self.failures["disk"]["write"])

    # --- reading ------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        yield gauge(
            "retained_slots",
            "Retained slots of both kinds.",
            {"capacity": self.device_slots + self.host_slots, "in_use": self.slots_used},
            "state",
        )
        yield gauge("retained_host_slots", "Retained slots in RAM.", {"": self.host_slots})
        yield gauge("retained_host_bytes", "Bytes of those slots.", {"": self.host_bytes})
        yield gauge(
            "kv_ram_arena_bytes",
            "The block of RAM that holds images.",
            {"capacity": self.ram_bytes, "used": self.ram_used_bytes},
            "state",
        )
        yield gauge(
            "parked_sequences", "Sequences that wait in KV-RAM or KV-disk.", {"": self.parked}
        )
        yield gauge("moves_in_flight", "Moves under way.", self.moving, "way")
        yield counter("kv_cache_evictions", "Sequences moved out.", {"": self.evictions})
        yield counter("kv_cache_resumes", "Moved sequences that came back.", self.resumed, "tier")
        yield counter(
            "kv_ram_evictions",
            "Moved sequences that KV-RAM gave up for newer ones.",
            {"": self.live_dropped},
        )
        yield counter(
            "prefilled_again",
            "Sequences computed again because their image was given up or damaged.",
            {"": self.prefilled_again},
        )
        yield counter(
            "prefilled_again_tokens", "Tokens of those.", {"": self.prefilled_again_tokens}
        )
        yield counter(
            "prefix_reused_tokens",
            "Prompt tokens that a shared prefix on the device saved.",
            {"": self.retained["retained_reused_tokens"]["device", "prefix"]},
        )
        for name, (family, text) in RETAINED.items():
            yield counter_by(f"retained_{family}", text, ("tier", "kind"), self.retained[name])
        yield counter(
            "retained_slot_skips", "State not retained for want of room.", self.skips, "reason"
        )
        if self.disk_bytes:
            yield from self._collect_disk()

    def _collect_disk(self) -> Iterator[Metric]:
        yield gauge(
            "kv_disk_bytes",
            "The file that holds images.",
            {"capacity": self.disk_bytes, "used": self.disk_used_bytes},
            "state",
        )
        yield counter("kv_disk_spills", "Images written to it.", self.disk_spills, "from")
        yield counter("kv_disk_failures", "Moves that it failed.", self.failures["disk"], "op")
