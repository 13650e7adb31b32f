"""The process: its address, its signals and its exit status, over the simulated engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import ServerProcess

CHAT = "/v1/chat/completions"


def start(
    bind: str = "127.0.0.1:0",
    *,
    drain: float = 20.0,
    round_seconds: float = 0.0,
    load_seconds: float = 0.0,
) -> ServerProcess:
    words = ["-m", "tests.server.simulated", bind, str(drain), str(round_seconds)]
    return ServerProcess([*words, str(load_seconds)])


def asking(max_tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **fields}


class Asking(threading.Thread):
    """One request in a thread."""

    def __init__(self, server: ServerProcess, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.status, self.text = 0, ""
        self._server, self._body = server, body
        self.start()

    def run(self) -> None:
        self.status, self.text = self._server.post(CHAT, self._body)


def wait_until_running(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + 10
    while server.metric("ignis_scheduler_requests") != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_when_idle_ends_with_status_0() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with start() as server:
            server.wait_ready()
            assert server.post(CHAT, asking(3))[0] == 200
            server.send(number)
            assert server.wait() == 0


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    with start(round_seconds=0.02) as server:
        server.wait_ready()
        streamed = Asking(server, asking(60, stream=True))
        whole = Asking(server, asking(60))
        wait_until_running(server, 2)
        server.send(signal.SIGTERM)
        status = 200
        while status == 200:
            status, body = server.post(CHAT, asking(1))
        assert (status, json.loads(body)["error"]["code"]) == (503, "server_draining")
        assert server.get("/ready")[0] == 503
        assert server.wait() == 0
        streamed.join()
        whole.join()
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in streamed.text
        assert json.loads(whole.text)["usage"]["completion_tokens"] == 60


def test_a_second_signal_stops_at_once_and_still_ends_the_streams() -> None:
    with start(round_seconds=0.05) as server:
        server.wait_ready()
        streamed = Asking(server, asking(2000, stream=True))
        wait_until_running(server, 1)
        server.send(signal.SIGINT)
        time.sleep(0.3)
        server.send(signal.SIGINT)
        began = time.monotonic()
        assert server.wait() == 128 + signal.SIGINT
        assert time.monotonic() - began < 5
        streamed.join()
        assert '"error"' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")


def test_the_drain_has_a_time_limit() -> None:
    with start(round_seconds=0.05, drain=0.5) as server:
        server.wait_ready()
        Asking(server, asking(2000, stream=True))
        wait_until_running(server, 1)
        server.send(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


def test_a_signal_during_the_load_ends_the_process() -> None:
    with start(load_seconds=30) as server:
        server.wait_for("ignis.runtime.vram_plan")
        time.sleep(0.5)
        server.send(signal.SIGTERM)
        assert server.wait(10) == 128 + signal.SIGTERM


def test_while_loading_the_server_says_so() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with start(f"127.0.0.1:{port}", load_seconds=2) as server:
        server.wait_for("ignis.runtime.vram_plan")
        server.url = f"http://127.0.0.1:{port}"
        time.sleep(0.5)
        assert server.get("/ready")[0] == 503
        assert server.get("/health")[0] == 200
        assert server.metric("ignis_kv_pool_pages") == 0
        server.wait_ready()
        assert server.get("/ready")[0] == 200
        assert server.metric("ignis_kv_pool_pages") > 0


def test_a_taken_port_is_refused_before_the_plan() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with start(f"127.0.0.1:{port}", load_seconds=30) as server:
            assert server.wait(10) == 1
            assert f"127.0.0.1:{port} is in use" in "".join(server.errors)


def test_two_servers_cannot_share_an_address() -> None:
    with start() as first:
        bind = first.wait_ready().url.removeprefix("http://")
        with start(bind) as second:
            assert second.wait(10) == 1
        assert first.get("/ready")[0] == 200


def stream_to(server: ServerProcess) -> socket.socket:
    """A connection on which a long stream was asked for."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(asking(2000, stream=True)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    client = socket.create_connection((host, int(port)))
    client.sendall(head.encode() + body)
    return client


def test_gauges_are_idle_after_everybody_left_at_once() -> None:
    with start(round_seconds=0.02) as server:
        server.wait_ready()
        clients = [stream_to(server) for _ in range(40)]
        wait_until_running(server, 40)
        for client in clients:
            client.close()
        wait_until_running(server, 0)
        assert server.metric("ignis_requests_cancelled_total") == 40
        for gauge in (
            "ignis_kv_pool_used_pages",
            "ignis_parked_sequences",
            "ignis_moves_in_flight",
        ):
            assert server.metric(gauge) == 0, gauge


def test_a_client_that_leaves_frees_its_lane() -> None:
    with start(round_seconds=0.02) as server:
        server.wait_ready()
        with stream_to(server) as client:
            client.recv(100)
            wait_until_running(server, 1)
        wait_until_running(server, 0)
        assert server.metric("ignis_requests_cancelled_total") == 1
        assert server.metric("ignis_kv_pool_used_pages") == 0


def test_bytes_that_are_not_http_are_refused_without_noise() -> None:
    with start() as server:
        host, port = server.wait_ready().url.removeprefix("http://").split(":")
        large = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n"
        for data in (b"garbage\r\n\r\n", large, b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(data)
                assert b" 400 " in client.recv(100)
        assert server.get("/ready")[0] == 200
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert server.errors_logged == []


def test_equal_requests_get_equal_answers_streamed_or_not() -> None:
    with start() as server:
        server.wait_ready()
        _, whole = server.post(CHAT, asking(40))
        content = json.loads(whole)["choices"][0]["message"]["content"]
        _, streamed = server.post(CHAT, asking(40, stream=True))
        chunks = [json.loads(line[6:]) for line in streamed.split("\n\n") if "{" in line]
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(pieces) == content


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets on this system")
def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "ignis.sock"
    with start(f"unix:{path}") as server:
        server.wait_for("ignis.process.ready")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b" 200 " in client.recv(100)
        with start(f"unix:{path}") as second:
            assert second.wait(10) == 1
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert not path.exists()
    path.write_text("not a socket")
    with start(f"unix:{path}") as third:
        assert third.wait(10) == 1
    assert path.read_text() == "not a socket"


def test_a_socket_left_by_a_killed_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "ignis.sock"
    with start(f"unix:{path}") as server:
        server.wait_for("ignis.process.ready")
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    assert path.exists()
    with start(f"unix:{path}") as server:
        server.wait_for("ignis.process.ready")
