"""The frozen plan of a load: every size and count, decided once, from a config and headers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ignis.config import OPTIONS, Config, PoolSize
from ignis.errors import ConfigError, PlanRefused
from ignis.plan.adapt import EMBEDDING, RETAINED_HOST_A_LANE, Step, adapt
from ignis.plan.ask import Ask, Cut, Sizes, SizesOf, cut
from ignis.plan.core import Model, NativeCore, PlanCore, sizes_by_ask
from ignis.plan.cores import physical_cores
from ignis.plan.cuda import Tell, telling_of_kernels
from ignis.plan.devices import CPU, Device, NoCard, device_to_run, settle_device
from ignis.plan.disk import DiskPlan, plan_disk
from ignis.plan.host import HostPlan, plan_host
from ignis.plan.lines import KV_POOL, VRAM_LINES, Line
from ignis.plan.refusal import may_start, refuse, refuse_budget_above_free
from ignis.plan.units import exact, human

CONTEXT_UNKNOWN = 4096  # for a checkpoint that does not say what it was trained for


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load reserves: on the device, in host memory, on disk. Bytes throughout.

    `lines` holds every line of the device, `kv_pool` last. The longest sequence makes an image of
    `image_windows` windows.
    """

    model: Model
    device: Device
    mode: Literal["derived", "explicit"]
    free_at_start_bytes: int
    headroom_bytes: int
    budget_bytes: int
    allow_oversubscription: bool
    lines: tuple[Line, ...]
    kv_page_bytes: int
    page_tokens: int
    pages: int
    floor_pages: int
    lanes: int
    context_tokens: int
    chunk_tokens: int
    threads: int
    kv_format: str
    activations: str
    products: str
    kernels: str
    embedding: str
    retained_device_slots: int
    retained_host_slots: int
    pool_named: PoolSize | None
    window_bytes: int
    image_windows: int
    host: HostPlan
    disk: DiskPlan | None = None
    adapted: tuple[Step, ...] = ()
    oversubscribed: tuple[str, ...] = ()  # a sentence for each reason; empty when the plan fits
    kv_pool_policy: str = "resident"

    @property
    def total_bytes(self) -> int:
        """Every line, the pool included."""
        return sum(line.bytes for line in self.lines)

    @property
    def spare_bytes(self) -> int:
        """What the budget leaves unused."""
        return max(0, self.budget_bytes - self.total_bytes)

    @property
    def pool_tokens(self) -> int:
        """Tokens the pool holds."""
        return self.pages * self.page_tokens

    @property
    def kv_pool_bytes(self) -> int:
        """The pool."""
        return self.pages * self.kv_page_bytes

    @property
    def retained_host_bytes(self) -> int:
        """The block of RAM that holds the host's retained slots."""
        return self.host.line_bytes("retained_host_slots")

    @property
    def kv_ram_bytes(self) -> int:
        """The block of RAM that holds images, whole windows; 0 when KV-RAM is off."""
        return self.host.line_bytes("kv_ram_arena")

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is pinned: all of it, beside a device with memory of its own."""
        return self.host.pinned_bytes

    @property
    def kv_disk_bytes(self) -> int:
        """The file that holds images; 0 when KV-disk is off."""
        return self.disk.bytes if self.disk else 0

    @property
    def allocated_at_load_bytes(self) -> int:
        """What the load itself reserves: all but what the driver takes."""
        outside = {"cuda_context", "residual", "decode_graph"}
        return sum(line.bytes for line in self.lines if line.name not in outside)

    def line_bytes(self) -> list[tuple[str, int]]:
        """Name and bytes of every line, the form in which the engine checks them."""
        return [(line.name, line.bytes) for line in self.lines]


def make_plan(
    config: Config,
    model: str | Path,
    *,
    device: Device | None = None,
    free_bytes: int | None = None,
    host_free_bytes: int | None = None,
    core: PlanCore | None = None,
    tell: Tell | None = None,
) -> Plan:
    """Plan the load of a checkpoint, a file or folder of which only headers are read.

    `device` None is the one this build runs on; where `auto` took a card that has no kernels for
    the model, or no memory for its least plan, the CPU takes its place, and one that was named is
    refused. `free_bytes` None reads the device, once, and `host_free_bytes` None this machine's
    memory, for a device with memory of its own. `tell` is told if kernels are compiled for the
    card, which takes a while.

    Raises PlanRefused when it does not fit, PlanError for a device that cannot run it, ConfigError
    for a value the model cannot have, and ModelFileError for a checkpoint that cannot be read.
    """
    core = core or NativeCore()
    device = device or device_to_run(config)
    info = core.inspect(str(model))
    title = f"{info.name or info.path} ({info.architecture})"
    device = settle_device(
        device,
        title,
        lambda kind: core.misfit(
            info.path, kind, config.model.kv_format, activations_of(config, kind)
        ),
    )
    load = _Load(config, info, core, tell)
    try:
        if free_bytes is None and device.may_yield and not names_card(config):
            plan = load.on_card_or_cpu(device, host_free_bytes, title)
        else:
            plan = load.on(device, free_bytes, host_free_bytes)
    except NoCard as problem:  # it was found, and cannot be opened
        if not device.may_yield:
            raise ConfigError(f"device: {problem}") from None
        plan = load.on(replace(CPU, why=str(problem)), free_bytes, None)
    disk = plan_disk(config, core, window_bytes=plan.window_bytes, image_windows=plan.image_windows)
    return replace(plan, disk=disk)


def names_card(config: Config) -> bool:
    """Whether an operator named an option about device memory or of cards, which `auto` then does
    not leave for want of memory."""
    about = {key for key, option in OPTIONS.items() if option.group in {"vram", "cuda"}}
    return any(config.named(key) for key in about | {EMBEDDING})


@dataclass(frozen=True, slots=True)
class _Load:
    """A load to plan, on one device or another."""

    config: Config
    model: Model
    core: PlanCore
    tell: Tell | None

    def on(
        self,
        device: Device,
        free_bytes: int | None,
        host_free_bytes: int | None,
        *,
        opened: bool = True,
    ) -> Plan:
        """Its plan, free memory read where it is None. A card that is here is opened, to measure
        what its driver takes, or else that counts as nothing. Raises PlanRefused."""
        if free_bytes is None:
            total = device.total_bytes
            free_bytes = self.core.free_bytes(device.kind) if total is None else total
        if device.kind == "cpu":
            host_free_bytes = None
        elif host_free_bytes is None:
            host_free_bytes = self.core.free_bytes("cpu")
        known = device.recorded
        # Only after free memory is read: measuring makes a context.
        if opened and device.kind == "cuda" and device.total_bytes is None:
            with telling_of_kernels(device.title, self.tell):
                known = self.core.measured(self.model.path, device.kind)
        ask = ask_for(self.config, self.model, device, free_bytes, host_free_bytes)
        sizes_of = sizes_by_ask(self.core, self.model.path, device.kind)
        return plan_ask(ask, self.model, device, _with_lines(sizes_of, known))

    def on_card_or_cpu(self, card: Device, host_free_bytes: int | None, title: str) -> Plan:
        """Its plan on a card that `auto` chose, or on the CPU where the card is too small and the
        CPU is not. Raises PlanRefused, the card's."""
        free_bytes = self.core.free_bytes(card.kind)
        try:
            # Too small without the driver's part: then none need be opened.
            self.on(card, free_bytes, host_free_bytes, opened=False)
            return self.on(card, free_bytes, host_free_bytes)
        except PlanRefused as refused:
            refusal = refused
        if refusal.plan == "vram":
            self.core.close_card()  # else this process keeps the driver's part until it ends
            why = (
                f"{card.title} does not hold {title}: it needs {human(refusal.needed_bytes)}, "
                f"{human(refusal.shortfall_bytes)} more than there is; --device cuda says what "
                "would fit"
            )
            with suppress(PlanRefused):
                return self.on(replace(CPU, why=why), None, None)
        return self.on(card, free_bytes, host_free_bytes)


