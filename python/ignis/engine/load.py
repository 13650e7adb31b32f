"""From a plan to a loaded engine: the one place that calls the core's load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ignis.errors import EngineError
from ignis.plan import Plan, native_errors
from ignis.plan.cuda import device_options

if TYPE_CHECKING:
    from ignis import _native


class Progress(Protocol):
    """Bytes read so far; may be asked from another thread while a load runs."""

    def bytes_done(self) -> int: ...
    def bytes_total(self) -> int: ...


def new_progress() -> _native.LoadProgress:
    """A progress to hand to `load_engine`."""
    with native_errors():
        from ignis import _native

        return _native.LoadProgress()


def load_engine(
    plan: Plan, progress: _native.LoadProgress | None = None, *, ids: int | None = None
) -> _native.Engine:
    """Reserve, load, warm up, verify and seal what `plan` says.

    Only token ids below `ids` are ever drawn: those that the tokenizer knows.

    Raises ModelFileError for the checkpoint, EngineError if the system did not give the planned
    memory or KV-disk's file, or the device failed; nothing stays reserved then.
    """
    with native_errors():
        from ignis import _native

        limits = _native.Limits(
            plan.lanes,
            plan.chunk_tokens,
            plan.context_tokens,
            plan.pages,
            plan.retained_device_slots,
            plan.retained_host_slots,
        )
        options = device_options(
            plan.device.kind,
            threads=plan.threads,
            kv_format=plan.kv_format,
            activations=plan.activations,
            products=plan.products,
            kernels=plan.kernels,
            embedding=plan.embedding,
        )
        disk = plan.disk
        tiers = _native.TierOptions(
            ram_bytes=plan.kv_ram_bytes,
            disk_path=disk.folder if disk else None,
            disk_bytes=disk.bytes if disk else 0,
            disk_margin_bytes=disk.margin_bytes if disk else 0,
        )
        try:
            engine = _native.Engine.load(
                plan.model.path, limits, options, plan.line_bytes(), progress, ids, tiers
            )
        except (_native.MemoryRefusedError, _native.DeviceFaultError) as error:
            raise EngineError(str(error)) from error
    _check_windows(plan, engine)
    if engine.pinned_bytes != plan.pinned_bytes:
        raise EngineError(
            f"pinned memory: {engine.pinned_bytes:,} bytes were pinned, {plan.pinned_bytes:,} were "
            "planned"
        )
    return engine


def _check_windows(plan: Plan, engine: _native.Engine) -> None:
    """Compare the windows that were reserved with those that were planned."""
    planned = {
        "kv_ram": plan.kv_ram_bytes // plan.window_bytes if plan.window_bytes else 0,
        "kv_disk": plan.disk.windows if plan.disk else 0,
    }
    for tier, (name, windows) in enumerate(planned.items()):
        found = engine.windows_total(tier)
        if found != windows:
            raise EngineError(f"{name}: {found} windows were reserved, {windows} were planned")


def read_metadata(path: str) -> dict[str, object]:
    """GGUF metadata, or a folder's config.json, from the headers alone. Raises ModelFileError."""
    with native_errors():
        from ignis import _native

        return _native.read_metadata(path)
