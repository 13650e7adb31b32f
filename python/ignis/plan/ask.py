"""What a plan is computed from, and the arithmetic that cuts a budget into lines and pages.

Pure integers: nothing here reads a file, a clock or a device. `Sizes` come from the dry run of the
code that will bind; everything else is addition, so it can be tested as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ignis.config import PoolSize

WINDOW_HEADER_BYTES = 64  # of every window, before its payload
STAGING_WINDOWS = 4  # between the tiers and KV-disk: two each way


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of every line but the pool, in print order, and of the units that are counted.

    One page of the pool; one retained slot in host memory; the payload of the longest image, and
    one of the windows it is cut into. `pinned_bytes` is host memory that the device pins for
    itself.
    """

    lines: tuple[tuple[str, int], ...]
    kv_page_bytes: int
    page_tokens: int
    retained_slot_bytes: int = 0
    pinned_bytes: int = 0
    image_payload_bytes: int = 0
    window_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """Every line but the pool."""
        return sum(count for _, count in self.lines)

    @property
    def image_windows(self) -> int:
        """Windows of the longest image."""
        room = self.window_bytes - WINDOW_HEADER_BYTES
        return -(-self.image_payload_bytes // room) if self.window_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a load is asked to hold, and in what.

    `named` holds the option keys an operator set; those never adapt. `pool_capped` says that the
    pool never exceeds every lane's whole context and a page per retained slot (the CPU).
    `host_free_bytes` is what host memory has available, and None where the device's memory is host
    memory, so that both plans take from `free_bytes`.
    """

    context_tokens: int
    lanes: int
    chunk_tokens: int
    threads: int = 1
    kv_format: str = "bf16"
    activations: str = "int8"
    products: str = "same"
    kernels: str = "own"
    embedding: str = "device"
    retained_device: int = 0
    retained_host: int = 0
    kv_ram_bytes: int = 0
    kv_disk_bytes: int = 0
    pool: PoolSize | None = None
    pool_capped: bool = True
    spare_tokens: int = 65536
    free_bytes: int
    headroom_bytes: int = 0
    budget_bytes: int | None = None
    allow_oversubscription: bool = False
    host_free_bytes: int | None = None
    host_margin_bytes: int = 0
    named: frozenset[str] = field(default_factory=frozenset)

    @property
    def budget(self) -> int:
        """The bytes that the device's lines may take, before host lines take theirs of the same
        memory."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        return max(0, self.free_bytes - self.headroom_bytes)

    @property
    def retained(self) -> int:
        """Retained slots of both kinds; each may hold one page of the pool."""
        return self.retained_device + self.retained_host

    @property
    def shares_memory(self) -> bool:
        """Whether the device's memory is host memory."""
        return self.host_free_bytes is None

    def host_lines(self, sizes: Sizes) -> tuple[tuple[str, int], ...]:
        """Bytes of every line of host memory, in print order."""
        window = sizes.window_bytes
        ram = self.kv_ram_bytes // window * window if window else 0
        staging = STAGING_WINDOWS * window if self.kv_disk_bytes else 0
        return (
            ("retained_host_slots", self.retained_host * sizes.retained_slot_bytes),
            ("kv_ram_arena", ram),
            ("kv_disk_staging", staging),
            ("device_pinned", sizes.pinned_bytes),
        )


SizesOf = Callable[[Ask], Sizes]


@dataclass(frozen=True, slots=True)
class Cut:
    """A budget cut into fixed lines and pages, and host memory held against its lines.

    `pages` may be below `floor_pages`, and the host lines more than there is; see `fits`.
    """

    sizes: Sizes
    budget: int
    floor_pages: int  # one longest sequence, and a page per retained slot
    pages: int
    least_pages: int  # fewer is not what was asked: the floor, or a named pool
    host_lines: tuple[tuple[str, int], ...]
    host_available_bytes: int
    host_margin_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The least that holds what was asked."""
        return self.sizes.fixed_bytes + self.least_pages * self.sizes.kv_page_bytes

    @property
    def shortfall_bytes(self) -> int:
        """By how much the budget is too small; 0 when it holds the plan."""
        return max(0, self.needed_bytes - self.budget)

    @property
    def pool_below_floor(self) -> bool:
        """A named pool that could not hold one longest sequence, whatever the budget."""
        return self.least_pages < self.floor_pages

    @property
    def host_bytes(self) -> int:
        """Every line of host memory."""
        return sum(count for _, count in self.host_lines)

    @property
    def host_fits(self) -> bool:
        """Whether host memory holds its lines and leaves its margin."""
        return not self.host_bytes or (
            self.host_bytes <= self.host_available_bytes - self.host_margin_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether the load may start with this cut."""
        holds = self.needed_bytes <= self.budget and self.host_fits
        return holds and not self.pool_below_floor


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // page_tokens)


def pool_pages(pool: PoolSize, sizes: Sizes) -> int:
    """Pages of a named pool: as many as its bytes hold, or enough for its tokens."""
    if pool.unit == "bytes":
        return pool.amount // sizes.kv_page_bytes
    return pages_for(pool.amount, sizes.page_tokens)


def cut(ask: Ask, sizes: Sizes) -> Cut:
    """Cut the budget: the fixed lines first, then the pool takes the rest or what was named."""
    host_lines = ask.host_lines(sizes)
    budget = ask.budget
    if ask.host_free_bytes is not None:
        available, margin = ask.host_free_bytes, ask.host_margin_bytes
    else:
        derived = ask.budget_bytes is None
        available, margin = ask.free_bytes, ask.headroom_bytes if derived else 0
        left = max(0, available - margin - sum(count for _, count in host_lines))
        if derived or not ask.allow_oversubscription:
            budget = min(budget, left)
    least, pages, floor = _pages(ask, sizes, budget)
    return Cut(
        sizes=sizes,
        budget=budget,
        floor_pages=floor,
        pages=pages,
        least_pages=least,
        host_lines=host_lines,
        host_available_bytes=available,
        host_margin_bytes=margin,
    )


def _pages(ask: Ask, sizes: Sizes, budget: int) -> tuple[int, int, int]:
    """Pages of the pool: the least that is wanted, those there are, and the floor."""
    context_pages = pages_for(ask.context_tokens, sizes.page_tokens)
    floor = context_pages + ask.retained
    if ask.pool is not None:
        named = pool_pages(ask.pool, sizes)
        return named, named, floor
    pages = max(0, budget - sizes.fixed_bytes) // sizes.kv_page_bytes
    if ask.pool_capped:
        pages = min(pages, ask.lanes * context_pages + ask.retained)
    return floor, pages, floor
