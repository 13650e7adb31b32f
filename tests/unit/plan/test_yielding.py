"""`auto` and a card that is too small: the CPU takes its place, or the card is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ignis.errors import ConfigError, PlanRefused
from ignis.plan import Device
from ignis.plan.devices import NoCard
from tests.unit.plan.fake_core import FakeCore
from tests.unit.plan.test_plan import plan_of

MIB = 1 << 20
NAMED = Device("cuda", "cuda", "A card")
CHOSEN = Device("cuda", "cuda", "A card", may_yield=True)


@dataclass
class TwoMemories(FakeCore):
    """A card and a host of different sizes; `opened` counts how often the card was opened.

    A card that `is_open` has 500 MiB less, and so has the host.
    """

    card: int = 1600 * MIB
    opened: int = 0
    is_open: bool = False

    def free_bytes(self, device: str) -> int:
        return (self.card if device == "cuda" else self.free) - self.is_open * 500 * MIB

    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]:
        self.opened += 1
        self.is_open = True
        return super().measured(path, device)

    def close_card(self) -> None:
        self.is_open = False


def test_a_card_that_is_too_small_yields_to_the_cpu_which_says_why() -> None:
    core = TwoMemories()
    plan = plan_of(core, device=CHOSEN)
    assert (plan.device.kind, plan.threads >= 1, plan.activations) == ("cpu", True, "int8")
    assert plan.free_at_start_bytes == core.free
    why = str(plan.device.why)
    assert why.startswith("A card does not hold Tiny (llama): it needs ")
    assert why.endswith(" more than there is; --device cuda says what would fit")
    assert core.opened == 0


def test_what_only_the_drivers_part_makes_too_small_yields_too() -> None:
    core = TwoMemories(card=2 << 30)
    plan = plan_of(core, device=CHOSEN)
    assert (plan.device.kind, plan.free_at_start_bytes) == ("cpu", core.free)
    assert (core.opened, core.is_open) == (1, False)


def test_a_card_that_is_large_enough_is_kept() -> None:
    core = TwoMemories(card=8 << 30)
    plan = plan_of(core, device=CHOSEN)
    assert (plan.device.kind, plan.free_at_start_bytes) == ("cuda", 8 << 30)
    assert core.is_open


def test_a_card_that_was_named_is_refused() -> None:
    with pytest.raises(PlanRefused):
        plan_of(TwoMemories(), device=NAMED)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("vram__budget_bytes", "100M"),
        ("vram__headroom_bytes", "1536M"),
        ("vram__kv_pool_bytes", "8Ktok"),
        ("cuda__activations", "bf16"),
        ("model__embedding_residency", "host"),
    ],
)
def test_who_names_an_option_of_device_memory_is_refused(option: str, value: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        plan_of(TwoMemories(), device=CHOSEN, **{option: value})
    assert refused.value.plan == "vram"


def test_free_memory_that_was_named_is_of_the_card() -> None:
    with pytest.raises(PlanRefused):
        plan_of(TwoMemories(card=8 << 30), device=CHOSEN, free=1600 * MIB)


@pytest.mark.parametrize("card", [1600 * MIB, 2 << 30])
def test_where_the_cpu_is_too_small_as_well_the_cards_refusal_is_said(card: int) -> None:
    with pytest.raises(PlanRefused) as named:
        plan_of(TwoMemories(card=card, free=1600 * MIB), device=NAMED, model__host_margin_bytes="0")
    with pytest.raises(PlanRefused) as chosen:
        plan_of(
            TwoMemories(card=card, free=1600 * MIB), device=CHOSEN, model__host_margin_bytes="0"
        )
    assert str(chosen.value) == str(named.value)
    assert chosen.value.suggestions == named.value.suggestions


class ClosedCard(TwoMemories):
    """Its card is found and gives no context."""

    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]:
        raise NoCard("A card is set to serve one process, and another has it; end it")


@pytest.mark.parametrize("named", [{}, {"vram__kv_pool_bytes": "8Ktok"}])
def test_a_card_that_cannot_be_opened_yields_unless_it_was_named(named: dict[str, str]) -> None:
    core = ClosedCard(card=8 << 30)
    plan = plan_of(core, device=CHOSEN, **named)
    assert plan.device.kind == "cpu"
    assert str(plan.device.why).startswith("A card is set to serve one process")
    with pytest.raises(ConfigError, match=r"^device: A card is set to serve one process"):
        plan_of(core, device=NAMED, **named)


def test_host_memory_that_is_short_is_no_reason_to_take_more_of_it() -> None:
    with pytest.raises(PlanRefused) as refused:
        plan_of(TwoMemories(card=8 << 30, free=4 << 30), device=CHOSEN)
    assert refused.value.plan == "host"
