"""`POST /v1/tokenize` and `/v1/detokenize`: what a prompt becomes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from ignis.errors import RequestError
from ignis.server.conversation import conversation_prompt
from ignis.server.field_tables import DETOKENIZE, TOKENIZE
from ignis.server.http_errors import json_response
from ignis.server.serving import SERVING, LoadedModel, beside_the_loop


async def tokenize(request: web.Request) -> web.Response:
    """The ids of a text or of a rendered conversation."""
    serving = request.app[SERVING]
    fields = await serving.fields(request, TOKENIZE)
    model = serving.model
    ids = await _ids(fields, model)
    body: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": model.context_tokens_max,
        "tokens": ids,
    }
    if fields["return_token_strs"]:
        body["token_strs"] = [model.tokenizer.token_text(token) for token in ids]
    return json_response(body)


async def detokenize(request: web.Request) -> web.Response:
    """The text of ids; bytes that are no character become U+FFFD."""
    serving = request.app[SERVING]
    fields = await serving.fields(request, DETOKENIZE)
    tokenizer = serving.model.tokenizer
    ids: list[int] = fields["tokens"]
    text = await beside_the_loop(
        len(ids), lambda: tokenizer.decode(ids, skip_special=fields["skip_special_tokens"])
    )
    return json_response({"prompt": text})


async def _ids(fields: Mapping[str, Any], model: LoadedModel) -> tuple[int, ...]:
    prompt: str | None = fields["prompt"]
    if (prompt is None) == (fields["messages"] is None):
        raise RequestError("send either prompt or messages", "prompt", "invalid_value")
    if prompt is None:
        return (await conversation_prompt(fields, model)).ids
    tokenizer = model.tokenizer
    encode = tokenizer.encode_prompt if fields["add_special_tokens"] else tokenizer.encode
    return tuple(await beside_the_loop(len(prompt), lambda: encode(prompt)))
