"""The engines that a simulated run can drive: the core's simulated device, and its Python twin."""

from __future__ import annotations

from typing import Any

from ignis.engine.native import Core, native_core
from tests.simulation.reference_engine import ReferenceEngine, reference_core
from tests.simulation.shapes import Shape


def native(shape: Shape, fault_ppm: int = 0) -> Core[Any, Any]:
    """Rust's page table, block tables, images and rounds, on the witness model.

    `fault_ppm` in a million rounds fail.
    """
    from ignis import _native

    limits = _native.Limits(
        lanes_max=shape.lanes_max,
        chunk_tokens_max=shape.chunk_tokens_max,
        context_tokens_max=shape.context_tokens_max,
        pages=shape.pages_total,
        retained_device=shape.retained_device,
        retained_host=shape.retained_host,
    )
    sizes = limits, shape.vocab, shape.seed, fault_ppm, shape.ram_windows, shape.disk_windows
    try:
        return native_core(_native.Engine.simulated(*sizes, shape.disk_fault_ppm))
    except _native.DeviceFaultError:
        # A disk that fails at the start refuses the start; the next one is sound.
        return native_core(_native.Engine.simulated(*sizes))


def reference(shape: Shape) -> Core[Any, Any]:
    """The naive twin."""
    return reference_core(
        ReferenceEngine(
            lanes_max=shape.lanes_max,
            pages_total=shape.pages_total,
            chunk_tokens_max=shape.chunk_tokens_max,
            vocab=shape.vocab,
            seed=shape.seed,
            retained_slots=shape.retained_device + shape.retained_host,
            ram_windows=shape.ram_windows,
            disk_windows=shape.disk_windows,
            disk_fault_ppm=shape.disk_fault_ppm,
        )
    )
