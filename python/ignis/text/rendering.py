"""A conversation as segments: template text whose control tokens count, client text whose do not.

Tokens that are shown in output (`<think>`, `<tool_call>`) are hidden in what users and tools say,
but not in an assistant's own words: those came from the model, templates look into them, and they
must become the same ids again for their prefix to be found.

The limit of the method: a template that itself assembles a control token's text out of a client's
text and its own would make it a token. No template in use does.
"""

from __future__ import annotations

from collections.abc import Mapping

from ignis.text.chat_template import ChatTemplate
from ignis.text.json_values import check_value
from ignis.text.messages import Message
from ignis.text.segments import AddedMatcher, Segment
from ignis.text.shield import Shield
from ignis.text.tokenizer import Tokenizer


def render_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[Message],
    *,
    tools: list[object] | None = None,
    documents: list[object] | None = None,
    add_generation_prompt: bool = True,
    kwargs: Mapping[str, object] | None = None,
) -> list[Segment]:
    """The prompt of a conversation; `Tokenizer.encode_segments` makes ids of it.

    Arguments are those of `ChatTemplate.render`. Segments with a token were written by the
    template; text from the request is always plain. Raises TemplateError and RequestError, as
    `ChatTemplate.render` does.
    """
    kwargs = dict(kwargs or {})
    check_value(documents, "documents")
    check_value(kwargs, "chat_template_kwargs")
    source = template.source
    shield = Shield(source.default, source.tool_use, messages, tools, documents, kwargs)
    rendered = template.render(
        [shield.hide(message, _hidden_in(message, tokenizer)) for message in messages],
        tools=shield.hide(tools, tokenizer.reserved),
        documents=shield.hide(documents, tokenizer.reserved),
        add_generation_prompt=add_generation_prompt,
        kwargs=shield.hide(kwargs, tokenizer.reserved),
    )
    return shield.split(rendered, tokenizer.reserved)


def _hidden_in(message: Message, tokenizer: Tokenizer) -> AddedMatcher:
    return tokenizer.control if message["role"] == "assistant" else tokenizer.reserved
