"""A conversation to its prompt: token ids, and the marks of later turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ignis.errors import TemplateMissing
from ignis.server.prompts import Prompt
from ignis.server.serving import LoadedModel, beside_the_loop
from ignis.text import Message, Segment, normalise_messages, render_chat
from ignis.text.marks import Encoded


async def conversation_prompt(fields: Mapping[str, Any], model: LoadedModel) -> Prompt:
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

    def render(messages: list[Message]) -> list[Segment]:
        return render_chat(
            model.tokenizer,
            template,
            messages,
            add_generation_prompt=fields["add_generation_prompt"],
            kwargs=fields["chat_template_kwargs"],
        )

    def encode() -> Prompt:
        segments = render(messages)
        ids, edges = model.tokenizer.encode_with_edges(segments)
        marks = model.marks
        found = marks.find(messages, Encoded(segments, ids, edges), render) if marks else ()
        return Prompt.marked(ids, found)

    return await beside_the_loop(_size(messages), encode)


def _size(messages: list[dict[str, object]]) -> int:
    return sum(len(str(message["content"])) for message in messages)
