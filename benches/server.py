"""A running server, as the benches use it: started or found, asked by HTTP, watched from outside.

Memory is `Pss + Swap` of `smaps_rollup`: pages shared with other processes count by their share,
and none is counted twice. Nothing here looks inside the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

READY_SECONDS = 120
METRIC = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([-+.\deEinfNa]+)$")
MEMORY = re.compile(r"^(Pss|Swap):\s+(\d+) kB$", re.MULTILINE)


@dataclass(slots=True)
class Answer:
    """One finished request. Times are seconds since the bench began."""

    started: float
    first_token: float | None = None
    ended: float = 0.0
    status: int = 0
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    outcome: str = "error"  # the finish reason, "cancelled", or "error"
    error: str | None = None
    token_times: list[float] = field(default_factory=list)

    def count(self, usage: dict[str, Any]) -> None:
        """Takes the tokens that the server says it used."""
        self.prompt_tokens = usage["prompt_tokens"]
        self.completion_tokens = usage["completion_tokens"]
        self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]


class Server:
    """A server at `url`, whose process is `pid`."""

    def __init__(self, url: str, pid: int, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.pid = pid
        self._session = session
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds since the bench began."""
        return time.monotonic() - self._began

    async def get(self, path: str) -> Any:
        """The JSON of a route."""
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.json()

    async def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, by `name` or `name{labels}`."""
        async with self._session.get(self.url + "/metrics") as response:
            response.raise_for_status()
            return parse_metrics(await response.text())

    def memory_bytes(self) -> int:
        """What the process holds now."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")
        return sum(int(kilobytes) for _, kilobytes in MEMORY.findall(text)) * 1024

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        """Sends a request and reads its answer whole."""
        answer = Answer(self.now())
        async with self._session.post(self.url + path, json=body) as response:
            answer.status = response.status
            content = await response.json()
        answer.ended = self.now()
        if answer.status != 200:
            answer.error = str(content.get("error", {}).get("message", content))
            return answer
        choice = content["choices"][0]
        answer.text = choice.get("text") or choice.get("message", {}).get("content") or ""
        answer.outcome = choice["finish_reason"]
        answer.count(content["usage"])
        return answer

    async def stream(
        self, path: str, body: dict[str, Any], leave_after: int | None = None
    ) -> Answer:
        """Reads an answer as it comes; `leave_after` events the connection is closed."""
        answer = Answer(self.now())
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._session.post(self.url + path, json=body) as response:
            answer.status = response.status
            if response.status != 200:
                content = await response.json()
                answer.error = str(content.get("error", {}).get("message", content))
                answer.ended = self.now()
                return answer
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                self._take(json.loads(line[6:]), answer)
                if leave_after is not None and len(answer.token_times) >= leave_after:
                    answer.outcome = "cancelled"
                    response.close()
                    break
        answer.ended = self.now()
        return answer

    def _take(self, event: dict[str, Any], answer: Answer) -> None:
        if "error" in event:
            answer.error = str(event["error"].get("message"))
        for choice in event.get("choices", []):
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if piece:
                answer.text += piece
                answer.token_times.append(self.now())
                answer.first_token = answer.first_token or self.now()
            if choice.get("finish_reason"):
                answer.outcome = choice["finish_reason"]
        if usage := event.get("usage"):
            answer.count(usage)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of Prometheus' text format."""
    found = {}
    for line in text.splitlines():
        if sample := METRIC.match(line):
            name, labels, value = sample.groups()
            found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server: one of our own, or one that runs."""
    parser.add_argument("--model", default="smollm2-135m", help="start a server of this model")
    parser.add_argument("--serve-args", default="", help='further flags, as in "--cpu-threads 2"')
    parser.add_argument("--url", help="measure the server that runs here instead")
    parser.add_argument("--pid", type=int, help="its process, with --url")


@asynccontextmanager
async def running(arguments: argparse.Namespace) -> AsyncIterator[Server]:
    """The server that the arguments name; one of our own is stopped at the end."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        if arguments.url:
            yield Server(arguments.url.rstrip("/"), arguments.pid or os.getpid(), session)
            return
        port = _free_port()
        command = [sys.executable, "-m", "ignis", "serve", "--model", arguments.model]
        command += ["--server-bind", f"127.0.0.1:{port}", *arguments.serve_args.split()]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=None
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid, session)
            await _until_ready(server, process)
            yield server
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def _until_ready(server: Server, process: asyncio.subprocess.Process) -> None:
    while server.now() < READY_SECONDS:
        if process.returncode is not None:
            raise SystemExit(f"bench: the server ended with status {process.returncode}")
        try:
            await server.get("/ready")
        except aiohttp.ClientError:
            await asyncio.sleep(0.1)
        else:
            return
    raise SystemExit(f"bench: the server was not ready after {READY_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
