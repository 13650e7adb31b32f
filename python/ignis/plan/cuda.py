"""What it takes to use an NVIDIA card: the compiler of the `cuda` extra, a folder for kernels."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ignis.config.folders import user_cache_folder

if TYPE_CHECKING:
    from ignis import _native


@lru_cache(maxsize=1)
def nvrtc_file() -> str | None:
    """NVRTC as the wheel nvidia-cuda-nvrtc installs it; None leaves it to the system's search."""
    for base in sys.path:
        found = sorted(Path(base).glob("nvidia/*/lib/libnvrtc.so.1[0-9]")) if base else []
        if found:
            return str(found[-1])
    return None


def kernels_folder() -> Path:
    """Where compiled kernels are kept; removing it costs the next start some seconds."""
    return user_cache_folder() / "kernels"


def device_options(
    kind: str,
    *,
    threads: int = 1,
    kv_format: str = "bf16",
    activations: str | None = None,
    products: str = "same",
    kernels: str = "own",
    embedding: str = "device",
) -> _native.DeviceOptions:
    """Options of the core for a kind of device, with the libraries that a card needs.

    `activations` None is the default of that kind.
    """
    from ignis import _native

    if kind != "cuda":
        return _native.DeviceOptions(kind, threads, kv_format, activations)
    return _native.DeviceOptions(
        kind,
        threads,
        kv_format,
        activations,
        nvrtc=nvrtc_file(),
        cache=str(kernels_folder()),
        embedding=embedding,
        products=products,
        kernels=kernels,
    )


def find_facts() -> _native.CudaFacts:
    """Everything that was found of a card and what drives it; no context is made on it."""
    return device_options("cuda").cuda_facts()


def find_card() -> _native.CudaCard:
    """The card that a load would run on; no context is made on it.

    Raises `_native.DeviceUnavailableError`, one sentence with its remedy.
    """
    return device_options("cuda").check_cuda()
