"""What it takes to use an NVIDIA card: the compiler of the `cuda` extra, a folder for kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from ignis.config.folders import user_cache_folder

if TYPE_CHECKING:
    from ignis import _native


WATCH_SECONDS = 0.1

Tell = Callable[[str, Path], None]
"""Told that kernels are compiled for a card, by its title, and the folder that keeps them."""


@lru_cache(maxsize=1)
def nvrtc_files() -> tuple[str, ...]:
    """NVRTC as NVIDIA's wheels install it, the newest first.

    An environment may hold several, each of its own CUDA, of which the core takes the one that
    suits driver and card.
    """
    bases = dict.fromkeys(base for base in sys.path if base)
    found = [path for base in bases for path in Path(base).glob("nvidia/*/lib/libnvrtc.so.1[0-9]")]
    found.sort(key=lambda path: path.name, reverse=True)
    return tuple(map(str, found))


def nvrtc_file() -> str | None:
    """The newest of `nvrtc_files`; None without any."""
    return next(iter(nvrtc_files()), None)


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
        nvrtc=nvrtc_files(),
        cache=str(kernels_folder()),
        embedding=embedding,
        products=products,
        kernels=kernels,
    )


@contextmanager
def telling_of_kernels(title: str, tell: Tell | None) -> Iterator[None]:
    """Calls `tell` once, from another thread, if the core begins to compile kernels meanwhile.

    `title` is the card's.
    """
    if tell is None:
        yield
        return
    from ignis import _native

    before = _native.kernels_made()
    over = Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if _native.kernels_made() > before:
                tell(title, kernels_folder())
                return

    watcher = Thread(target=watch, name="ignis-kernels", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def find_facts() -> _native.CudaFacts:
    """Everything that was found of a card and what drives it; no context is made on it."""
    return device_options("cuda").cuda_facts()


def find_card() -> _native.CudaCard:
    """The card that a load would run on; no context is made on it.

    Raises `_native.DeviceUnavailableError`, one sentence with its remedy.
    """
    return device_options("cuda").check_cuda()
