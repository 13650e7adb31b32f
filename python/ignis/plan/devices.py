"""The devices a plan can be made for: those of this build, and cards that need not be here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ignis.config import Config
from ignis.config.load import unknown_name
from ignis.errors import ConfigError
from ignis.plan.cuda import find_card
from ignis.plan.units import MIB


@dataclass(frozen=True, slots=True)
class Device:
    """What a plan needs to know of a device.

    `total_bytes` None means that free memory is read from this machine. `recorded` holds bytes of
    the lines that only a load can measure, as they were measured on a card of this kind; a plan
    marks them estimated. A card that is here has none: they are measured. `why` says what kept
    `auto` from a card.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    title: str
    total_bytes: int | None = None
    recorded: tuple[tuple[str, int], ...] = ()
    why: str | None = None

    @property
    def lanes(self) -> int:
        """`model.lanes` where nobody named it."""
        return 4 if self.kind == "cpu" else 8

    @property
    def chunk_tokens(self) -> int:
        """`model.prefill_chunk` where nobody named it."""
        return 512 if self.kind == "cpu" else 1024


CPU = Device("cpu", "cpu", "this machine's CPU")

# Bytes of the driver's context and of what rounding, graphs and library handles take, measured on
# an RTX 5090; and on an H200 (context 526.8 MiB; graphs 38 MiB, a handle 2 MiB, rounding 2 MiB).
_RTX = (("cuda_context", 452_595_712), ("residual", 88_028_656))
_HOPPER = (("cuda_context", 552_389_837), ("residual", 42 * MIB))

# Total memory as the driver reports it. Others of a generation take the figures of its nearest.
CARDS: dict[str, Device] = {
    card.name: card
    for card in (
        Device("rtx5090", "cuda", "NVIDIA GeForce RTX 5090", 32_607 * MIB, _RTX),
        Device("rtx5080", "cuda", "NVIDIA GeForce RTX 5080", 16_303 * MIB, _RTX),
        Device("rtx4090", "cuda", "NVIDIA GeForce RTX 4090", 24_564 * MIB, _RTX),
        Device("rtx3090", "cuda", "NVIDIA GeForce RTX 3090", 24_576 * MIB, _RTX),
        Device("rtxpro6000", "cuda", "NVIDIA RTX PRO 6000 Blackwell", 97_887 * MIB, _RTX),
        Device("h100", "cuda", "NVIDIA H100 80GB", 81_559 * MIB, _HOPPER),
        Device("h200", "cuda", "NVIDIA H200", 143_771 * MIB, _HOPPER),
    )
}


def device_to_plan(name: str) -> Device:
    """A device by the name `ignis plan --device` takes. Raises ConfigError for an unknown one."""
    if name in {"auto", "cpu"}:
        return CPU
    if name == "cuda":
        try:
            return _card_here()
        except NoCard as problem:
            raise ConfigError(
                f"--device cuda: {problem}; to plan for a card that is not here, name it "
                f"({', '.join(CARDS)})"
            ) from None
    if name not in CARDS:
        known = ["cpu", *CARDS]
        raise ConfigError(
            f"--device {name}: unknown device{unknown_name(name, known)}; there are "
            f"{', '.join(known)}"
        )
    return CARDS[name]


def device_to_run(config: Config) -> Device:
    """The device a load runs on. Raises ConfigError where the named one cannot be used.

    `auto` takes the card if there is one that can be used, else the CPU, which then says why.
    """
    if config.device == "cpu":
        return CPU
    try:
        return _card_here()
    except NoCard as problem:
        if config.device == "auto":
            return replace(CPU, why=str(problem))
        place = config.source("device").place or "device"
        raise ConfigError(f"{place}: {problem}") from None


class NoCard(Exception):
    """Why no card can be used, and what to do about it."""


def _card_here() -> Device:
    try:
        from ignis import _native
    except ImportError as error:
        raise NoCard(f"the Rust core is not built ({error}); run `make setup`") from None
    try:
        return Device("cuda", "cuda", find_card().name)
    except _native.NativeError as error:
        raise NoCard(str(error)) from None