def activations_of(config: Config, kind: str) -> str:
    """The arithmetic that a config names for a kind of device."""
    return config.cuda.activations if kind == "cuda" else config.cpu.activations


def products_of(config: Config, kind: str) -> str:
    """How a config has prompts multiplied on a kind of device.

    Raises ConfigError where its activations leave no choice.
    """
    if kind != "cuda":
        return "same"
    if config.cuda.products == "fast" and config.cuda.activations != "bf16":
        place = config.source("cuda.products").place
        raise ConfigError(f"{place} is fast, which is for cuda.activations bf16 alone")
    return config.cuda.products


def ask_for(
    config: Config,
    model: Model,
    device: Device,
    free_bytes: int,
    host_free_bytes: int | None = None,
) -> Ask:
    """What a config asks of a model on a device, with what nobody set decided.

    `host_free_bytes` None: the device's memory is host memory.
    """
    context = config.model.max_context
    trained = model.context_trained or CONTEXT_UNKNOWN
    if context is not None and model.context_trained and context > model.context_trained:
        source = config.source("model.max_context")
        if source.named:
            raise ConfigError(
                f"{source.place} is {context:,} tokens; the model was trained for "
                f"{model.context_trained:,}"
            )
        context = trained
    context = context or trained
    chunk = min(device.chunk_tokens, -(-context // 64) * 64)
    lanes = config.model.lanes or device.lanes
    slots = config.reuse.retained_host
    if slots is None:
        slots = RETAINED_HOST_A_LANE * lanes if config.reuse.prompt else 0
    keys = (
        "model.max_context",
        "model.lanes",
        "reuse.retained_host",
        "reuse.kv_host_pool_bytes",
        EMBEDDING,
    )
    return Ask(
        context_tokens=context,
        lanes=lanes,
        chunk_tokens=config.model.prefill_chunk or chunk,
        threads=config.cpu.threads or physical_cores() if device.kind == "cpu" else 1,
        kv_format=config.model.kv_format,
        activations=activations_of(config, device.kind),
        products=products_of(config, device.kind),
        kernels=config.cuda.kernels,
        embedding=config.model.embedding_residency if device.kind == "cuda" else "device",
        retained_device=config.reuse.retained_device,
        retained_host=slots,
        kv_ram_bytes=config.reuse.kv_host_pool_bytes,
        kv_disk_bytes=config.kv_disk.bytes,
        pool=config.vram.kv_pool_bytes,
        pool_capped=device.kind == "cpu",
        spare_tokens=config.vram.adapt_spare_tokens,
        free_bytes=free_bytes,
        headroom_bytes=config.vram.headroom_bytes,
        budget_bytes=config.vram.budget_bytes,
        allow_oversubscription=config.vram.allow_oversubscription,
        host_free_bytes=host_free_bytes,
        host_margin_bytes=config.model.host_margin_bytes,
        named=frozenset(key for key in keys if config.named(key)),
    )


def plan_ask(ask: Ask, model: Model, device: Device, sizes_of: SizesOf) -> Plan:
    """Adapt, cut, and either freeze or refuse."""
    above_free = ask.budget_bytes is not None and ask.budget_bytes > ask.free_bytes
    if above_free and not ask.allow_oversubscription:
        raise refuse_budget_above_free(ask, sizes_of)
    adapted, steps = adapt(ask, sizes_of)
    result = cut(adapted, sizes_of(adapted))
    reasons = []
    if above_free:
        reasons.append(
            f"the budget of {exact(ask.budget)} is more than the {exact(ask.free_bytes)} free"
        )
    if not result.fits:
        if not may_start(ask, result):
            raise refuse(ask, sizes_of, adapted, steps)
        if result.shortfall_bytes:
            reasons.append(
                f"the plan's minimum of {exact(result.needed_bytes)} is more than the budget of "
                f"{exact(result.budget)}"
            )
        if not result.host_fits:
            reasons.append(
                f"the host lines' {exact(result.host_bytes)} are more than the "
                f"{exact(result.host_available_bytes)} free"
            )
        result = replace(result, pages=max(result.pages, result.least_pages))
    plan = _freeze(ask, adapted, result, model, device)
    return replace(plan, adapted=steps, oversubscribed=tuple(reasons))


def _freeze(ask: Ask, adapted: Ask, result: Cut, model: Model, device: Device) -> Plan:
    recorded = dict(device.recorded)
    pool = result.pages * result.sizes.kv_page_bytes
    return Plan(
        model=model,
        device=device,
        mode="derived" if ask.budget_bytes is None else "explicit",
        free_at_start_bytes=ask.free_bytes,
        headroom_bytes=ask.headroom_bytes,
        budget_bytes=result.budget,
        allow_oversubscription=ask.allow_oversubscription,
        lines=tuple(
            Line(name, count, VRAM_LINES[name], name in recorded)
            for name, count in (*result.sizes.lines, (KV_POOL, pool))
        ),
        kv_page_bytes=result.sizes.kv_page_bytes,
        page_tokens=result.sizes.page_tokens,
        pages=result.pages,
        floor_pages=result.floor_pages,
        lanes=adapted.lanes,
        context_tokens=adapted.context_tokens,
        chunk_tokens=adapted.chunk_tokens,
        threads=adapted.threads,
        kv_format=adapted.kv_format,
        activations=adapted.activations,
        products=adapted.products,
        kernels=adapted.kernels,
        embedding=adapted.embedding,
        retained_device_slots=adapted.retained_device,
        retained_host_slots=adapted.retained_host,
        pool_named=ask.pool,
        window_bytes=result.sizes.window_bytes,
        image_windows=result.sizes.image_windows,
        host=plan_host(result, shared=ask.shares_memory),
    )


def _with_lines(sizes_of: SizesOf, known: tuple[tuple[str, int], ...]) -> SizesOf:
    """Sizes with figures that were measured, on this card or on one of its kind."""
    figures = dict(known)
    if not figures:
        return sizes_of

    def with_figures(ask: Ask) -> Sizes:
        sizes = sizes_of(ask)
        lines = tuple((name, figures.get(name, count)) for name, count in sizes.lines)
        return replace(sizes, lines=lines)

    return with_figures
