"""What the routes tell the engine about a prompt, and clients about what was reused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ignis.engine.api import Mark, SequenceRequest
from tests.unit.server.conftest import Start
from tests.unit.server.scripted import PAGE_TOKENS, ScriptedService

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "the dog saw the cat " * 9}


def said(*words: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [SYSTEM, *({"role": roles[i % 2], "content": text} for i, text in enumerate(words))]


async def asked(start: Start, path: str, body: dict[str, Any]) -> list[SequenceRequest]:
    service = ScriptedService()
    reply = await (await start(service)).post(path, json=body)
    assert reply.status == 200
    return service.requests


async def test_a_conversation_is_submitted_with_its_marks(start: Start) -> None:
    (first,) = await asked(start, CHAT, {"messages": said("hi")})
    prefix, checkpoint = first.marks
    assert (prefix.kind, checkpoint.kind) == ("prefix", "checkpoint")
    assert prefix.position % PAGE_TOKENS == 0
    assert checkpoint.position == len(first.prompt) - 1
    (later,) = await asked(start, CHAT, {"messages": said("hi", "the cat", "and")})
    assert later.marks[0] == prefix
    for mark in first.marks:
        assert later.prompt[: mark.position] == first.prompt[: mark.position]


async def test_a_raw_prompt_is_marked_before_its_last_token(start: Start) -> None:
    one, other = await asked(start, COMPLETIONS, {"prompt": [[5, 6, 7], [8]]})
    assert one.marks == (Mark(2, "checkpoint"),)
    assert other.marks == ()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_several_answers_share_all_but_the_last_token(start: Start, path: str) -> None:
    body = {"messages": said("hi")} if path == CHAT else {"prompt": "the cat sat"}
    requests = await asked(start, path, {**body, "n": 3})
    assert len(requests) == 3
    for request in requests:
        assert request.prompt == requests[0].prompt
        assert Mark(len(request.prompt) - 1, "checkpoint") in request.marks
        assert list(request.marks) == sorted(request.marks)


async def test_without_checkpoints_only_prefixes_are_marked(start: Start) -> None:
    service = ScriptedService()
    client = await start(service, checkpoints=False)
    await client.post(CHAT, json={"messages": said("hi"), "n": 2})
    await client.post(COMPLETIONS, json={"prompt": [5, 6, 7]})
    marks = [request.marks for request in service.requests]
    assert [[mark.kind for mark in found] for found in marks] == [["prefix"], ["prefix"], []]


async def usage_of(start: Start, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The usage of a service that finds all but one token for first answers, all for others."""
    seen: set[tuple[int, ...]] = set()

    def cached(request: SequenceRequest) -> int:
        first = request.prompt not in seen
        seen.add(request.prompt)
        return 1 if first else len(request.prompt) - 1

    reply = await (await start(ScriptedService(cached=cached))).post(path, json=body)
    if not body.get("stream"):
        return dict((await reply.json())["usage"])
    chunks = [line for line in (await reply.text()).splitlines() if line.startswith("data: {")]
    return dict(json.loads(chunks[-1].removeprefix("data: "))["usage"])


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_those_of_each_prompts_first_answer(
    start: Start, stream: bool
) -> None:
    body: dict[str, Any] = {"stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    usage = await usage_of(start, CHAT, {"messages": said("hi"), **body})
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    usage = await usage_of(start, COMPLETIONS, {"prompt": [[5, 6, 7], [8, 9]], "n": 2, **body})
    assert usage["prompt_tokens"] == 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_an_answer_of_no_tokens_has_nothing_cached(start: Start) -> None:
    usage = await usage_of(start, COMPLETIONS, {"prompt": [5, 6], "max_tokens": 0})
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
