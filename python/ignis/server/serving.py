"""What the routes share: the options, the metrics, and the model once it is loaded.

The server answers from the first moment; while the model loads, what needs it is refused as not
ready. Leaves out how the model comes to be: `run` does that.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from aiohttp import web

from ignis.server.asked import check_model
from ignis.server.body import BodyReader
from ignis.server.fields import FieldTable
from ignis.server.http_errors import ModelNotFound, NotReady
from ignis.server.interfaces import SequenceService, ServerMetrics
from ignis.text import ChatMarks, ChatTemplate, Tokenizer

OFFLOADED_ABOVE = 16 * 1024
"""Characters or ids of text above which encoding runs in a thread, beside the event loop."""

T = TypeVar("T")
State = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The options that the routes read; seconds and bytes."""

    api_key: str | None = None
    body_max_bytes: int = 16 * 2**20
    body_timeout: float = 60.0
    keepalive_seconds: float = 15.0
    request_timeout: float = 600.0

    @property
    def bodies_held_max_bytes(self) -> int:
        """Bytes of request bodies that may be held at once, while they are read and parsed."""
        return 4 * self.body_max_bytes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The served model. `facts` go into `/v1/models` as they are.

    Without `marks` no place of a conversation is marked; without `checkpoints` only prefixes are.
    """

    id: str
    context_tokens_max: int
    tokenizer: Tokenizer
    template: ChatTemplate | None
    service: SequenceService
    marks: ChatMarks | None = None
    checkpoints: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))


class Serving:
    """The state behind the routes."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics, version: str) -> None:
        self.settings = settings
        self.metrics = metrics
        self.version = version
        self.loaded: LoadedModel | None = None
        self.bodies = BodyReader(
            settings.body_max_bytes, settings.body_timeout, settings.bodies_held_max_bytes
        )

    @property
    def state(self) -> State:
        """What `/health` and `/ready` tell."""
        if self.loaded is None:
            return "loading"
        if not self.loaded.service.healthy:
            return "failed"
        return "draining" if self.loaded.service.draining else "ready"

    @property
    def model(self) -> LoadedModel:
        """The served model. Raises NotReady while it loads."""
        if self.loaded is None:
            raise NotReady("the model is still loading")
        return self.loaded

    async def fields(self, request: web.Request, table: FieldTable) -> dict[str, Any]:
        """The checked body of `request`, which names the served model if it names one.

        Raises NotReady before the body is read, and what reading and checking raise.
        """
        model = self.model
        fields = table.parse(await self.bodies.read_object(request))
        try:
            check_model(fields["model"], model.id)
        except ModelNotFound:
            self.metrics.request_refused("unknown_model")
            raise
        return fields


ANSWER_ID: web.RequestKey[str] = web.RequestKey("answer_id", str)
"""The id of the answer and of its sequences, which ties their log lines to the request's."""

SERVING: web.AppKey[Serving] = web.AppKey("serving", Serving)


async def beside_the_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` on text of `size`: in a thread if it is long, so that streams go on."""
    return await asyncio.to_thread(work) if size > OFFLOADED_ABOVE else work()


def new_id(prefix: str) -> str:
    """An id such as `chatcmpl-…`."""
    return f"{prefix}-{uuid.uuid4().hex}"
