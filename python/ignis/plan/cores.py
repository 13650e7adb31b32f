"""How many physical cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(topology: Path = TOPOLOGY, quota: Path = QUOTA) -> int:
    """Physical cores among the CPUs of this process, at most the container's quota; at least 1."""
    cpus = _cpus_allowed()
    cores = {_core(topology, cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota(quota) or len(cores)))


def _cpus_allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _core(topology: Path, cpu: int) -> tuple[str, str]:
    """Which core a CPU is a thread of; itself where the system does not say."""
    folder = topology / f"cpu{cpu}" / "topology"
    try:
        package = (folder / "physical_package_id").read_text().strip()
        return package, (folder / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)


def _quota(path: Path) -> int | None:
    """Whole CPUs of a cgroup v2 quota ("150000 100000" is 1.5), rounded up; None if unlimited."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None
