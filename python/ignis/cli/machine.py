"""What a measured number needs beside it: the machine, the version, the command."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import ignis
from ignis.plan.cores import physical_cores

# Instruction sets that decide which kernels run, as /proc/cpuinfo spells them.
TELLING_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "asimd", "asimddp", "i8mm")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the build a figure was taken on."""

    cpu: str
    cpu_flags: str
    cores_usable: int
    memory_bytes: int
    system: str
    python: str
    ignis: str
    command: str

    def record(self) -> dict[str, str | int]:
        """As a flat object for a results file."""
        return asdict(self)


def describe_machine() -> Machine:
    """The facts of this machine and this process."""
    fields = _cpuinfo()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Machine(
        cpu=fields.get("model name") or platform.processor() or platform.machine(),
        cpu_flags=" ".join(flag for flag in TELLING_FLAGS if flag in flags),
        cores_usable=physical_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        ignis=ignis.__version__,
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
