"""The engine thread: takes what came in, runs a round, hands over what it gave; else sleeps.

Nothing polls: without work the thread waits on a condition. The inbox is bounded by the sequences
that may be open, each of which sends at most one submit and one cancel.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import structlog

from ignis.engine.native import OutT, SamplingT
from ignis.engine.rounds import RoundRunner
from ignis.engine.sequence import Handover, Sequence

log = structlog.get_logger("ignis.engine")


class EngineThread:
    """The only thread that touches the runner between `start` and the end of `join`.

    `hand_over` is called on this thread once a round, and a last time with `failure` set if the
    engine, or the code here, raises; it must not block.
    """

    def __init__(
        self,
        runner: RoundRunner[SamplingT, OutT],
        hand_over: Callable[[Handover], None],
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._hand_over = hand_over
        self._clock = clock
        self._inbox: deque[Sequence | int] = deque()  # a sequence to submit, or a key to cancel
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ignis-engine", daemon=True)

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Give it a sequence; any thread."""
        self._post(sequence)

    def cancel(self, key: int) -> None:
        """Tell it that nobody wants the sequence; any thread, any time."""
        self._post(key)

    def stop(self) -> None:
        """Ask it to end after the round in hand, whatever is open; any thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until it has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _post(self, message: Sequence | int) -> None:
        with self._changed:
            self._inbox.append(message)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take():
                if self._runner.has_work:
                    self._hand_over(self._runner.run_round())
            self._runner.close()
        except Exception as error:
            log.exception("ignis.engine.failed")
            now = self._clock()
            reason = f"{type(error).__name__}: {error}"
            self._hand_over(Handover(now, now, (), (), None, reason))

    def _take(self) -> bool:
        """Wait for work and take in what came; False when it is time to end."""
        with self._changed:
            while not (self._inbox or self._stopping or self._runner.has_work):
                self._changed.wait()
            if self._stopping:
                return False
            messages = tuple(self._inbox)
            self._inbox.clear()
        for message in messages:
            if isinstance(message, Sequence):
                self._runner.submit(message)
            else:
                self._runner.cancel(message)
        return True
