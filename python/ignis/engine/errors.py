"""What `EngineService.submit` raises besides `NeverFits`; the tree is drawn in `ignis.errors`."""

from __future__ import annotations

from ignis.errors import EngineError, IgnisError


class Unavailable(IgnisError):
    """Nothing is wrong with the request: the same one may be accepted later."""


class QueueFull(Unavailable):
    """`open_count` sequences run or wait, and `open_max` is how many may."""

    def __init__(self, open_count: int, open_max: int) -> None:
        super().__init__(f"{open_count} requests run or wait, the most that may is {open_max}")
        self.open_count = open_count
        self.open_max = open_max


class Draining(Unavailable):
    """The service finishes what it has and accepts nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineFailed(EngineError):
    """A round failed, so the device's state is unknown; nothing runs until the next start."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine stopped: {reason}")
        self.reason = reason
