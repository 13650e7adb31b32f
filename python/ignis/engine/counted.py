"""After a load on a card: what its driver counts to this process, beside what was planned.

Each line that the load reserves was compared by then; what is left is what the driver takes itself.
It is measured before the pool is cut, and a difference would be missed by the first who needs the
memory. The count is of the whole process, so it means something where one model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ignis.config import OPTIONS
from ignis.errors import PlanRefused, Suggestion
from ignis.plan import Plan
from ignis.plan.units import MIB, exact

SLACK_BYTES = 16 * MIB
"""By how much the driver may count more than was planned."""

DRIVERS_LINES = "cuda_context, residual, decode_graph"


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes of the card: planned, and counted to this process; None where the driver does not say.

    `reserved_bytes` of the planned ones are what the load itself reserved. `is_allowed` says that
    more than was planned is a warning and no refusal.
    """

    planned_bytes: int
    counted_bytes: int | None
    reserved_bytes: int
    is_allowed: bool = False

    @property
    def reason(self) -> str | None:
        """Why both are not compared; None where they are."""
        if self.counted_bytes is None:
            return "the driver does not say"
        if self.counted_bytes < self.reserved_bytes:
            return (
                f"fewer than the {self.reserved_bytes} reserved, so another process's: a container "
                "may number its processes itself"
            )
        return None

    @property
    def difference_bytes(self) -> int | None:
        """By how much more was counted than planned; None where they are not compared."""
        if self.counted_bytes is None or self.reason is not None:
            return None
        return self.counted_bytes - self.planned_bytes

    @property
    def is_beyond(self) -> bool:
        """Whether more was counted than a plan may be wrong by."""
        return self.difference_bytes is not None and self.difference_bytes > SLACK_BYTES


def driver_count() -> int | None:
    """Bytes of the card that its driver counts to this process; None where it does not say."""
    from ignis import _native

    return _native.process_bytes()


def compare(plan: Plan, counted: int | None) -> Counted:
    """What the driver counts after the load of `plan` on a card, beside its total."""
    return Counted(
        plan.total_bytes, counted, plan.allocated_at_load_bytes, plan.allow_oversubscription
    )


def refuse_beyond(counted: Counted, plan: Plan) -> None:
    """Raises PlanRefused where the driver counts more than was planned and nobody allowed it."""
    more = counted.difference_bytes
    if more is None or not counted.is_beyond or counted.is_allowed:
        return
    show = OPTIONS["vram.budget_bytes"].kind.show
    budget = show(max(0, plan.budget_bytes - more) // MIB * MIB)
    named = show(plan.budget_bytes) if plan.mode == "explicit" else "not set"
    raise PlanRefused(
        f"the driver counts {exact(counted.planned_bytes + more)} of {plan.device.title} to this "
        f"process, {exact(more)} more than the {exact(counted.planned_bytes)} planned, in what it "
        f"takes itself ({DRIVERS_LINES}); start again, or leave it that room with "
        f"{OPTIONS['vram.budget_bytes'].flag} {budget} and "
        f"{OPTIONS['vram.allow_oversubscription'].flag} on",
        needed_bytes=counted.planned_bytes + more,
        budget_bytes=plan.budget_bytes,
        planned_bytes=counted.planned_bytes,
        together=(
            Suggestion("vram.budget_bytes", named, budget, more),
            Suggestion("vram.allow_oversubscription", "off", "on", 0),
        ),
        adapted=tuple(step.as_dict() for step in plan.adapted),
    )
