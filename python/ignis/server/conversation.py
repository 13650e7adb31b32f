"""A conversation to the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ignis.errors import TemplateMissing
from ignis.server.serving import LoadedModel, beside_the_loop
from ignis.text import normalise_messages, render_chat


async def conversation_ids(fields: Mapping[str, Any], model: LoadedModel) -> tuple[int, ...]:
    """The prompt of `fields["messages"]`, rendered by the model's chat template.

    Raises TemplateMissing, TemplateError, or RequestError naming the message.
    """
    template = model.template
    if template is None:
        raise TemplateMissing(
            "the model has no chat template; use /v1/completions, or start the server with "
            "--model-chat-template"
        )
    messages = normalise_messages(fields["messages"])

    def render() -> tuple[int, ...]:
        segments = render_chat(
            model.tokenizer,
            template,
            messages,
            add_generation_prompt=fields["add_generation_prompt"],
            kwargs=fields["chat_template_kwargs"],
        )
        return tuple(model.tokenizer.encode_segments(segments))

    return await beside_the_loop(_size(messages), render)


def _size(messages: list[dict[str, object]]) -> int:
    return sum(len(str(message["content"])) for message in messages)
