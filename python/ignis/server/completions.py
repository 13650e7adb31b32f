"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from ignis.errors import RequestError
from ignis.server.asked import Asked, asked_of
from ignis.server.field_tables import COMPLETIONS
from ignis.server.generation import start, start_empty
from ignis.server.prompts import Prompt, prompts_of, text_size
from ignis.server.replies import reply
from ignis.server.serving import ANSWER_ID, SERVING, LoadedModel, beside_the_loop, new_id
from ignis.server.shapes import CompletionShape


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    serving = request.app[SERVING]
    fields = await serving.fields(request, COMPLETIONS)
    model = serving.model
    asked = asked_of(fields, model.id, model.tokenizer)
    _check(fields)
    value = fields["prompt"]
    prompts = await beside_the_loop(text_size(value), lambda: prompts_of(value, model.tokenizer))
    answer_id = request[ANSWER_ID] = new_id("cmpl")
    shape = CompletionShape(
        answer_id,
        model.id,
        model.tokenizer,
        _echoes(fields, prompts, asked, model),
        logprobs=asked.sampling.logprobs is not None,
        usage=asked.include_usage,
    )
    if asked.max_tokens == 0:
        generation = start_empty(model, asked, prompts)
    else:
        generation = start(model, asked, prompts, request_id=answer_id, param="prompt")
    return await reply(request, generation, shape, asked)


def _check(fields: Mapping[str, Any]) -> None:
    if fields["best_of"] not in (None, fields["n"]):
        raise RequestError(
            "best_of must equal n: answers are not ranked", "best_of", "unsupported_value"
        )
    if fields["echo"] and fields["logprobs"] is not None:
        raise RequestError(
            "logprobs of a repeated prompt are not computed; send echo or logprobs",
            "logprobs",
            "unsupported_value",
        )


def _echoes(
    fields: Mapping[str, Any],
    prompts: Sequence[Prompt],
    asked: Asked,
    model: LoadedModel,
) -> list[str]:
    """What each answer repeats: the text as it was sent, or what the ids spell."""
    if not fields["echo"]:
        return [""] * (len(prompts) * asked.choices)
    value = fields["prompt"]
    values = value if isinstance(value, list) and not isinstance(value[0], int) else [value]
    texts = [
        given if isinstance(given, str) else model.tokenizer.decode(prompt.ids, skip_special=False)
        for given, prompt in zip(values, prompts, strict=True)
    ]
    return [text for text in texts for _ in range(asked.choices)]
