"""A model's chat template: messages in, prompt text out.

Every failure comes out as TemplateError with one clear line, because each is either the client's
conversation or the model's template, never a fault of the server. Leaves out what may become a
control token: see `rendering`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2

from ignis.errors import RequestError, TemplateError
from ignis.text.messages import Message
from ignis.text.template_sandbox import Budget, Sandbox, TemplateRaised
from ignis.text.template_source import TemplateSource

_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """One compiled template. Safe to share between threads."""

    def __init__(
        self,
        source: TemplateSource,
        tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        budget: Callable[[], Budget] = Budget,
    ) -> None:
        """`tokens` are the named ones a template may print (`Tokenizer.template_tokens`).

        `budget` bounds each render. Raises TemplateError if the template does not compile.
        """
        self.source = source
        self._tokens = dict(tokens)
        self._budget = budget
        self._sandbox = Sandbox(now)
        self._default = self._compile(source.default)
        tool_use = source.tool_use
        self._tool_use = self._default if tool_use is None else self._compile(tool_use)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        documents: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of `messages` (from `normalise_messages`).

        `kwargs` are the request's own variables for the template, such as `enable_thinking`.

        Raises TemplateError with the template's own message if it refuses the conversation, or with
        the line where it fails; RequestError if `kwargs` names a variable that is not the client's.
        """
        kwargs = kwargs or {}
        for name in kwargs:
            if name in _OURS or name in self._tokens:
                raise RequestError(f"'{name}' cannot be set here", f"chat_template_kwargs.{name}")
        template = self._tool_use if tools else self._default
        variables = {
            **self._tokens,
            **kwargs,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._sandbox.run(template, variables, self._budget())
        except TemplateRaised as error:
            raise TemplateError(str(error)) from error
        except Exception as error:
            # A template is a program of somebody else's: it can raise whatever Python can.
            where = _line_of(error)
            raise TemplateError(f"the chat template failed{where}: {_said(error)}") from error

    def _compile(self, text: str) -> jinja2.Template:
        try:
            return self._sandbox.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"{self.source.origin}: line {error.lineno}: {error.message}"
            ) from error
        except Exception as error:  # such as RecursionError, on nesting without end
            raise TemplateError(f"{self.source.origin}: {_said(error)}") from error


def _line_of(error: Exception) -> str:
    """` at line N`, if the error came out of template code."""
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if "<template>" in f.filename
    ]
    return f" at line {lines[-1]}" if lines else ""


def _said(error: Exception) -> str:
    """What an error says, with its kind where that is not one of Jinja's own."""
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
