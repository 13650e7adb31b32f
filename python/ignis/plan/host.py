"""The plan of host memory: lines against what is available less a margin.

A line's first byte over the limit refuses the whole plan before anything is reserved; a refusal
says host, never device. On the CPU device both plans take from the same memory: there the margin is
the headroom, and the budget of the device is what the host lines leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from ignis.config import OPTIONS
from ignis.plan.ask import Cut
from ignis.plan.lines import HOST_LINES, Line

GIB = 1 << 30

# What lowers the lines.
HOST_OPTIONS = ("reuse.retained_host", "reuse.kv_host_pool_bytes")


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Host memory reserved at load, beside the device's lines."""

    lines: tuple[Line, ...] = ()
    available_bytes: int = 0
    margin_bytes: int = 0
    shared: bool = False  # the device's memory is host memory
    notes: tuple[str, ...] = ()  # sentences, without a full stop

    @property
    def total_bytes(self) -> int:
        """Every line."""
        return sum(line.bytes for line in self.lines)

    @property
    def pinned_bytes(self) -> int:
        """Bytes that the device pins: every line, where it has memory of its own."""
        return 0 if self.shared else self.total_bytes

    @property
    def left_bytes(self) -> int:
        """What the lines leave of the available memory; on the CPU the device's share is in it."""
        return max(0, self.available_bytes - self.total_bytes)

    def line_bytes(self, name: str) -> int:
        """Bytes of the line of this name; 0 if there is none."""
        return sum(line.bytes for line in self.lines if line.name == name)


def plan_host(result: Cut, *, shared: bool) -> HostPlan:
    """The host's side of a cut that fits."""
    lines = tuple(Line(name, count, HOST_LINES[name]) for name, count in result.host_lines)
    sizes = result.sizes
    plan = HostPlan(lines, result.host_available_bytes, result.host_margin_bytes, shared)
    windows = plan.line_bytes("kv_ram_arena") // sizes.window_bytes if sizes.window_bytes else 0
    if not 0 < windows < sizes.image_windows:
        return plan
    note = (
        f"KV-RAM holds {windows:,} windows and the longest sequence takes {sizes.image_windows:,}: "
        "one that long does not move there"
    )
    return HostPlan(lines, plan.available_bytes, plan.margin_bytes, shared, (note,))


def why_host_refuses(result: Cut, *, shared: bool, movable: str | None) -> str:
    """Why the host lines of a cut are too much: in GiB, by the first line that crosses the limit.

    `movable` is the option that would put something of them on the device. Precondition: they do
    not fit.
    """
    limit = max(0, result.host_available_bytes - result.host_margin_bytes)
    running, crossing = 0, ""
    for name, count in result.host_lines:
        running += count
        if running > limit:
            crossing = name
            break
    parts = ", ".join(f"{name} {gib(count)}" for name, count in result.host_lines)
    lower = "lower " + " or ".join(OPTIONS[option].flag for option in HOST_OPTIONS)
    if movable is not None:
        lower += f", or set {OPTIONS[movable].flag} to device"
    kind = "host memory" if shared else "pinned host memory"
    return (
        f"the host plan needs {gib(result.host_bytes)} of {kind} and "
        f"{gib(result.host_available_bytes)} are available less a margin of "
        f"{gib(result.host_margin_bytes)}: {crossing} crosses it ({parts}); {lower}"
    )


def gib(count: int) -> str:
    """`2.00 GiB`."""
    return f"{count / GIB:.2f} GiB"
