"""The plan of KV-disk: one file, reserved whole at load, and what it leaves on its volume.

It is refused before a file is made; a refusal says disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ignis.config import OPTIONS, Config
from ignis.errors import ConfigError, PlanRefused, Suggestion
from ignis.plan.core import PlanCore
from ignis.plan.host import gib

BLOCK_BYTES = 4096  # the file's label, and the header of each window


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """KV-disk's file. `available_bytes` are free on the volume or the file's already."""

    folder: Path
    bytes: int
    available_bytes: int
    margin_bytes: int
    windows: int
    notes: tuple[str, ...] = ()  # sentences, without a full stop

    @property
    def left_bytes(self) -> int:
        """What the file leaves free on its volume, the margin included."""
        return self.available_bytes - self.bytes


def plan_disk(
    config: Config, core: PlanCore, *, window_bytes: int, image_windows: int
) -> DiskPlan | None:
    """The plan of the configured KV-disk; None when it is off.

    The longest image has `image_windows` of `window_bytes` each.

    Raises ConfigError for a file that could not hold one window, and PlanRefused when the volume
    less the margin does not hold the file.
    """
    asked, margin = config.kv_disk.bytes, config.kv_disk.margin_bytes
    if not asked:
        return None
    window = window_bytes + BLOCK_BYTES
    windows = (asked - BLOCK_BYTES) // window
    if windows < 1:
        place = config.source("kv_disk.bytes").place or "kv_disk.bytes"
        raise ConfigError(
            f"{place}: {asked:,} bytes hold no window of this model; the least is "
            f"{BLOCK_BYTES + window:,}"
        )
    folder = config.kv_disk_folder
    available = core.disk_available(folder)
    if asked > available - margin:
        raise _refused(folder, asked, available, margin, BLOCK_BYTES + window)
    notes = []
    if windows < image_windows:
        notes.append(
            f"KV-disk holds {windows:,} windows and the longest sequence takes "
            f"{image_windows:,}: one that long does not move there"
        )
    return DiskPlan(folder, asked, available, margin, windows, tuple(notes))


def _refused(folder: Path, asked: int, available: int, margin: int, least: int) -> PlanRefused:
    room = max(0, available - margin)
    suggestions = []
    if room >= least:
        suggestions.append(_suggestion("kv_disk.bytes", asked, room, asked - room))
    if asked <= available:
        lower = available - asked
        suggestions.append(_suggestion("kv_disk.margin_bytes", margin, lower, margin - lower))
    if not suggestions:
        suggestions.append(_suggestion("kv_disk.bytes", asked, 0, asked))
    return PlanRefused(
        f"the disk plan needs {gib(asked)} in {folder} and the volume has {gib(available)} "
        f"available less a margin of {gib(margin)}: {gib(asked + margin - available)} too little; "
        f"lower {OPTIONS['kv_disk.bytes'].flag} or {OPTIONS['kv_disk.margin_bytes'].flag}, or "
        f"name a folder of another volume with {OPTIONS['kv_disk.path'].flag}",
        plan="disk",
        needed_bytes=asked + margin,
        budget_bytes=available,
        suggestions=tuple(suggestions),
    )


def _suggestion(option: str, current: int, fits: int, saves: int) -> Suggestion:
    show = OPTIONS[option].kind.show
    return Suggestion(option, show(current), show(fits), saves)
