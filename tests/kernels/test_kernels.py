"""Every CUDA kernel, compiled for every architecture and held to its limits; no card is needed.

The compiler is NVRTC of the wheel `nvidia-cuda-nvrtc`, which the `dev` group brings. What `ptxas`
says of each kernel is compared with `limits.toml`: registers, static shared memory, spilled bytes.
"""

from __future__ import annotations

import ctypes
import os
import re
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ignis import _native
from ignis.plan.cuda import nvrtc_file

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "crates" / "cuda" / "kernels"
CAPABILITIES = ((8, 0), (8, 9), (9, 0), (12, 0))
# Every unit that a load on a card of these may compile, by architecture and name.
UNITS: dict[str, tuple[str, list[str]]] = {
    f"sm_{capability[0]}{capability[1]}-{name}": (file, options)
    for capability in CAPABILITIES
    for name, file, options in _native.kernel_units(capability)
}
LIMITS: dict[str, dict[str, int]] = tomllib.loads((HERE / "limits.toml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Usage:
    """What one kernel takes: registers of a thread, bytes of static shared memory and spills."""

    registers: int = 0
    shared: int = 0
    spilled: int = 0


def compile_unit(unit: str) -> str:
    """The compiler's log; fails with it where there is an error."""
    name, options = UNITS[unit]
    path = nvrtc_file()
    assert path, "NVRTC is missing: pip install --group dev"
    lib = ctypes.CDLL(path)
    source = (SOURCES / name).read_bytes()
    headers = sorted(SOURCES.glob("*.cuh"))
    texts = (ctypes.c_char_p * len(headers))(*(path.read_bytes() for path in headers))
    names = (ctypes.c_char_p * len(headers))(*(path.name.encode() for path in headers))
    encoded = [option.encode() for option in [*options, "--ptxas-options=-v"]]
    program = ctypes.c_void_p()
    made = lib.nvrtcCreateProgram(
        ctypes.byref(program), source, name.encode(), len(headers), texts, names
    )
    assert made == 0
    array = (ctypes.c_char_p * len(encoded))(*encoded)
    result = lib.nvrtcCompileProgram(program, len(encoded), array)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode()
    assert result == 0, text
    # As of products by wgmma that would have to wait for each other.
    assert "Potential Performance Loss" not in text, text
    return text


def usage_of(log: str) -> dict[str, Usage]:
    """What each kernel takes, by name."""
    found: dict[str, Usage] = {}
    current = Usage()
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            current = found.setdefault(entry[1], Usage())
        if spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            current.spilled = int(spills[1]) + int(spills[2])
        if used := re.search(r"Used (\d+) registers", line):
            current.registers = int(used[1])
            shared = re.search(r"(\d+) bytes smem", line)
            current.shared = int(shared[1]) if shared else 0
    return found


def limit_of(kernel: str) -> dict[str, int]:
    """The first entry of the table whose pattern fits."""
    for pattern, limit in LIMITS.items():
        if fnmatch(kernel, pattern):
            return limit
    raise AssertionError(f"{kernel} has no limit; give it one in limits.toml")


@pytest.fixture(scope="module")
def compiled() -> Iterator[dict[str, Future[str]]]:
    """Every unit, side by side: the call gives the interpreter free."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {unit: pool.submit(compile_unit, unit) for unit in UNITS}


@pytest.mark.parametrize("unit", UNITS)
def test_every_kernel_compiles_within_its_limits(
    unit: str, compiled: dict[str, Future[str]]
) -> None:
    found = usage_of(compiled[unit].result())
    assert found, "the compiler's log names no kernel"
    problems = []
    for kernel, usage in sorted(found.items()):
        limit = limit_of(kernel)
        for what in ("registers", "shared", "spilled"):
            taken = getattr(usage, what)
            if taken > limit[what]:
                problems.append(f"{kernel}: {what} {taken}, at most {limit[what]}")
    assert not problems, "\n".join(problems)


def test_every_file_of_kernels_is_compiled() -> None:
    assert {file for file, _ in UNITS.values()} == {path.name for path in SOURCES.glob("*.cu")}
