"""What planning asks of the Rust core: headers and sizes, as a protocol that tests can fulfil."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ignis.errors import ConfigError, EngineError, IgnisError, ModelFileError, PlanError
from ignis.plan.ask import Ask, Sizes, SizesOf
from ignis.plan.cuda import device_options
from ignis.plan.devices import NoCard

if TYPE_CHECKING:
    from ignis import _native


@dataclass(frozen=True, slots=True)
class Model:
    """What the headers of a checkpoint say that a plan and its readers need."""

    path: str
    name: str
    architecture: str
    format: str
    quantisation: str
    parameters: int
    stored_bytes: int
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_trained: int


class PlanCore(Protocol):
    """Sizes without weights and without a device."""

    def inspect(self, path: str) -> Model: ...
    def sizes(self, path: str, device: str, ask: Ask) -> Sizes: ...
    def misfit(self, path: str, device: str, kv_format: str, activations: str) -> str | None: ...
    def free_bytes(self, device: str) -> int: ...
    def disk_available(self, folder: Path) -> int: ...
    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]: ...
    def close_card(self) -> None: ...


class NativeCore:
    """The Rust core itself; imported at first use, so that help needs no built core."""

    def inspect(self, path: str) -> Model:
        """Headers only. Raises ModelFileError."""
        with native_errors():
            from ignis import _native

            info = _native.inspect(path)
            return Model(
                path=path,
                name=info.name,
                architecture=info.architecture,
                format=info.format,
                quantisation=info.quantisation,
                parameters=info.parameters,
                stored_bytes=info.stored_bytes,
                layers=info.layers,
                hidden=info.hidden,
                ffn=info.ffn,
                heads=info.heads,
                kv_heads=info.kv_heads,
                head_dim=info.head_dim,
                vocab=info.vocab,
                context_trained=info.context_trained,
            )

    def read_metadata(self, path: str) -> dict[str, object]:
        """Every key of a GGUF header, or of a folder's config.json. Raises ModelFileError."""
        with native_errors():
            from ignis import _native

            return _native.read_metadata(path)

    def sizes(self, path: str, device: str, ask: Ask) -> Sizes:
        """A dry run of the code that binds. Raises ModelFileError."""
        with native_errors():
            from ignis import _native

            needs = _native.needs(
                path,
                _native.Limits(
                    ask.lanes,
                    ask.chunk_tokens,
                    ask.context_tokens,
                    0,
                    ask.retained_device,
                ),
                device_options(
                    device,
                    threads=ask.threads,
                    kv_format=ask.kv_format,
                    activations=ask.activations,
                    products=ask.products,
                    embedding=ask.embedding,
                ),
            )
            return Sizes(
                tuple(needs.lines),
                needs.kv_page_bytes,
                needs.page_tokens,
                retained_slot_bytes=needs.retained_slot_bytes,
                pinned_bytes=needs.pinned_bytes,
                image_payload_bytes=needs.image_payload_bytes,
                window_bytes=needs.window_bytes,
            )

    def misfit(self, path: str, device: str, kv_format: str, activations: str) -> str | None:
        """What a device has no kernels for, of what the model needs; None where it runs it.

        No device is needed. Raises ModelFileError.
        """
        with native_errors():
            return misfit_of(path, device, kv_format, activations)

    def free_bytes(self, device: str) -> int:
        """Device memory free now; for the CPU, available RAM within the container's limit."""
        with native_errors():
            from ignis import _native

            return _native.free_bytes(device)

    def disk_available(self, folder: Path) -> int:
        """Bytes that KV-disk's file in a folder could have: free ones, and those it has already.

        The folder need not be there. Raises PlanError if its volume cannot be asked.
        """
        with native_errors():
            from ignis import _native

            return _native.disk_available(folder)

    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]:
        """Bytes of the lines that the driver takes for this model, forced and measured: opens the
        device. Raises NoCard where it cannot be opened."""
        with native_errors():
            from ignis import _native

            try:
                return tuple(device_options(device).measured(path))
            except _native.DeviceUnavailableError as error:
                raise NoCard(str(error)) from None

    def close_card(self) -> None:
        """Gives back what `measured` opened, and with it the driver's part of the card."""
        with native_errors():
            from ignis import _native

            _native.close_card()


def misfit_of(
    model: str | _native.RandomModel, device: str, kv_format: str, activations: str
) -> str | None:
    """As `PlanCore.misfit`, of random weights too, and raising what the core raises."""
    from ignis import _native

    options = device_options(device, kv_format=kv_format, activations=activations)
    try:
        _native.needs(model, _native.Limits(1, 64, 64, 0), options)
    except _native.DeviceUnsuitedError as error:
        return str(error)
    return None


@contextmanager
def native_errors() -> Iterator[None]:
    """Raise what the core raises about files and shapes as one of ours."""
    try:
        from ignis import _native
    except ImportError as error:
        raise IgnisError(f"the Rust core is not built ({error}); run `make setup`") from None
    try:
        yield
    except (_native.FileError, _native.ShapeUnsupportedError) as error:
        raise ModelFileError(str(error)) from error
    except _native.DeviceUnavailableError as error:
        raise ConfigError(f"device: {error}") from error
    except _native.MemoryRefusedError as error:
        raise PlanError(str(error)) from error
    except _native.DeviceFaultError as error:
        raise EngineError(str(error)) from error
    except OverflowError as error:
        raise PlanError(f"a size is beyond what can be counted: {error}") from error


def sizes_by_ask(core: PlanCore, path: str, device: str) -> SizesOf:
    """Sizes of one model on one device, each distinct dry run done once."""

    @lru_cache(maxsize=4096)
    def run(ask: Ask) -> Sizes:
        return core.sizes(path, device, ask)

    def sizes_of(ask: Ask) -> Sizes:
        return run(
            Ask(
                context_tokens=ask.context_tokens,
                lanes=ask.lanes,
                chunk_tokens=ask.chunk_tokens,
                threads=ask.threads,
                kv_format=ask.kv_format,
                activations=ask.activations,
                products=ask.products,
                embedding=ask.embedding,
                retained_device=ask.retained_device,
                free_bytes=0,
            )
        )

    return sizes_of
