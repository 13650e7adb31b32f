"""A service that answers by a script, and the application over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from ignis.admission import NeverFits
from ignis.engine.api import FinishReason, SequenceRequest, TokenBatch, TokenOut
from ignis.engine.errors import Draining, QueueFull
from ignis.server.app import build_app
from ignis.server.serving import LoadedModel, ServerSettings, Serving
from ignis.text import ChatMarks, ChatTemplate, TemplateSource, Tokenizer, from_gguf
from tests.unit.text import tiny

CONTEXT = 256
PAGE_TOKENS = 16
TOKENIZER: Tokenizer = from_gguf(tiny.byte_level_metadata())
EOS = 2
CHATML = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must be first') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Item = int | TokenBatch | float | asyncio.Event
"""A token, a whole batch, seconds to wait, or an event to wait for."""


class ScriptedStream:
    """One sequence's script, played to its reader."""

    def __init__(
        self, request: SequenceRequest, script: Sequence[Item], cached_tokens: int = 0
    ) -> None:
        self.request = request
        self.cached_tokens = cached_tokens
        self.cancelled = False
        self.completed = False
        self.ended = False
        self._script = script

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        made = 0
        for item in self._script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, float):
                await asyncio.sleep(item)
            elif isinstance(item, TokenBatch):
                self.ended = item.finish_reason is not None
                yield item
            else:
                made += 1
                yield self._batch(item, made)
            if self.ended or self.cancelled or self.completed:
                return

    def cancel(self) -> None:
        if not self.ended and not self.completed:
            self.cancelled = True

    def complete(self) -> None:
        if not self.ended:
            self.completed = True

    def _batch(self, token: int, made: int) -> TokenBatch:
        top = tuple((i, -2.0 - i) for i in range(self.request.sampling.logprobs or 0))
        out = TokenOut(token, -0.5, top)
        reason: FinishReason | None = None
        if token in self.request.stop_ids:
            reason = "stop"
        elif made == (self.request.max_tokens or CONTEXT):
            reason = "length"
        self.ended = reason is not None
        return TokenBatch((out,), reason)


@dataclass
class ScriptedService:
    """Plays `script(request)`; by default the text "the cat" and the end token."""

    script: Callable[[SequenceRequest], Sequence[Item]] = field(
        default=lambda request: [*TOKENIZER.encode("the cat"), EOS]
    )
    open_max: int = 64
    healthy: bool = True
    draining: bool = False
    cached: Callable[[SequenceRequest], int] = field(default=lambda request: 0)
    streams: list[ScriptedStream] = field(default_factory=list)

    def submit(self, request: SequenceRequest) -> ScriptedStream:
        if self.draining:
            raise Draining
        if len(request.prompt) >= CONTEXT:
            raise NeverFits(
                f"the prompt has {len(request.prompt)} tokens and the context holds {CONTEXT}",
                code="context_exceeded",
                needed=len(request.prompt),
                limit=CONTEXT,
                unit="tokens",
            )
        running = [s for s in self.streams if not (s.ended or s.cancelled or s.completed)]
        if len(running) >= self.open_max:
            raise QueueFull(len(running), self.open_max)
        stream = ScriptedStream(request, self.script(request), self.cached(request))
        self.streams.append(stream)
        return stream

    @property
    def requests(self) -> list[SequenceRequest]:
        return [stream.request for stream in self.streams]


class NoMetrics:
    """Metrics of nothing."""

    def request_refused(self, reason: str) -> None: ...

    def render(self) -> bytes:
        return b"# nothing\n"


def loaded(
    service: ScriptedService, *, template: str | None = CHATML, checkpoints: bool = True
) -> LoadedModel:
    """The model `tiny` over `service`."""
    source = None if template is None else TemplateSource("test", template)
    return LoadedModel(
        id="tiny",
        context_tokens_max=CONTEXT,
        tokenizer=TOKENIZER,
        template=None if source is None else ChatTemplate(source, TOKENIZER.template_tokens()),
        service=service,
        marks=ChatMarks(TOKENIZER, PAGE_TOKENS),
        checkpoints=checkpoints,
        facts={"adapted": []},
    )


def client_of(
    model: LoadedModel | None, settings: ServerSettings | None = None
) -> TestClient[Any, Any]:
    """A client of the application over `model`; None means it is still loading."""
    serving = Serving(settings or ServerSettings(), NoMetrics(), "0.0.0")
    serving.loaded = model
    server = TestServer(build_app(serving))
    return TestClient(server)
