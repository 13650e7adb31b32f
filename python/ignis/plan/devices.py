"""The devices a plan can be made for: those of this build, and cards that need not be here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ignis.config import Config
from ignis.config.load import unknown_name
from ignis.errors import ConfigError, PlanError
from ignis.plan.cuda import find_card
from ignis.plan.units import MIB


@dataclass(frozen=True, slots=True)
class Device:
    """What a plan needs to know of a device.

    `total_bytes` None means that free memory is read from this machine. `recorded` holds bytes of
    the lines that only a load can measure: of a load on such a card where `assumed` is false, else
    of none of ours; a plan marks both. A card that is here has none: they are measured. `why` says
    what kept `auto` from a card, and `may_yield` that `auto` chose this card, so that the CPU
    takes its place if it cannot run or hold the model.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    title: str
    total_bytes: int | None = None
    recorded: tuple[tuple[str, int], ...] = ()
    assumed: bool = False
    why: str | None = None
    may_yield: bool = False

    @property
    def lanes(self) -> int:
        """`model.lanes` where nobody named it."""
        return 4 if self.kind == "cpu" else 8

    @property
    def chunk_tokens(self) -> int:
        """`model.prefill_chunk` where nobody named it."""
        return 512 if self.kind == "cpu" else 1024


CPU = Device("cpu", "cpu", "this machine's CPU")

# Bytes of the driver's context, and of what modules and library handles take: on an H200 as
# benches/results/card-h200.json has them. For an RTX 5090 no load of ours was measured: the
# figures are what other programs were seen to take, and leave room.
_HOPPER = (("cuda_context", 547_356_672), ("residual", 4 * MIB))
_RTX = (("cuda_context", 452_595_712), ("residual", 88_028_656))


def _hopper(name: str, title: str, total: int, *, assumed: bool = False) -> Device:
    return Device(name, "cuda", title, total * MIB, _HOPPER, assumed)


def _rtx(name: str, title: str, total: int) -> Device:
    return Device(name, "cuda", title, total * MIB, _RTX, assumed=True)


# Total memory in MiB as the driver reports it.
CARDS: dict[str, Device] = {
    card.name: card
    for card in (
        _rtx("rtx5090", "NVIDIA GeForce RTX 5090", 32_607),
        _rtx("rtx5080", "NVIDIA GeForce RTX 5080", 16_303),
        _rtx("rtx4090", "NVIDIA GeForce RTX 4090", 24_564),
        _rtx("rtx3090", "NVIDIA GeForce RTX 3090", 24_576),
        _rtx("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell", 97_887),
        _hopper("h100", "NVIDIA H100 80GB", 81_559, assumed=True),
        _hopper("h200", "NVIDIA H200", 143_771),
    )
}


def device_to_plan(name: str) -> Device:
    """A device by the name `ignis plan --device` takes: auto and cuda as a load takes them.

    Raises ConfigError for an unknown one, and for cuda where no card can be used.
    """
    if name == "cpu":
        return CPU
    if name == "auto":
        return _card_or_cpu()
    if name == "cuda":
        try:
            return _card_here()
        except NoCard as problem:
            raise ConfigError(
                f"--device cuda: {problem}; to plan for a card that is not here, name it "
                f"({', '.join(CARDS)})"
            ) from None
    if name not in CARDS:
        known = ["auto", "cpu", "cuda", *CARDS]
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
    if config.device == "auto":
        return _card_or_cpu()
    try:
        return _card_here()
    except NoCard as problem:
        place = config.source("device").place or "device"
        raise ConfigError(f"{place} {config.device}: {problem}") from None


def settle_device(device: Device, model: str, misfit: Callable[[str], str | None]) -> Device:
    """The device that runs a model, where `misfit` says of a kind what it has no kernels for.

    A card that `auto` chose yields to the CPU, which says why. Raises PlanError for one that was
    named.
    """
    problem = misfit(device.kind)
    if problem is None:
        return device
    why = f"{device.title} cannot run {model}: {problem}"
    if device.may_yield:
        return replace(CPU, why=why)
    raise PlanError(f"{why}; use --device cpu")


class NoCard(Exception):
    """Why no card can be used, and what to do about it."""


def _card_or_cpu() -> Device:
    try:
        return replace(_card_here(), may_yield=True)
    except NoCard as problem:
        return replace(CPU, why=str(problem))


def _card_here() -> Device:
    try:
        from ignis import _native
    except ImportError as error:
        raise NoCard(f"the Rust core is not built ({error}); run `make setup`") from None
    try:
        return Device("cuda", "cuda", find_card().name)
    except _native.NativeError as error:
        raise NoCard(str(error)) from None
