"""`ignis serve` with prompt reuse and KV-disk: what clients are told, also after a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import ServerProcess

pytestmark = pytest.mark.model

SERVE = [
    *("-m", "ignis", "serve", "--log-format", "json", "--model-max-context", "2048"),
    *("--server-bind", "127.0.0.1:0"),
]
SMALL = ["--reuse-kv-host-pool-bytes", "64M"]
SYSTEM = {"role": "system", "content": "You are a helpful agent and answer in one sentence. " * 20}
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def chat(server: ServerProcess, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, **fields}
    status, text = server.post("/v1/chat/completions", body)
    assert status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def words_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def two_turns(server: ServerProcess) -> tuple[dict[str, Any], dict[str, Any]]:
    first = chat(server, [SYSTEM, QUESTION])
    said = {"role": "assistant", "content": words_of(first)}
    more = {"role": "user", "content": "And what is that of Spain?"}
    return first, chat(server, [SYSTEM, QUESTION, said, more])


def test_a_second_turn_computes_only_what_is_new_and_says_the_same() -> None:
    with ServerProcess([*SERVE, *SMALL]) as server:
        server.wait_ready()
        first, second = two_turns(server)
        assert cached(first) == 0
        assert cached(second) == first["usage"]["prompt_tokens"] - 1
        other = chat(server, [SYSTEM, {"role": "user", "content": "Name a colour."}])
        assert cached(other) % 64 == 0
        assert 0 < cached(other) < cached(second)
        done = [server.wait_for("ignis.request.done") for _ in range(3)]
        assert "reuse_source" not in done[0]
        assert done[1]["reuse_source"] == "device"
        assert done[1]["reused_prompt_tokens"] == cached(second)
        assert server.metric("ignis_retained_reused_tokens_total") == cached(second) + cached(other)
    with ServerProcess([*SERVE, *SMALL, "--reuse-prompt", "off"]) as server:
        server.wait_ready()
        cold = two_turns(server)
        assert [cached(answer) for answer in cold] == [0, 0]
        assert [words_of(answer) for answer in cold] == [words_of(first), words_of(second)]
        assert server.metric("ignis_retained_state_misses_total") == 0


def test_several_answers_compute_their_prompt_once() -> None:
    with ServerProcess([*SERVE, *SMALL]) as server:
        server.wait_ready()
        answer = chat(server, [SYSTEM, QUESTION], n=3, temperature=0.9, seed=1)
        prompt_tokens = answer["usage"]["prompt_tokens"]
        assert cached(answer) == 0
        assert server.metric("ignis_prompt_tokens_total") == prompt_tokens + 2


def test_a_restart_finds_what_was_retained_on_kv_disk(tmp_path: Path) -> None:
    disk = ["--kv-disk-bytes", "200M", "--kv-disk-path", str(tmp_path / "kv")]
    disk += ["--kv-disk-margin-bytes", "0"]
    with ServerProcess([*SERVE, *SMALL, *disk]) as server:
        assert server.wait_for("ignis.kv_disk.ready")["windows_used"] == 0
        server.wait_ready()
        first, second = two_turns(server)
        with ServerProcess([*SERVE, *SMALL, *disk]) as other:
            assert other.wait() == 1
            assert "kv-disk.ignis" in "".join(other.errors)
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    with ServerProcess([*SERVE, *SMALL, *disk]) as server:
        ready = server.wait_for("ignis.kv_disk.ready")
        assert ready["windows_used"] > 0
        server.wait_ready()
        again = two_turns(server)
        assert cached(again[0]) == first["usage"]["prompt_tokens"] - 1
        assert server.wait_for("ignis.request.done")["reuse_source"] == "disk"
        assert [words_of(answer) for answer in again] == [words_of(first), words_of(second)]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--kv-disk-bytes", "1G", "--kv-disk-margin-bytes", "1000T"], 3, "the disk plan needs"),
        (["--reuse-kv-host-pool-bytes", "64T"], 3, "kv_ram_arena crosses it"),
        (["--reuse-prompt", "off", "--reuse-retained-interactive-ttl", "9"], 2, "reuse.prompt on"),
    ],
)
def test_tiers_that_cannot_be_had_refuse_the_start(
    words: list[str], status: int, said: str, tmp_path: Path
) -> None:
    with ServerProcess([*SERVE, *SMALL, "--kv-disk-path", str(tmp_path / "kv"), *words]) as server:
        assert server.wait() == status
        assert said in " ".join("".join(server.errors).split())
    assert not (tmp_path / "kv").exists()
