"""The official client against a real process on the default model."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.server.process import ServerProcess

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
README = Path(__file__).parents[2] / "README.md"
ASK: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]


@pytest.fixture
def client(served: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def aclient(served: ServerProcess) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_model_is_listed_with_its_plan(client: OpenAI) -> None:
    card = client.models.list().data[0]
    assert card.id == MODEL
    extra = card.model_extra or {}
    assert extra["max_model_len"] == 2048
    assert extra["adapted"] == []
    lines = {line["name"]: line["bytes"] for line in extra["plan"]["lines"]}
    assert lines["weights"] > 50_000_000
    assert sum(lines.values()) == extra["plan"]["total_bytes"]
    assert client.models.retrieve(MODEL).id == MODEL


def test_what_the_readme_asks_first_is_answered_well(served: ServerProcess) -> None:
    asked = re.search(r"-d '(.*)'", README.read_text(encoding="utf-8"))
    assert asked
    status, text = served.post("/v1/chat/completions", json.loads(asked[1]))
    assert status == 200, text
    (choice,) = json.loads(text)["choices"]
    assert "H2O" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_a_chat_answers_in_english(client: OpenAI) -> None:
    made = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    assert "Paris" in (made.choices[0].message.content or "")
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens


def test_a_stream_equals_the_whole_answer(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model=MODEL, messages=ASK, seed=7, max_tokens=60, temperature=1
    )
    with client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        seed=7,
        max_tokens=60,
        temperature=1,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == made.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == made.usage


async def test_many_at_once_equal_one_alone(aclient: AsyncOpenAI) -> None:
    async def ask(seed: int) -> str:
        made = await aclient.chat.completions.create(
            model=MODEL, messages=ASK, seed=seed, max_tokens=30, temperature=1
        )
        return made.choices[0].message.content or ""

    alone = [await ask(seed) for seed in range(3)]
    together = await asyncio.gather(*(ask(seed % 3) for seed in range(9)))
    assert together == alone * 3


async def test_async_stream(aclient: AsyncOpenAI) -> None:
    stream = await aclient.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=20, stream=True
    )
    reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert reasons[-1] in ("stop", "length")


def test_n_answers_and_logprobs(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model=MODEL, messages=ASK, n=3, max_tokens=8, logprobs=True, top_logprobs=5, seed=1
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    for choice in made.choices:
        assert choice.logprobs is not None
        for entry in choice.logprobs.content or []:
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 5
            assert math.fsum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.001


def test_completions_of_text_and_ids_are_equal(client: OpenAI, served: ServerProcess) -> None:
    text = "The three primary colours are"
    by_text = client.completions.create(model=MODEL, prompt=text, max_tokens=12, temperature=0)
    ids = client.post("/tokenize", body={"prompt": text}, cast_to=object)
    assert isinstance(ids, dict)
    by_ids = client.completions.create(
        model=MODEL, prompt=[ids["tokens"], ids["tokens"]], max_tokens=12, temperature=0
    )
    assert [choice.text for choice in by_ids.choices] == [by_text.choices[0].text] * 2


def test_a_stop_string_is_left_out(client: OpenAI) -> None:
    made = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4,", max_tokens=40, temperature=0, stop=[" 8"]
    )
    assert " 8" not in made.choices[0].text
    assert made.choices[0].finish_reason == "stop"


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt=[5] * 2048, stream=True)
    assert long.value.code == "context_length_exceeded"


def test_leaving_a_stream_frees_the_lane(client: OpenAI, served: ServerProcess) -> None:
    before = served.metric("ignis_requests_cancelled_total")
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        stream=True,
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    held = served.metric("ignis_kv_pool_used_pages")
    assert held >= 1500 // 64
    stream.close()
    eventually(lambda: served.metric("ignis_requests_cancelled_total") == before + 1)
    eventually(lambda: served.metric("ignis_scheduler_requests") == 0)
    # What is left is what retained slots hold of prompts.
    assert served.metric("ignis_kv_pool_used_pages") <= held - 1500 // 64
    assert served.metric("ignis_plan_allocations_total") == 0
