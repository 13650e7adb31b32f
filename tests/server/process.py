"""A server in a process of its own, as its operator sees it: output, signals, exit status."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


def heed_interrupts() -> None:
    """A shell starts background work with SIGINT ignored, and ignis would leave it so."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ServerProcess:
    """A running server. Ends with the `with` block, by SIGKILL if nothing else did it."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - no thread runs here yet
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []  # lines of standard error
        self.errors_logged: list[dict[str, Any]] = []
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.url = ""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_for(self, event: str, timeout: float = 60.0) -> dict[str, Any]:
        """The next `event` of the log."""
        while True:
            found = self._events.get(timeout=timeout)
            if found is None:
                raise AssertionError(f"the process ended before {event}: {self.errors}")
            if found.get("event") == event:
                return found

    def wait_ready(self) -> Self:
        """Wait until requests are answered, and know where."""
        self.url = str(self.wait_for("ignis.process.ready")["address"])
        return self

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """The exit status."""
        status = self._process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        return status

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and body of a POST."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, data, headers))

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        _, text = self.get("/metrics")
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
                self._events.put(event)
                if event.get("level") == "error":
                    self.errors_logged.append(event)
            except ValueError:
                self.errors.append(f"not JSON: {line}")
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)
