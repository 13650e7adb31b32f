"""`ignis chat`: talk to a model in the terminal, loaded here or served elsewhere.

Ctrl-C stops an answer, and leaves when there is none. What was said of a stopped answer stays in
the conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from ignis.cli.flags import add_model_argument, add_option_flags, config_from
from ignis.config import Config
from ignis.errors import IgnisError, RequestError

HELP = """\
/reset  begin a new conversation
/help   this list
/exit   leave (or Ctrl-D)
Ctrl-C stops an answer."""

Fields = dict[str, Any]


class Talker(Protocol):
    """What answers a conversation."""

    def answer(self, fields: Fields) -> AsyncIterator[str]:
        """The answer to a chat completion's fields, in pieces. Raises IgnisError."""
        ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of `ignis chat`."""
    parser.usage = "%(prog)s [MODEL] [options]"
    add_model_argument(parser)
    talk = parser.add_argument_group("chat options")
    talk.add_argument("--url", help="talk to a server, such as http://127.0.0.1:8000")
    talk.add_argument("--system", metavar="TEXT", help="the system message")
    talk.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer")
    talk.add_argument("--temperature", type=float, help="0 always takes the likeliest token")
    talk.add_argument("--seed", type=int, help="repeat an answer")
    add_option_flags(parser, ("", "model", "vram", "cpu", "cuda", "cache"))


def main(args: argparse.Namespace) -> int:
    """Talk until the user leaves; the exit status."""
    from rich.console import Console

    from ignis.telemetry import configure_logging

    config = config_from(args)
    configure_logging("console", "error", sys.stderr)
    asked = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    # One runner for the whole conversation: between answers its loop stands still, so that the
    # terminal's own line editing and Ctrl-C work as anywhere else.
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opening = (
            at_server(args.url, config.server.api_key)
            if args.url
            else in_process(config, Console(stderr=True))
        )
        talker = runner.run(stack.enter_async_context(opening))
        try:
            Conversation(talker, args.system, asked).run(runner, read_line)
        finally:
            runner.run(stack.aclose())
    return 0


class Conversation:
    """The messages so far, and the loop that adds to them."""

    def __init__(self, talker: Talker, system: str | None, asked: Fields) -> None:
        self.messages: list[dict[str, str]] = []
        self._talker = talker
        self._system = system
        self._asked = {name: value for name, value in asked.items() if value is not None}
        self._reset()

    def run(self, runner: asyncio.Runner, read: Callable[[], str | None]) -> None:
        """Read lines and answer them until `read` gives None or the user leaves."""
        while (line := read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit" | "/bye":
                    return
                case "/reset":
                    self._reset()
                    print("A new conversation.")
                case word if word.startswith("/") and " " not in word:
                    print(HELP)
                case _:
                    self._answer(runner, line)

    def _reset(self) -> None:
        self.messages[:] = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def _answer(self, runner: asyncio.Runner, line: str) -> None:
        self.messages.append({"role": "user", "content": line})
        pieces: list[str] = []
        try:
            runner.run(self._print(pieces))
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        except IgnisError as error:
            print(f"[{error}; /reset begins anew]", end="")
            if not pieces:
                self.messages.pop()
        print()
        if pieces:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})

    async def _print(self, pieces: list[str]) -> None:
        async for piece in self._talker.answer({"messages": self.messages, **self._asked}):
            pieces.append(piece)
            print(piece, end="", flush=True)


def read_line() -> str | None:
    """One line of the user's, None when there are no more."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives `input` its line editing and history
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        print()
        return None


@asynccontextmanager
async def in_process(config: Config, console: Any) -> AsyncIterator[Talker]:
    """The configured model, planned and loaded here."""
    from ignis.server.loading import plan_model, running_model

    if not config.named("reuse.kv_host_pool_bytes"):
        # Nobody else is here who could move the one sequence out.
        config = replace(config, reuse=replace(config.reuse, kv_host_pool_bytes=0))
    plan = plan_model(config, console)
    async with running_model(config, plan, None, console) as (model, _):
        console.print(f"{model.id} is ready; /help lists what you can do.", highlight=False)
        yield _Loaded(model)


class _Loaded:
    """A model of this process, asked through the same path as the server's requests."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def answer(self, fields: Fields) -> AsyncIterator[str]:
        from ignis.server.asked import asked_of
        from ignis.server.conversation import conversation_prompt
        from ignis.server.field_tables import CHAT
        from ignis.server.generation import start

        model = self._model
        checked = CHAT.parse(fields)
        asked = asked_of(checked, model.id, model.tokenizer)
        prompt = await conversation_prompt(checked, model)
        generation = start(
            model,
            asked,
            [prompt],
            request_id="chat",
            param="messages",
        )
        try:
            while not generation.is_done:
                event = await generation.next(None)
                if event is not None:
                    yield event[1].text
        finally:
            generation.close()


@asynccontextmanager
async def at_server(url: str, api_key: str | None) -> AsyncIterator[Talker]:
    """The model of a server that speaks OpenAI's API."""
    import aiohttp

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        base = url.rstrip("/").removesuffix("/v1")
        try:
            async with session.get(f"{base}/v1/models") as reply:
                models = await reply.json(content_type=None)
                if reply.status != 200:
                    raise IgnisError(_said(models, reply.status))
        except (aiohttp.ClientError, ValueError, TimeoutError) as error:
            raise IgnisError(f"no server answers at {url}: {error}") from None
        served = [str(card.get("id")) for card in models.get("data", [])]
        if not served:
            raise IgnisError(f"the server at {url} has no model loaded yet")
        yield _Served(session, f"{base}/v1/chat/completions", served[0])


class _Served:
    """A model behind HTTP."""

    def __init__(self, session: Any, url: str, model: str) -> None:
        self._session = session
        self._url = url
        self._model = model

    async def answer(self, fields: Fields) -> AsyncIterator[str]:
        import aiohttp

        body = {"model": self._model, "stream": True, **fields}
        try:
            async with self._session.post(self._url, json=body) as reply:
                if reply.status != 200:
                    raise RequestError(_said(await reply.json(content_type=None), reply.status))
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        yield _piece(line[len(b"data: ") :])
        except (aiohttp.ClientError, ValueError) as error:
            raise IgnisError(f"the server went away: {error}") from None


def _piece(data: bytes) -> str:
    """The text of one event. Raises RequestError for an error event."""
    import json

    chunk = json.loads(data)
    if "error" in chunk:
        raise RequestError(_said(chunk, 500))
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def _said(body: Any, status: int) -> str:
    """What an error body says."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or f"the server answered {status}")
