"""The events of a process's life and of its plan; their names and fields are an interface.

Those of a request are logged by the engine, where they happen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from ignis.errors import PlanRefused

log = structlog.get_logger("ignis")


class LoggedPlan(Protocol):
    """What the events read of a plan; see `ignis.plan.Plan`."""

    @property
    def mode(self) -> str: ...
    @property
    def free_at_start_bytes(self) -> int: ...
    @property
    def headroom_bytes(self) -> int: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def allow_oversubscription(self) -> bool: ...
    @property
    def oversubscribed(self) -> tuple[str, ...]: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def allocated_at_load_bytes(self) -> int: ...
    @property
    def retained_device_slots(self) -> int: ...
    @property
    def retained_host_slots(self) -> int: ...
    @property
    def retained_host_bytes(self) -> int: ...
    @property
    def kv_pool_policy(self) -> str: ...
    @property
    def kv_page_bytes(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def pool_tokens(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def adapted(self) -> tuple[Adaptation, ...]: ...
    def line_bytes(self) -> list[tuple[str, int]]: ...


class LoggedDevice(Protocol):
    """What the events read of a device; see `ignis.plan.Device`."""

    @property
    def kind(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def why(self) -> str | None: ...


class LoggedLine(Protocol):
    """One line of a plan."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class LoggedHost(Protocol):
    """What the events read of a plan of host memory; see `ignis.plan.HostPlan`."""

    @property
    def lines(self) -> Sequence[LoggedLine]: ...
    @property
    def available_bytes(self) -> int: ...
    @property
    def margin_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def left_bytes(self) -> int: ...


class LoggedDisk(Protocol):
    """What the events read of a plan of KV-disk; see `ignis.plan.DiskPlan`."""

    @property
    def folder(self) -> Path: ...
    @property
    def bytes(self) -> int: ...
    @property
    def windows(self) -> int: ...


class LoggedCount(Protocol):
    """What the events read of a driver's count; see `ignis.engine.counted.Counted`."""

    @property
    def planned_bytes(self) -> int: ...
    @property
    def counted_bytes(self) -> int | None: ...
    @property
    def difference_bytes(self) -> int | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def is_beyond(self) -> bool: ...


class Adaptation(Protocol):
    """One lowered value."""

    def as_dict(self) -> dict[str, object]: ...


def process_started(version: str) -> None:
    """`ignis.process.started`: the process runs and has read its configuration."""
    log.info("ignis.process.started", version=version)


def process_ready(address: str, warm_up_ms: float) -> None:
    """`ignis.process.ready`: requests are answered from now on."""
    log.info("ignis.process.ready", address=address, warm_up_ms=round(warm_up_ms, 1))


def config_source(path: Path | None, profile: str | None, named: Iterable[str]) -> None:
    """`ignis.config.source`: the file, the profile and the options an operator set.

    Names only: a value may be a secret.
    """
    log.info(
        "ignis.config.source",
        source="file" if path else "none",
        path=str(path) if path else None,
        profile=profile,
        named=sorted(named),
    )


def device_chosen(device: LoggedDevice) -> None:
    """`ignis.device.chosen`: what the model runs on, and why `auto` took no card."""
    log.info("ignis.device.chosen", device=device.kind, title=device.title, reason=device.why)


def kernels_compiled(title: str, folder: Path) -> None:
    """`ignis.device.kernels_compiled`: kernels for a card are being compiled, which takes a while,
    and are kept in `folder`."""
    log.info("ignis.device.kernels_compiled", title=title, folder=str(folder))


