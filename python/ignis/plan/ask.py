"""What a plan is computed from, and the arithmetic that cuts a budget into lines and pages.

Pure integers: nothing here reads a file, a clock or a device. `Sizes` come from the dry run of the
code that will bind; everything else is addition, so it can be tested as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ignis.config import PoolSize


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of every line but the pool, in print order, and of one page of the pool."""

    lines: tuple[tuple[str, int], ...]
    kv_page_bytes: int
    page_tokens: int

    @property
    def fixed_bytes(self) -> int:
        """Every line but the pool."""
        return sum(count for _, count in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a load is asked to hold, and in what.

    `named` holds the option keys an operator set; those never adapt. `pool_capped` says that the
    pool never exceeds every lane's whole context and a page per retained slot (the CPU).
    """

    context_tokens: int
    lanes: int
    chunk_tokens: int
    threads: int = 1
    kv_format: str = "bf16"
    activations: str = "int8"
    retained_device: int = 0
    retained_host: int = 0
    pool: PoolSize | None = None
    pool_capped: bool = True
    spare_tokens: int = 65536
    free_bytes: int
    headroom_bytes: int = 0
    budget_bytes: int | None = None
    allow_oversubscription: bool = False
    named: frozenset[str] = field(default_factory=frozenset)

    @property
    def budget(self) -> int:
        """The bytes the whole process may hold."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        return max(0, self.free_bytes - self.headroom_bytes)

    @property
    def retained(self) -> int:
        """Retained slots of both kinds; each may hold one page of the pool."""
        return self.retained_device + self.retained_host


SizesOf = Callable[[Ask], Sizes]


@dataclass(frozen=True, slots=True)
class Cut:
    """A budget cut into fixed lines and pages. `pages` may be below `floor_pages`; see `fits`."""

    sizes: Sizes
    budget: int
    floor_pages: int  # one longest sequence, and a page per retained slot
    pages: int
    least_pages: int  # fewer is not what was asked: the floor, or a named pool

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
    def fits(self) -> bool:
        """Whether the load may start with this cut."""
        return not self.pool_below_floor and self.needed_bytes <= self.budget


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
    context_pages = pages_for(ask.context_tokens, sizes.page_tokens)
    floor = context_pages + ask.retained
    if ask.pool is not None:
        named = pool_pages(ask.pool, sizes)
        return Cut(sizes, ask.budget, floor, named, named)
    pages = max(0, ask.budget - sizes.fixed_bytes) // sizes.kv_page_bytes
    if ask.pool_capped:
        pages = min(pages, ask.lanes * context_pages + ask.retained)
    return Cut(sizes, ask.budget, floor, pages, floor)
