"""The plan of pinned host memory: lines against what is available less a margin.

A line's first byte over the limit refuses the whole plan before anything is pinned; a refusal says
host, never device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ignis.errors import PlanRefused
from ignis.plan.lines import Line

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Pinned memory reserved at load. The CPU device pins nothing, so there it has no lines."""

    lines: tuple[Line, ...]
    available_bytes: int
    margin_bytes: int

    @property
    def total_bytes(self) -> int:
        """Every line."""
        return sum(line.bytes for line in self.lines)

    def line_bytes(self, name: str) -> int:
        """Bytes of the line of this name; 0 if there is none."""
        return sum(line.bytes for line in self.lines if line.name == name)


def plan_host(
    lines: tuple[Line, ...], available_bytes: int, margin_bytes: int, options: tuple[str, ...]
) -> HostPlan:
    """Check the lines against available memory less the margin.

    `options` are those that lower the lines. Raises PlanRefused naming the first line whose
    running total crosses the limit.
    """
    plan = HostPlan(lines, available_bytes, margin_bytes)
    limit = max(0, available_bytes - margin_bytes)
    running = 0
    for line in lines:
        running += line.bytes
        if running > limit:
            parts = ", ".join(f"{one.name} {_gib(one.bytes)}" for one in lines)
            raise PlanRefused(
                f"the host plan needs {_gib(plan.total_bytes)} of pinned memory and "
                f"{_gib(available_bytes)} are available less a margin of {_gib(margin_bytes)}: "
                f"{line.name} crosses it ({parts}); lower {' or '.join(options)}",
                plan="host",
                needed_bytes=plan.total_bytes,
                budget_bytes=limit,
            )
    return plan


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
