"""In which order retained state is given up."""

from __future__ import annotations

from array import array

from ignis.reuse import Entry, Kind
from ignis.reuse.order import disk_order, kv_ram_order, slot_order


def entry(kind: Kind, class_index: int, used: int, *, protected: bool = False) -> Entry:
    made = Entry(array("I", [1]), kind, class_index, b"")
    made.used, made.used_us, made.protected = used, 1_000 * used, protected
    return made


def test_slots_go_by_kind_then_class_then_last_use() -> None:
    in_order = [
        entry("checkpoint", 1, 7),
        entry("checkpoint", 1, 8),
        entry("checkpoint", 0, 1),
        entry("checkpoint", 0, 6),
        entry("prefix", 1, 3),
        entry("prefix", 0, 2),
        entry("prefix", 0, 9),
    ]
    assert sorted(set(in_order), key=slot_order) == in_order


def test_images_in_kv_ram_go_by_class_then_whether_ever_restored_then_last_use() -> None:
    in_order = [
        entry("prefix", 1, 5),
        entry("checkpoint", 1, 6),
        entry("checkpoint", 1, 1, protected=True),
        entry("prefix", 0, 2),
        entry("checkpoint", 0, 3),
        entry("prefix", 0, 0, protected=True),
    ]
    assert sorted(set(in_order), key=lambda one: kv_ram_order(one, 0)) == in_order


def test_an_interactive_checkpoint_that_lay_idle_too_long_goes_as_an_agents() -> None:
    idle = entry("checkpoint", 0, 1, protected=True)
    agents = entry("checkpoint", 1, 2, protected=True)
    prefix = entry("prefix", 0, 1)
    assert kv_ram_order(idle, 0) > kv_ram_order(agents, 0)
    assert kv_ram_order(idle, 1_001) < kv_ram_order(agents, 1_001)
    assert kv_ram_order(prefix, 1_001) > kv_ram_order(agents, 1_001), "a prefix has no such limit"


def test_images_on_kv_disk_go_by_last_use_alone() -> None:
    in_order = [entry("prefix", 0, 1, protected=True), entry("checkpoint", 1, 2)]
    assert sorted(set(in_order), key=disk_order) == in_order
