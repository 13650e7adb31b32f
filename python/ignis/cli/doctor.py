"""`ignis doctor`: what this machine has to serve with. Status 0 if some device can."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ignis.cli.flags import add_option_flags, config_from
from ignis.cli.machine import describe_machine
from ignis.plan.core import native_errors
from ignis.plan.cuda import find_facts, kernels_folder
from ignis.plan.units import human

if TYPE_CHECKING:
    from ignis import _native

LIBRARIES = ("libcuda.so", "libnvrtc.so", "libnvidia-ml.so")
MAPS = Path("/proc/self/maps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis doctor`."""
    parser.usage = "%(prog)s [options]"
    add_option_flags(parser, ("", "kv_disk", "cache"))


def main(args: argparse.Namespace) -> int:
    """Print what was found; the exit status."""
    config = config_from(args)
    console = Console()
    with native_errors():
        from ignis import _native

        rows = _machine(_native.free_bytes("cpu"))
        facts = find_facts()
    rows += card_rows(facts)
    made = len(list(kernels_folder().glob("*.cubin")))
    rows.append(("kernels", f"{kernels_folder()}, {made} files"))
    rows += [("library", path) for path in loaded_libraries()]
    rows.append(("KV-disk", _disk(config.kv_disk_folder)))
    if facts.refusal:
        rows.append(("problem", f"no card can be used: {facts.refusal}"))
    found = "cpu" if facts.refusal else "cuda"
    rows.append(("serving", f"possible; device auto takes {found}"))
    for name, text in rows:
        console.print(f"{name:9}{text}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _machine(free: int) -> list[tuple[str, str]]:
    machine = describe_machine()
    return [
        ("ignis", f"{machine.ignis}, Python {machine.python}, {machine.system}"),
        ("CPU", f"{machine.cpu} ({machine.cpu_flags}), {machine.cores_usable} cores"),
        ("RAM", f"{human(machine.memory_bytes)}, {human(free)} available"),
    ]


def card_rows(facts: _native.CudaFacts) -> list[tuple[str, str]]:
    """What was found of the card: what is missing too, since that is what one looks for."""
    driver = facts.driver_problem or f"for CUDA {_version(facts.driver)}"
    rows = [("driver", f"{facts.release}, {driver}" if facts.release else driver)]
    if facts.name is None:
        rows.append(("card", "none" if facts.cards == 0 else "the first does not answer"))
    else:
        memory = "its memory is not known"
        if facts.total_bytes is not None and facts.free_bytes is not None:
            memory = f"{human(facts.total_bytes)}, {human(facts.free_bytes)} free"
        text = f"{facts.name}, compute capability {_version(facts.capability)}, {memory}"
        further = f"; the first of {facts.cards}" if facts.cards > 1 else ""
        rows.append(("card", text + further))
    if facts.mode not in {None, "shared"}:
        rows.append(("mode", f"{facts.mode} (nvidia-smi -c)"))
    for process, used, program in facts.others:
        memory = "memory unknown" if used is None else human(used)
        rows.append(("in use", f"process {process}, {memory} {program}".rstrip()))
    return rows + _nvrtc_rows(facts)


def _nvrtc_rows(facts: _native.CudaFacts) -> list[tuple[str, str]]:
    """The file that compiles for the card, and those that were found and do not."""
    rows = []
    if facts.nvrtc_file is not None:
        rows.append(("NVRTC", f"{_version(facts.nvrtc)}, {facts.nvrtc_file}"))
    for version, file in facts.nvrtc_found:
        if file != facts.nvrtc_file:
            rows.append(("NVRTC", f"{_version(version)}, {file}: not used"))
    rows += [("NVRTC", f"{file} cannot be loaded") for file in facts.nvrtc_broken]
    return rows or [("NVRTC", "not found")]


def _version(pair: tuple[int, int] | None) -> str:
    return "unknown" if pair is None else f"{pair[0]}.{pair[1]}"


def loaded_libraries(maps: Path = MAPS) -> list[str]:
    """Files of NVIDIA's libraries that this process has loaded, as the system found them."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(LIBRARIES))


def _disk(folder: Path) -> str:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(there, os.W_OK):
        return f"{folder}: not writable"
    how = "unbuffered" if takes_direct(there) else "through the page cache (no O_DIRECT there)"
    return f"{folder}: reads and writes {how}"


def takes_direct(folder: Path) -> bool:
    """Whether files of this folder can be opened unbuffered."""
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return False
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".ignis-") as probe:
        try:
            os.close(os.open(probe.name, os.O_RDWR | flag))
        except OSError:
            return False
    return True
