"""From a plan to a loaded engine: the one place that calls the core's load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ignis.errors import EngineError
from ignis.plan import Plan, native_errors

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
    memory or the device failed; nothing stays reserved then.
    """
    with native_errors():
        from ignis import _native

        limits = _native.Limits(plan.lanes, plan.chunk_tokens, plan.context_tokens, plan.pages)
        options = _native.DeviceOptions(
            plan.device.kind, plan.threads, plan.kv_format, plan.activations
        )
        try:
            return _native.Engine.load(
                plan.model.path, limits, options, plan.line_bytes(), progress, ids
            )
        except (_native.MemoryRefusedError, _native.DeviceFaultError) as error:
            raise EngineError(str(error)) from error


def read_metadata(path: str) -> dict[str, object]:
    """GGUF metadata, or a folder's config.json, from the headers alone. Raises ModelFileError."""
    with native_errors():
        from ignis import _native

        return _native.read_metadata(path)
