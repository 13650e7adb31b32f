"""The Jinja environment that chat templates run in, with bounds on what one render may do.

It offers what Hugging Face's renderer offers: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, `tojson` that writes text as it is, and `{% generation %}`, which only marks and so
is ignored. A template is data from a model file: it reaches no attribute that the sandbox hides,
changes no argument, and its loops and macros share one budget of steps and time, checked at every
pass. Not bounded: memory that one single expression asks for, other than by repeating a text.
"""

from __future__ import annotations

import contextvars
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRaised(jinja2.TemplateError):
    """The template called `raise_exception`."""


class BoundExceeded(jinja2.TemplateError):
    """A render went over one of its bounds."""


@dataclass(slots=True)
class Budget:
    """What one render may still spend: passes of loops and macros, seconds, characters."""

    steps: int = 1_000_000
    seconds: float = 10.0
    chars: int = 64 * 1024 * 1024
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def step(self) -> None:
        """Spend one pass. Raises BoundExceeded when steps or time are used up."""
        self.steps -= 1
        if self.steps < 0:
            raise BoundExceeded("the template loops too often")
        if time.monotonic() > self._deadline:
            raise BoundExceeded(f"the template ran longer than {self.seconds:g} s")

    def write(self, text: str) -> str:
        """Spend the length of `text`. Raises BoundExceeded when characters are used up."""
        self.chars -= len(text)
        if self.chars < 0:
            raise BoundExceeded("the template's output is too long")
        return text


_POWER_BITS_MAX = 4096
_budget: contextvars.ContextVar[Budget] = contextvars.ContextVar("_budget")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; compile with `from_string`, run with `run`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now` is the clock that `strftime_now` reads."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def run(self, template: jinja2.Template, variables: dict[str, Any], budget: Budget) -> str:
        """The output of `template`. Raises what the template raises, and BoundExceeded."""
        token = _budget.set(budget)
        try:
            return "".join(map(budget.write, template.generate(variables)))
        finally:
            _budget.reset(token)

    def step(self) -> str:
        """Called by compiled templates at every pass of a loop, macro or call block."""
        _budget.get().step()
        return ""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse the products and powers that would take all memory."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _POWER_BITS_MAX:
                raise BoundExceeded("the template computes too large a power")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                repeats = isinstance(times, int) and hasattr(many, "__len__")
                if repeats and len(many) * times > _budget.get().chars:
                    raise BoundExceeded("the template repeats a value too often")
        return super().call_binop(context, operator, left, right)

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        # Jinja calls this to turn the tree into code: the place to put a step into every body that
        # can run more than once.
        for node in source.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            call = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
            step = nodes.Output([call], lineno=node.lineno)
            step.set_lineno(node.lineno, override=True).set_environment(self)
            node.body.insert(0, step)
        return super()._generate(source, name, filename, defer_init)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training only."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaised(str(message))
