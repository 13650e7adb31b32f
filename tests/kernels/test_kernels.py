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

from ignis.plan.cuda import nvrtc_file

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "crates" / "cuda" / "kernels"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120a")
# Each file, and each format of weights that products are compiled for: the order of `enum Format`.
PARTS = [path.name for path in sorted(SOURCES.glob("*.cu")) if path.name != "linear.cu"]
PARTS += [f"linear.cu {number}" for number in range(8)]
LIMITS: dict[str, dict[str, int]] = tomllib.loads((HERE / "limits.toml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Usage:
    """What one kernel takes: registers of a thread, bytes of static shared memory and spills."""

    registers: int = 0
    shared: int = 0
    spilled: int = 0


def compile_part(part: str, architecture: str) -> str:
    """The compiler's log; fails with it where there is an error."""
    name, _, weights = part.partition(" ")
    path = nvrtc_file()
    assert path, "NVRTC is missing: pip install --group dev"
    lib = ctypes.CDLL(path)
    source = (SOURCES / name).read_bytes()
    headers = sorted(SOURCES.glob("*.cuh"))
    texts = (ctypes.c_char_p * len(headers))(*(path.read_bytes() for path in headers))
    names = (ctypes.c_char_p * len(headers))(*(path.name.encode() for path in headers))
    options = [
        f"--gpu-architecture={architecture}".encode(),
        b"--std=c++17",
        b"--fmad=false",
        b"-default-device",
        b"--ptxas-options=-v",
        *([f"-DFORMAT={weights}".encode()] if weights else []),
    ]
    program = ctypes.c_void_p()
    made = lib.nvrtcCreateProgram(
        ctypes.byref(program), source, name.encode(), len(headers), texts, names
    )
    assert made == 0
    array = (ctypes.c_char_p * len(options))(*options)
    result = lib.nvrtcCompileProgram(program, len(options), array)
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
def compiled() -> Iterator[dict[tuple[str, str], Future[str]]]:
    """Every part for every architecture, side by side: the call gives the interpreter free."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {
            (part, architecture): pool.submit(compile_part, part, architecture)
            for architecture in ARCHITECTURES
            for part in PARTS
        }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("part", PARTS)
def test_every_kernel_compiles_within_its_limits(
    part: str, architecture: str, compiled: dict[tuple[str, str], Future[str]]
) -> None:
    found = usage_of(compiled[part, architecture].result())
    assert found, "the compiler's log names no kernel"
    problems = []
    for kernel, usage in sorted(found.items()):
        limit = limit_of(kernel)
        for what in ("registers", "shared", "spilled"):
            taken = getattr(usage, what)
            if taken > limit[what]:
                problems.append(f"{kernel}: {what} {taken}, at most {limit[what]}")
    assert not problems, "\n".join(problems)
