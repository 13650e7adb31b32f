"""What the routes need of the engine and the metrics; nothing more is assumed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ignis.engine.api import SequenceRequest, TokenBatch


class TokenStream(Protocol):
    """The tokens of one sequence, in batches; the last one carries a finish reason."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed; 0 until the sequence was seated."""
        ...

    def __aiter__(self) -> AsyncIterator[TokenBatch]: ...

    def cancel(self) -> None:
        """End the sequence by the next round; no effect after its end."""

    def complete(self) -> None:
        """The same, for an answer that is complete without its rest: it counts as "stop"."""


class SequenceService(Protocol):
    """The engine behind its thread. Called from the event loop alone."""

    @property
    def healthy(self) -> bool:
        """Whether rounds run."""
        ...

    @property
    def draining(self) -> bool:
        """Whether new sequences are refused because the service is about to end."""
        ...

    def submit(self, request: SequenceRequest) -> TokenStream:
        """Queue a sequence. Raises NeverFits, QueueFull, Draining or EngineFailed."""
        ...


class ServerMetrics(Protocol):
    """What the server counts itself, and everything in Prometheus' text format."""

    def request_refused(self, reason: str) -> None: ...
    def render(self) -> bytes: ...
