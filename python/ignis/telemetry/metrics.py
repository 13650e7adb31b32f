"""What the process counts, and its projection to Prometheus' text format.

Counting is integer addition; families and labels are built only when someone reads `/metrics`.
Every family and every label value exists from the start and reads zero while no model is loaded.
Labels are fixed: no request ids, no percentages. All calls come from the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ignis.telemetry.families import counter, gauge, gauge_by, histogram
from ignis.telemetry.tiers import EngineFact, TierCounts, TieredPlan, TierRound

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

VRAM_LINES = (
    "weights",
    "workspace",
    "lane_state",
    "retained_slots",
    "media_embedding",
    "cuda_context",
    "verify_round",
    "decode_graph",
    "drafter_round",
    "residual",
    "sampling",
    "kv_pool",
)
# Why a request was turned away, by the words its refuser uses.
REJECTIONS = {
    "queue_full": "full",
    "never_fits": "oversized",
    "unknown_model": "unknown_model",
    "draining": "draining",
    "failed": "failed",
}
TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ROUND_GAP_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.025)
GAP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class NamedDevice(Protocol):
    """What metrics read of a device; see `ignis.plan.Device`."""

    @property
    def kind(self) -> str: ...
    @property
    def title(self) -> str: ...


class SealedPlan(TieredPlan, Protocol):
    """What metrics read of a plan."""

    @property
    def device(self) -> NamedDevice: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def kv_page_bytes(self) -> int: ...
    def line_bytes(self) -> list[tuple[str, int]]: ...


class RoundFacts(TierRound, Protocol):
    """What metrics read of a round; see `ignis.engine.metrics.RoundStats`."""

    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_lanes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def pages_free(self) -> int: ...
    @property
    def plan_allocations(self) -> int: ...
    @property
    def gap_s(self) -> float | None: ...


class Histogram:
    """Counts by upper bound, in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation; a bound includes its own value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus wants them."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class Metrics(Collector):
    """Everything that is counted. Fulfils `ignis.engine.metrics.EngineMetrics`."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.ttft = Histogram(TTFT_BUCKETS)
        self.duration = Histogram(DURATION_BUCKETS)
        self.queued = Histogram(TTFT_BUCKETS)
        self.gap = Histogram(GAP_BUCKETS)
        self.round_gap = Histogram(ROUND_GAP_BUCKETS)
        self.accepted = self.completed = self.cancelled = self.failed = 0
        self.rejected = dict.fromkeys(REJECTIONS.values(), 0)
        self.generated_tokens = self.decoded_tokens = self.prompt_tokens = 0
        self.running = self.waiting = self.used_pages = 0
        self.plan_allocations = 0
        self.tiers = TierCounts()
        self._unload()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    # --- the plan -----------------------------------------------------------------------------

    def _unload(self) -> None:
        self.budget_bytes = self.pages = self.kv_page_bytes = 0
        self.reserved = dict.fromkeys(VRAM_LINES, 0)
        self.model = ""
        self.device = ("", "")
        self.tiers.unload()

    def plan_sealed(self, plan: SealedPlan, model: str) -> None:
        """A model is loaded, its memory sealed; `model` is the name clients use."""
        self.budget_bytes = plan.budget_bytes
        self.pages = plan.pages
        self.kv_page_bytes = plan.kv_page_bytes
        self.reserved |= dict(plan.line_bytes())
        self.model = model
        self.device = (plan.device.kind, plan.device.title)
        self.tiers.plan_sealed(plan)

    def model_unloaded(self) -> None:
        """No model is loaded: what describes one reads zero again."""
        self._unload()
        self.running = self.waiting = self.used_pages = 0

    # --- requests and rounds ------------------------------------------------------------------

    def request_submitted(self, request_class: str) -> None:
        """A request was accepted and waits."""
        self.accepted += 1

    def request_refused(self, reason: str) -> None:
        """A request was turned away, for one of the keys of `REJECTIONS`."""
        self.rejected[REJECTIONS[reason]] += 1

    def request_admitted(self, request_class: str, queued_s: float) -> None:
        """A request got its lane and pages."""
        self.queued.observe(queued_s)

    def first_token(self, request_class: str, ttft_s: float) -> None:
        """A request's first token was sampled."""
        self.ttft.observe(ttft_s)

    def token_gap(self, request_class: str, gap_s: float) -> None:
        """A later token was sampled."""
        self.gap.observe(gap_s)

    def request_done(
        self,
        request_class: str,
        outcome: str,
        prompt_tokens: int,
        completion_tokens: int,
        duration_s: float,
    ) -> None:
        """A request's reader was given its outcome."""
        self.duration.observe(duration_s)
        if outcome == "cancelled":
            self.cancelled += 1
        elif outcome == "error":
            self.failed += 1
        else:
            self.completed += 1

    def round_done(self, stats: RoundFacts) -> None:
        """A round ran."""
        self.prompt_tokens += stats.prefill_tokens
        self.generated_tokens += stats.tokens
        self.decoded_tokens += stats.decode_lanes
        self.running = stats.running
        self.waiting = stats.waiting
        self.used_pages = self.pages - stats.pages_free
        self.plan_allocations = stats.plan_allocations
        if stats.gap_s is not None:
            self.round_gap.observe(stats.gap_s)
        self.tiers.round_done(stats)

    def fact(self, fact: EngineFact) -> None:
        """Something moved, or was retained, reused or given up."""
        self.tiers.fact(fact)

    # --- reading ------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The text format, to be sent as `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        yield gauge("build_info", "The version that runs; always 1.", {self.version: 1}, "version")
        yield gauge(
            "model_loaded",
            "1 for the model that is loaded; 0 with an empty name while none is.",
            {self.model: int(bool(self.model))},
            "model",
        )
        yield gauge_by(
            "device_info",
            "1 for the device that the model runs on; 0 with empty names while none is loaded.",
            ("kind", "name"),
            {self.device: int(bool(self.model))},
        )
        yield gauge(
            "vram_budget_bytes", "Device memory the process may hold.", {"": self.budget_bytes}
        )
        yield gauge("vram_reserved_bytes", "Device memory reserved at load.", self.reserved, "line")
        yield gauge("kv_pool_pages", "Pages of the KV pool.", {"": self.pages})
        yield gauge("kv_page_bytes", "Bytes of one page.", {"": self.kv_page_bytes})
        yield gauge(
            "kv_pool_used_pages",
            "Pages that sequences and retained slots hold.",
            {"": self.used_pages},
        )
        yield counter(
            "plan_allocations",
            "Attempts to take memory after the plan was sealed; 0 unless there is a bug.",
            {"": self.plan_allocations},
        )
        yield gauge(
            "scheduler_requests",
            "Sequences that wait for room, parked ones among them, or run.",
            {"waiting": self.waiting, "running": self.running},
            "state",
        )
        yield counter("requests_accepted", "Requests taken in.", {"": self.accepted})
        yield counter("requests_completed", "Requests answered whole.", {"": self.completed})
        yield counter("requests_cancelled", "Requests whose client left.", {"": self.cancelled})
        yield counter("requests_failed", "Requests that ended in an error.", {"": self.failed})
        yield counter("requests_rejected", "Requests turned away.", self.rejected, "reason")
        yield counter("prompt_tokens", "Prompt tokens computed.", {"": self.prompt_tokens})
        yield counter("generated_tokens", "Tokens sampled.", {"": self.generated_tokens})
        yield counter(
            "decoded_tokens",
            "Tokens sampled in decode: all but the first of each answer.",
            {"": self.decoded_tokens},
        )
        yield from self.tiers.collect()
        for name, text, seconds in (
            ("request_queue_seconds", "Seconds from submit to a lane.", self.queued),
            ("request_ttft_seconds", "Seconds to the first token.", self.ttft),
            ("request_duration_seconds", "Seconds to the last.", self.duration),
            ("token_gap_seconds", "Seconds between two tokens.", self.gap),
            (
                "round_gap_seconds",
                "Seconds from the end of a round to the start of the next.",
                self.round_gap,
            ),
        ):
            yield histogram(name, text, seconds.cumulative(), seconds.sum)
