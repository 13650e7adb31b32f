"""`ignis chat`: what it keeps of a conversation, and both ways to reach a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from ignis.cli import chat
from ignis.errors import IgnisError, RequestError
from tests.unit.server.scripted import ScriptedService, client_of, loaded


class Scripted:
    """A talker whose answers are given beforehand; an exception in one is raised."""

    def __init__(self, *answers: list[Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = list(answers)

    async def answer(self, fields: dict[str, Any]) -> AsyncIterator[str]:
        self.asked.append({**fields, "messages": list(fields["messages"])})
        for piece in self._answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def lines(*words: str) -> Callable[[], str | None]:
    left = list(words)
    return lambda: left.pop(0) if left else None


def talk(talker: Scripted, *words: str, system: str | None = None) -> chat.Conversation:
    conversation = chat.Conversation(talker, system, {"max_tokens": 5, "seed": None})
    with asyncio.Runner() as runner:
        conversation.run(runner, lines(*words))
    return conversation


def test_answers_join_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    talker = Scripted(["Hel", "lo"], ["Bye"])
    talk(talker, "hi", "", "and now?", "/exit", "never read", system="Be brief.")
    roles = [message["role"] for message in talker.asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert talker.asked[1]["messages"][2]["content"] == "Hello"
    assert talker.asked[0]["max_tokens"] == 5
    assert "seed" not in talker.asked[0]
    assert "Hello\nBye\n" in capsys.readouterr().out


def test_reset_keeps_only_the_system_message() -> None:
    talker = Scripted(["a"])
    conversation = talk(talker, "hi", "/reset", system="s")
    assert conversation.messages == [{"role": "system", "content": "s"}]


def test_a_stopped_answer_keeps_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(Scripted(["half", KeyboardInterrupt()]), "hi")
    assert conversation.messages[-1] == {"role": "assistant", "content": "half"}
    assert "[stopped]" in capsys.readouterr().out


def test_a_refused_line_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(Scripted([RequestError("too long")]), "hi")
    assert conversation.messages == []
    assert "too long" in capsys.readouterr().out


def test_unknown_commands_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    talk(Scripted(), "/what")
    assert "/reset" in capsys.readouterr().out


ASKED = {"messages": [{"role": "user", "content": "hi"}]}


async def test_a_loaded_model_answers_in_pieces() -> None:
    service = ScriptedService()
    talker = chat._Loaded(loaded(service))
    pieces = [piece async for piece in talker.answer(ASKED)]
    assert "".join(pieces) == "the cat"


async def test_leaving_a_loaded_model_cancels_its_sequence() -> None:
    service = ScriptedService(lambda request: [5, 6, asyncio.Event()])
    answer = chat._Loaded(loaded(service)).answer(ASKED)
    assert isinstance(answer, AsyncGenerator)
    await anext(answer)
    await answer.aclose()
    assert service.streams[0].cancelled


async def test_a_served_model_answers_in_pieces() -> None:
    async with client_of(loaded(ScriptedService())) as client:
        for suffix in ("", "/", "/v1"):
            url = f"http://{client.host}:{client.port}{suffix}"
            async with chat.at_server(url, None) as talker:
                assert "".join([piece async for piece in talker.answer(ASKED)]) == "the cat"


async def test_a_served_model_says_what_it_refuses() -> None:
    async with (
        client_of(loaded(ScriptedService())) as client,
        chat.at_server(f"http://{client.host}:{client.port}", None) as talker,
    ):
        with pytest.raises(RequestError, match="temperature"):
            await anext(talker.answer({**ASKED, "temperature": 9}))


async def test_no_server_is_said_plainly() -> None:
    with pytest.raises(IgnisError, match="no server answers"):
        async with chat.at_server("http://127.0.0.1:1", None):
            pass
