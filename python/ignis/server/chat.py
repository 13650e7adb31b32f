"""`POST /v1/chat/completions`."""

from __future__ import annotations

from aiohttp import web

from ignis.server.asked import asked_of
from ignis.server.conversation import conversation_prompt
from ignis.server.field_tables import CHAT
from ignis.server.generation import start
from ignis.server.replies import reply
from ignis.server.serving import ANSWER_ID, SERVING, new_id
from ignis.server.shapes import ChatShape


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    serving = request.app[SERVING]
    fields = await serving.fields(request, CHAT)
    model = serving.model
    asked = asked_of(fields, model.id, model.tokenizer)
    prompt = await conversation_prompt(fields, model)
    answer_id = request[ANSWER_ID] = new_id("chatcmpl")
    shape = ChatShape(
        answer_id,
        model.id,
        model.tokenizer,
        logprobs=asked.sampling.logprobs is not None,
        usage=asked.include_usage,
    )
    generation = start(model, asked, [prompt], request_id=answer_id, param="messages")
    return await reply(request, generation, shape, asked)