def vram_plan(plan: LoggedPlan) -> None:
    """`ignis.runtime.vram_plan`, and `ignis.runtime.vram_oversubscribed` for each reason."""
    derived = plan.mode == "derived"
    log.info(
        "ignis.runtime.vram_plan",
        mode=plan.mode,
        free_at_start_bytes=plan.free_at_start_bytes,
        **(
            {"headroom_bytes": plan.headroom_bytes}
            if derived
            else {"allow_oversubscription": plan.allow_oversubscription}
        ),
        budget_bytes=plan.budget_bytes,
        **{f"{name}_bytes": count for name, count in plan.line_bytes()},
        kv_page_count=plan.pages,
        kv_page_bytes=plan.kv_page_bytes,
        total_bytes=plan.total_bytes,
        allocated_at_load_bytes=plan.allocated_at_load_bytes,
        oversubscribed=bool(plan.oversubscribed),
        retained_device_slots=plan.retained_device_slots,
        retained_host_slots=plan.retained_host_slots,
        retained_host_bytes=plan.retained_host_bytes,
        kv_pool_policy=plan.kv_pool_policy,
        kv_pool_pages=plan.pages,
        kv_pool_tokens=plan.pool_tokens,
        max_context=plan.context_tokens,
        lanes=plan.lanes,
        adapted=[step.as_dict() for step in plan.adapted],
    )
    outcome = (
        "the driver will page device memory out, which is slow and erratic"
        if sys.platform == "win32"
        else "an allocation will fail when the memory is not there"
    )
    for reason in plan.oversubscribed:
        log.warning(
            "ignis.runtime.vram_oversubscribed",
            reason=reason,
            outcome=outcome,
            budget_bytes=plan.budget_bytes,
            free_at_start_bytes=plan.free_at_start_bytes,
            total_bytes=plan.total_bytes,
        )


def host_plan(host: LoggedHost) -> None:
    """`ignis.runtime.host_plan`: every line of host memory, before it is reserved."""
    log.info(
        "ignis.runtime.host_plan",
        available_bytes=host.available_bytes,
        margin_bytes=host.margin_bytes,
        **{f"{line.name}_bytes": line.bytes for line in host.lines},
        planned_bytes=host.total_bytes,
        left_bytes=host.left_bytes,
    )


def retained_slots(device: int, host: int, host_bytes: int) -> None:
    """`ignis.scheduler.retained_slots`: how many there are, after the load."""
    log.info(
        "ignis.scheduler.retained_slots",
        retained_device_slots=device,
        retained_host_slots=host,
        retained_host_bytes=host_bytes,
    )


def device_recorded(kept: int, kinds: int, taken_bytes: int) -> None:
    """`ignis.device.recorded`: how many kinds of decode rounds are launched as one.

    The others, for which the plan's decode_graph was too small, are launched step by step: slower,
    and a warning.
    """
    say = log.info if kept == kinds else log.warning
    say(
        "ignis.device.recorded",
        rounds_recorded=kept,
        rounds_not_recorded=kinds - kept,
        taken_bytes=taken_bytes,
    )


def device_counted(counted: LoggedCount) -> None:
    """`ignis.device.counted`: what the driver counts to this process, beside the plan's total.

    Where nothing was compared, `reason` says why: the driver does not say, as in some containers,
    and `counted_bytes` is None; or they are less than the load reserved, so another process's. More
    than a plan may be wrong by is a warning, and a refusal follows unless oversubscription is
    allowed.
    """
    say = log.warning if counted.is_beyond else log.info
    say(
        "ignis.device.counted",
        compared=counted.reason is None,
        reason=counted.reason,
        planned_bytes=counted.planned_bytes,
        counted_bytes=counted.counted_bytes,
        difference_bytes=counted.difference_bytes,
    )


def kv_disk_ready(disk: LoggedDisk, *, windows_used: int, images_removed: int) -> None:
    """`ignis.kv_disk.ready`: the file is reserved and was looked through.

    `windows_used` hold what an earlier process retained; `images_removed` were another model's,
    live ones of a process that is gone, or damaged.
    """
    log.info(
        "ignis.kv_disk.ready",
        path=str(disk.folder),
        bytes=disk.bytes,
        windows=disk.windows,
        windows_used=windows_used,
        images_removed=images_removed,
    )


def vram_loaded(planned_bytes: int, free_before_bytes: int, free_after_bytes: int) -> None:
    """`ignis.runtime.vram_loaded`: what was planned beside what the system says was taken."""
    log.info(
        "ignis.runtime.vram_loaded",
        planned_bytes=planned_bytes,
        free_delta_bytes=free_before_bytes - free_after_bytes,
        free_after_bytes=free_after_bytes,
    )


def plan_refused(refusal: PlanRefused) -> None:
    """`ignis.runtime.vram_plan_refused`, or the same of `host` or `disk`.

    `planned_bytes` is None but for a plan that fitted, of which the load took more.
    """
    log.error(
        f"ignis.runtime.{refusal.plan}_plan_refused",
        message=refusal.message,
        needed_bytes=refusal.needed_bytes,
        budget_bytes=refusal.budget_bytes,
        planned_bytes=refusal.planned_bytes,
        shortfall_bytes=refusal.shortfall_bytes,
        options=[one.option for one in refusal.suggestions or refusal.together],
    )
