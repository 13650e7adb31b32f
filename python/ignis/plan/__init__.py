"""Every byte of a load, decided before any is reserved: budget, lines, pool, adaptation, refusal.

This package knows no request and no server. It reserves nothing; the engine does, and compares.
"""

from ignis.plan.adapt import Step
from ignis.plan.core import Model, NativeCore, PlanCore, native_errors
from ignis.plan.devices import CARDS, CPU, Device, device_to_plan, device_to_run
from ignis.plan.disk import DiskPlan
from ignis.plan.host import HostPlan
from ignis.plan.lines import HOST_LINES, VRAM_LINES, Line
from ignis.plan.plan import Plan, make_plan

__all__ = [
    "Plan",
    "make_plan",
    "Line",
    "VRAM_LINES",
    "Step",
    "HOST_LINES",
    "HostPlan",
    "DiskPlan",
    "Device",
    "CPU",
    "CARDS",
    "device_to_plan",
    "device_to_run",
    "Model",
    "PlanCore",
    "NativeCore",
    "native_errors",
]
