"""In which order retained state is given up: the smallest key goes first."""

from __future__ import annotations

from ignis.reuse.entry import Entry


def slot_order(entry: Entry) -> tuple[bool, bool, int]:
    """On the device: checkpoints before prefixes, agent before interactive, least recent first."""
    return entry.kind == "prefix", entry.class_index == 0, entry.used


def kv_ram_order(entry: Entry, idle_since_us: int) -> tuple[bool, bool, int]:
    """In KV-RAM: agent before interactive, never restored before restored, least recent first.

    An interactive checkpoint that was last used before `idle_since_us` ranks as an agent's that
    was never restored.
    """
    if entry.kind == "checkpoint" and entry.used_us < idle_since_us:
        return False, False, entry.used
    return entry.class_index == 0, entry.protected, entry.used


def disk_order(entry: Entry) -> int:
    """On KV-disk: least recent first."""
    return entry.used
