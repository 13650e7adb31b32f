"""What HTTP itself asks: keys, origins, bodies, paths, states."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from ignis.server.serving import ServerSettings
from tests.unit.server.conftest import Start
from tests.unit.server.scripted import ScriptedService, client_of

Client = TestClient[Any, Any]

BODY = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic sécret", 401),
        ("Bearer", 401),
        ("Bearer sécret", 200),
        ("bearer  sécret ", 200),
    ],
)
async def test_the_key_is_asked_for(start: Start, header: str | None, status: int) -> None:
    client = await start(None, ServerSettings(api_key="sécret"))
    headers = {} if header is None else {"Authorization": header}
    for path in ("/v1/models", "/metrics"):
        reply = await client.get(path, headers=headers)
        assert reply.status == status
    if status == 401:
        error = (await (await client.post(CHAT, json=BODY, headers=headers)).json())["error"]
        assert error["code"] == "invalid_api_key"


async def test_open_paths_need_no_key(start: Start) -> None:
    client = await start(None, ServerSettings(api_key="k"))
    for path in ("/health", "/ready", "/openapi.json", "/docs", "/"):
        assert (await client.get(path)).status == 200


async def test_browsers_are_let_in_from_this_machine_only_without_a_key(start: Start) -> None:
    client = await start()
    for origin, allowed in (
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
    ):
        asked = {"Origin": origin, "Access-Control-Request-Headers": "x-stainless-os"}
        reply = await client.options(CHAT, headers=asked)
        assert reply.status == 204
        expected = origin if allowed else None
        assert reply.headers.get("Access-Control-Allow-Origin") == expected
        assert reply.headers["Access-Control-Allow-Headers"] == "x-stainless-os"
    keyed = await start(None, ServerSettings(api_key="k"))
    reply = await keyed.options(CHAT, headers={"Origin": "https://any.example"})
    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (204, "*")


async def test_a_simple_request_of_a_web_page_is_refused(start: Start) -> None:
    client = await start()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = await client.post(
            CHAT, data=json.dumps(BODY).encode(), headers={"Content-Type": kind}
        )
        assert reply.status == 415


async def test_compressed_bodies_are_refused(start: Start) -> None:
    client = await start()
    data = gzip.compress(json.dumps(BODY).encode())
    reply = await client.post(CHAT, data=data, headers={**JSON, "Content-Encoding": "gzip"})
    error = (await reply.json())["error"]
    assert (reply.status, error["code"]) == (415, "unsupported_media_type")


async def test_bodies_have_a_limit(start: Start) -> None:
    client = await start(None, ServerSettings(body_max_bytes=100_000))
    large = b'{"messages": "' + b"a" * 200_000 + b'"}'

    async def chunks() -> Any:
        for _ in range(20):
            yield b"a" * 10_000

    for data in (large, chunks()):
        reply = await client.post(CHAT, data=data, headers=JSON)
        assert (reply.status, (await reply.json())["error"]["code"]) == (413, "body_too_large")
    assert (await client.post(CHAT, json=BODY)).status == 200


async def test_a_large_body_within_the_limit_is_read(start: Start) -> None:
    client = await start()
    body = {**BODY, "metadata": {"a": "b" * (8 << 20)}}
    assert (await client.post(CHAT, json=body)).status == 200


async def test_a_declared_size_beyond_the_limit_is_refused_unread(start: Start) -> None:
    client = await start()
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2147483648\r\n\r\n"
    )
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_a_slow_body_is_given_up(start: Start) -> None:
    client = await start(None, ServerSettings(body_timeout=0.2))
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_bodies_held_at_once_have_a_limit(start: Start) -> None:
    settings = ServerSettings(body_max_bytes=1000, body_timeout=0.3)
    client = await start(None, settings)
    slow = [await asyncio.open_connection(client.host, client.port) for _ in range(4)]
    for _, writer in slow:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
    await asyncio.sleep(0.1)
    reply = await client.post(CHAT, json=BODY)  # waits for the slow ones to be given up
    assert reply.status == 200
    for _, writer in slow:
        writer.close()


async def test_unknown_paths_and_methods_are_json(start: Start) -> None:
    client = await start()
    reply = await client.get("/v1/nothing")
    assert (reply.status, (await reply.json())["error"]["code"]) == (404, "not_found")
    reply = await client.get(CHAT)
    assert (reply.status, (await reply.json())["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["Allow"] == "POST"


async def test_models_are_listed_and_found(start: Start) -> None:
    client = await start()
    data = (await (await client.get("/v1/models")).json())["data"]
    assert [(card["id"], card["adapted"]) for card in data] == [("tiny", [])]
    assert (await (await client.get("/v1/models/tiny")).json())["id"] == "tiny"
    reply = await client.get("/v1/models/other")
    assert (reply.status, (await reply.json())["error"]["code"]) == (404, "model_not_found")


async def test_while_the_model_loads_requests_are_not_ready() -> None:
    async with client_of(None) as client:
        for reply in (await client.get("/ready"), await client.post(CHAT, json=BODY)):
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
            assert (await reply.json())["error"]["code"] == "server_not_ready"
        assert (await client.get("/health")).status == 200
        assert (await (await client.get("/v1/models")).json())["data"] == []
        assert (await client.get("/metrics")).status == 200


async def test_a_draining_server_takes_nothing_new(start: Start) -> None:
    client = await start(ScriptedService(draining=True))
    for reply in (await client.get("/ready"), await client.post(CHAT, json=BODY)):
        assert reply.status == 503
        assert "Retry-After" in reply.headers
        assert (await reply.json())["error"]["code"] == "server_draining"


async def test_a_failed_engine_shows_in_health(start: Start) -> None:
    client = await start(ScriptedService(healthy=False))
    assert (await client.get("/health")).status == 503
    assert (await client.get("/ready")).status == 500


async def test_without_a_template_chat_says_what_to_do(start: Start) -> None:
    client = await start(template=None)
    error = (await (await client.post(CHAT, json=BODY)).json())["error"]
    assert error["code"] == "template_missing"
    assert "/v1/completions" in error["message"]


async def test_the_request_id_is_kept_or_made(start: Start) -> None:
    client = await start()
    reply = await client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert reply.headers["X-Request-Id"] == "mine-1"
    reply = await client.get("/health", headers={"X-Request-Id": "no spaces " * 50})
    assert reply.headers["X-Request-Id"].startswith("req-")


async def test_tokenize_and_back(start: Start) -> None:
    client = await start()
    for text in (" a", "a", "  a", "\ta", "\n\n\n", "\u0000", "\ufeff", "👩‍👩‍👧‍👦한국어"):
        body = {"prompt": text, "return_token_strs": True}
        made = await (await client.post("/v1/tokenize", json=body)).json()
        assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
        back = await client.post("/v1/detokenize", json={"tokens": made["tokens"]})
        assert (await back.json())["prompt"] == text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/tokenize", {}, "prompt"),
        ("/v1/tokenize", {"prompt": "a", **BODY}, "prompt"),
        ("/v1/tokenize", {"prompt": 5}, "prompt"),
        ("/v1/detokenize", {}, "tokens"),
        ("/v1/detokenize", {"tokens": [10**9]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": "5"}, "tokens"),
    ],
)
async def test_token_routes_refuse(start: Start, path: str, body: Any, param: str) -> None:
    reply = await (await start()).post(path, json=body)
    assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)


async def test_tokenize_shows_the_rendered_conversation(start: Start) -> None:
    client = await start()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": None, "tool_call_id": "1"},
    ]
    made = await (await client.post("/v1/tokenize", json={"messages": messages})).json()
    back = await client.post("/v1/detokenize", json={"tokens": made["tokens"]})
    text = (await back.json())["prompt"]
    assert "one\ntwo" in text
    assert "null" not in text
    assert "None" not in text


async def test_probes_may_ask_with_head(start: Start) -> None:
    client = await start()
    assert (await client.head("/health")).status == 200
