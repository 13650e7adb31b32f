"""`ignis serve` itself: drain, refusals, and what its operator reads."""

from __future__ import annotations

import json
import signal
import socket
import threading

import pytest

from tests.server.process import ServerProcess

pytestmark = pytest.mark.model

SERVE = ["-m", "ignis", "serve", "--log-format", "json", "--model-max-context", "2048"]


def test_sigterm_lets_a_stream_finish() -> None:
    with ServerProcess([*SERVE, "--server-bind", "127.0.0.1:0"]) as server:
        server.wait_ready()
        body = {
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": 150,
            "ignore_eos": True,
            "stream": True,
        }
        texts: list[str] = []
        asking = threading.Thread(
            target=lambda: texts.append(server.post("/v1/chat/completions", body)[1])
        )
        asking.start()
        server.wait_for("ignis.request.ttft")
        server.send(signal.SIGTERM)
        asking.join(60)
        assert server.wait() == 0
        assert texts[0].endswith("data: [DONE]\n\n")
        last = json.loads(texts[0].split("\n\n")[-3].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"


def test_a_taken_port_is_said_before_weights_are_read() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with ServerProcess([*SERVE, "--server-bind", bind]) as server:
            assert server.wait() == 1
            assert f"{bind} is in use" in "".join(server.errors)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--server-bnd", "127.0.0.1:0"], 2, "--server-bind"),
        (["--server-bind", "0.0.0.0:0"], 2, "api_key"),
        (["--model", "missing.gguf", "--server-bind", "127.0.0.1:0"], 1, "missing.gguf"),
        (["--vram-budget-bytes", "1M", "--server-bind", "127.0.0.1:0"], 3, "shortfall"),
    ],
)
def test_what_cannot_start_says_why(words: list[str], status: int, said: str) -> None:
    with ServerProcess([*SERVE, *words]) as server:
        assert server.wait() == status
        assert said in "".join(server.errors)
