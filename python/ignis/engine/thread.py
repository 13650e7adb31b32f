"""The engine thread: begins a round as soon as the one before is done, and does all else beside it.

Tokens are handed over, transfers advanced and messages taken in while the next round runs. What
comes during a round counts from the next decision on; a cancelled sequence that is in the round
lets go of its lane at its end. A device that runs no round by itself starts it after that; so the
client has its tokens first either way.

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
        runner = self._runner
        try:
            while True:
                runner.finish()
                if not self._wait():
                    break
                runner.begin()
                self._hand_over(runner.give())
                runner.advance()
                self._take_in()
            self._hand_over(runner.give())
            runner.close()
        except Exception as error:
            log.exception("ignis.engine.failed")
            now = self._clock()
            reason = f"{type(error).__name__}: {error}"
            # A round that was done before the failure counts.
            self._hand_over(Handover(now, now, (), runner.deliveries(), None, reason))

    def _wait(self) -> bool:
        """Wait for work and take in what came; False when it is time to end."""
        with self._changed:
            while not (self._inbox or self._stopping or self._runner.has_work):
                self._changed.wait()
            if self._stopping:
                return False
        self._take_in()
        return True

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Sequence):
                self._runner.submit(message)
            else:
                self._runner.cancel(message)
