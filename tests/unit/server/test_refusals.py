"""Every hostile value is a 400 that names its field, and the server answers the next request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

Client = TestClient[Any, Any]

USER = [{"role": "user", "content": "hi"}]

# (field, value, param of the error or None for the field itself)
CHAT_REFUSED: list[tuple[str, Any, str | None]] = [
    *[("n", value, None) for value in (0, -1, 1.0, 129, "2", True, {})],
    *[("max_tokens", value, None) for value in (0, -1, 2**63, 2**64, 1.5, 10.0, "5", True)],
    *[("max_completion_tokens", value, None) for value in (0, 2**31)],
    *[("temperature", value, None) for value in (-1, 2.1, 1e9, "1", True, [])],
    ("temperature", 1e308, None),
    *[("top_p", value, None) for value in (-0.1, 1.1, "1")],
    *[("top_k", value, None) for value in (-2, 2**31, 1.5)],
    *[("min_p", value, None) for value in (-0.1, 1.1)],
    *[("presence_penalty", value, None) for value in (-2.1, 2.1, 1e9)],
    *[("frequency_penalty", value, None) for value in (-2.1, 2.1, 1e9)],
    *[("repetition_penalty", value, None) for value in (0, -1, 1e9)],
    *[("seed", value, None) for value in (2**64, -(2**63) - 1, 1.5, "42", True)],
    ("stop", "", None),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["a"] * 17, None),
    ("stop", [1], "stop[0]"),
    ("stop", 5, None),
    ("stop", "x" * 300, None),
    ("logit_bias", {"-1": 1}, None),
    ("logit_bias", {"abc": 1}, None),
    ("logit_bias", {"99999": 1}, None),
    ("logit_bias", {"1": 1e9}, "logit_bias.1"),
    ("logit_bias", {"1": None}, "logit_bias.1"),
    ("logit_bias", {"1": 1, "01": 2}, None),
    ("logit_bias", [1], None),
    ("stop_token_ids", [10**9], None),
    ("stop_token_ids", [-1], "stop_token_ids[0]"),
    ("stop_token_ids", ["1"], "stop_token_ids[0]"),
    ("stop_token_ids", 5, None),
    ("logprobs", 1, None),
    ("top_logprobs", 21, None),
    ("top_logprobs", 2, None),  # without logprobs
    ("stream", "true", None),
    ("stream", 1, None),
    ("stream_options", {"include_usage": True}, None),  # without stream
    ("stream_options", [], None),
    ("class", "batch", None),
    ("ignore_eos", True, None),  # without max_tokens
    ("model", 5, None),
    ("response_format", {"type": "json_object"}, None),
    ("tools", [{"type": "function", "function": {"name": "f"}}], None),
    ("tool_choice", "required", None),
    ("tool_choice", {"type": "function", "function": {"name": "missing"}}, None),
    ("parallel_tool_calls", False, None),
    ("store", True, None),
    ("service_tier", "flex", None),
    ("modalities", ["audio"], None),
    ("audio", {"voice": "a", "format": "wav"}, None),
    ("reasoning_effort", "high", None),
    ("web_search_options", {}, None),
    ("echo", True, None),
    ("guided_json", {}, None),
    ("chat_template", "x", None),
    ("chat_template_kwargs", [], None),
    ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs.messages"),
    ("add_generation_prompt", "yes", None),
]


@pytest.mark.parametrize(
    ("field", "value", "param"), CHAT_REFUSED, ids=lambda value: str(value)[:40]
)
async def test_chat_refuses_a_wrong_value_by_name(
    client: Client, field: str, value: Any, param: str | None
) -> None:
    body = {"messages": USER, field: value}
    reply = await client.post("/v1/chat/completions", json=body)
    error = (await reply.json())["error"]
    assert reply.status == 400, error
    assert error["param"] == (param or field)
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert error["message"]


CHAT_MESSAGES_REFUSED: list[tuple[Any, str]] = [
    (None, "messages"),
    ([], "messages"),
    ("hi", "messages"),
    ([5], "messages[0]"),
    ([{"content": "hi"}], "messages[0].role"),
    ([{"role": "Bogus", "content": "hi"}], "messages[0].role"),
    ([{"role": "function", "content": "hi", "name": "f"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
    ([*USER, {"role": "system", "content": "late"}], "messages"),  # the template refuses
]


@pytest.mark.parametrize(("messages", "param"), CHAT_MESSAGES_REFUSED, ids=str)
async def test_chat_refuses_wrong_messages_by_path(
    client: Client, messages: Any, param: str
) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": messages})
    error = (await reply.json())["error"]
    assert (reply.status, error["param"]) == (400, param), error


ACCEPTED: list[dict[str, Any]] = [
    {"n": None, "stop": None, "tools": None, "logit_bias": None, "audio": None},
    {"stop": []},
    {"stop": ["a"] * 16},
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "store": False},
    {"metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "modalities": ["text"]},
    {"response_format": {"type": "text"}},
    {"temperature": 0, "top_p": 0, "top_k": 10**9, "min_p": 1},
    {"temperature": 1e-9},
    {"seed": -1},
    {"seed": 2**64 - 1},
    {"max_tokens": 5, "max_completion_tokens": 5},
    {"max_tokens": 2**31 - 1},
    {"unknown_field": 5},
    {"model": "tiny"},
    {"model": "tiny@agent", "class": "agent"},
    {"messages": [{"role": "developer", "content": "d"}, *USER]},
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "user", "content": "\u0000\ufeff"}]},
    {"logprobs": False, "top_logprobs": None},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
async def test_chat_accepts(client: Client, fields: dict[str, Any]) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert reply.status == 200, await reply.text()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"model": "tiny@agent", "class": "interactive"}, "class"),
    ],
)
async def test_contradictions_are_refused(
    client: Client, fields: dict[str, Any], param: str
) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)


COMPLETIONS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt[0]"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [[-1]]}, "prompt[0][0]"),
    ({"prompt": [[49152]]}, "prompt[0][0]"),
    ({"prompt": [2**31]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": ["a", [5]]}, "prompt[1]"),
    ({"prompt": [5, "a"]}, "prompt[1]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": "a", "n": 2, "best_of": 1}, "best_of"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "echo": True, "max_tokens": 0, "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": [5] * 256}, "prompt"),
    ({"prompt": [5] * 257, "max_tokens": 0}, "prompt"),
]


@pytest.mark.parametrize(("body", "param"), COMPLETIONS_REFUSED, ids=lambda v: str(v)[:50])
async def test_completions_refuses(client: Client, body: dict[str, Any], param: str) -> None:
    reply = await client.post("/v1/completions", json=body)
    error = (await reply.json())["error"]
    assert (reply.status, error["param"]) == (400, param), error


JSON_REFUSED: list[tuple[bytes, str]] = [
    (b"", "invalid_json"),
    (b"   ", "invalid_json"),
    (b"{", "invalid_json"),
    (b"[]", "invalid_json"),
    (b"5", "invalid_json"),
    (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid_json"),
    (b'{"messages": [{"role": "user", "content": "\xc0\xaf"}]}', "invalid_json"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_unicode"),
    (b'{"\\udfff": 1}', "invalid_unicode"),
    ('{"messages": []}'.encode("utf-16"), "invalid_json"),
    ('{"messages": []}'.encode("utf-32-be"), "invalid_json"),
    (b'{"temperature": NaN}', "invalid_json"),
    (b'{"temperature": -Infinity}', "invalid_json"),
    (b'{"a": [' + b"[]," * 200_000 + b"1]}", "invalid_json"),
    (b'{"a": [' + b"{}," * 200_000 + b"1]}", "invalid_json"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json"),
    (b'{"seed": 1, "seed": 2}', "invalid_json"),
    (b'{"messages": [{"role": "user", "role": "user"}]}', "invalid_json"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    (b'{"a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "invalid_json"),
    (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
]


@pytest.mark.parametrize(("data", "code"), JSON_REFUSED, ids=lambda v: str(v)[:40])
async def test_json_is_read_strictly(client: Client, data: bytes, code: str) -> None:
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/v1/chat/completions", data=data, headers=headers)
    error = (await reply.json())["error"]
    assert (reply.status, error["code"]) == (400, code), error
    after = await client.post("/v1/chat/completions", json={"messages": USER})
    assert (await after.json())["choices"][0]["message"]["content"] == "the cat"


async def test_a_byte_order_mark_is_skipped(client: Client) -> None:
    data = b"\xef\xbb\xbf" + json.dumps({"messages": USER}).encode()
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/v1/chat/completions", data=data, headers=headers)
    assert reply.status == 200


async def test_a_surrogate_is_named_by_its_place(client: Client) -> None:
    data = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/v1/chat/completions", data=data, headers=headers)
    assert (await reply.json())["error"]["param"] == "messages[0].content"


async def test_an_unknown_model_is_404(client: Client) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/tokenize", {"prompt": "a"}),
        ("/v1/detokenize", {"tokens": [5]}),
    ):
        reply = await client.post(path, json={"model": "other", **body})
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_context_overflow_names_both_numbers_before_any_stream(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "z" * 2560}], "stream": True}
    reply = await client.post("/v1/chat/completions", json=body)
    error = (await reply.json())["error"]
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert "256" in error["message"]
    assert error["param"] == "messages"


async def test_a_number_beyond_a_double_is_named_by_its_field(client: Client) -> None:
    data = b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}'
    headers = {"Content-Type": "application/json"}
    reply = await client.post("/v1/chat/completions", data=data, headers=headers)
    assert (reply.status, (await reply.json())["error"]["param"]) == (400, "temperature")


async def test_brackets_inside_text_are_only_text(client: Client) -> None:
    body = {"messages": USER, "user": '[{"' * 100_000}
    assert (await client.post("/v1/chat/completions", json=body)).status == 200
