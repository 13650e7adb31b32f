"""Every error ignis raises on purpose.

    IgnisError
    ├── ConfigError            an option, variable or file key is wrong
    ├── PlanError              a plan cannot be computed from what was asked
    │   └── PlanRefused        the plan was computed and does not fit
    ├── CatalogueError         a model could not be found or fetched
    ├── ModelFileError         a model's files are missing, damaged or contradict themselves
    ├── TemplateError          a chat template failed, or refused the conversation
    │   └── TemplateMissing    the model has no chat template
    ├── RequestError           a client asked for something that cannot be done
    │   └── NeverFits          no free page could ever make it fit (ignis.admission)
    ├── Unavailable            nothing is wrong with the request; later it may do (ignis.engine)
    │   ├── QueueFull          as many requests are open as may be
    │   └── Draining           the server is shutting down
    └── EngineError            the engine could not go on
        └── EngineFailed       a round failed; nothing runs until the next start (ignis.engine)

Messages are lower case, without a full stop, and carry units on numbers. The one table from these
classes to HTTP status and body lives in the server.
"""

from __future__ import annotations

from dataclasses import dataclass


class IgnisError(Exception):
    """Root of the tree; catch it to catch everything ignis raises on purpose."""


class ConfigError(IgnisError):
    """An option, variable or file key is unknown, malformed or contradicts another."""


class PlanError(IgnisError):
    """A plan cannot be computed from what was asked."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option that makes a refused plan fit, nothing else changed.

    `current` is the value it has and `fits` the one with which the plan would fit, both as text
    the option reads. `saves_bytes` is what the change takes off the need or adds to the budget.
    """

    option: str
    current: str
    fits: str
    saves_bytes: int


class PlanRefused(PlanError):
    """The plan was computed and does not fit; nothing stays reserved.

    `plan` is "vram", "host" or "disk". Bytes: `needed_bytes` against `budget_bytes`, or against
    `planned_bytes` where a plan fitted its budget and the load took more than it; they are
    `shortfall_bytes` apart. `suggestions` name every option that is enough alone; where none is,
    `together` holds values that fit when all are set, or nothing if there are none. `adapted` lists
    what was lowered before refusing.
    """

    def __init__(
        self,
        message: str,
        *,
        plan: str = "vram",
        needed_bytes: int,
        budget_bytes: int,
        planned_bytes: int | None = None,
        suggestions: tuple[Suggestion, ...] = (),
        together: tuple[Suggestion, ...] = (),
        adapted: tuple[dict[str, object], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.plan = plan
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.planned_bytes = planned_bytes
        bound = budget_bytes if planned_bytes is None else planned_bytes
        self.shortfall_bytes = max(0, needed_bytes - bound)
        self.suggestions = suggestions
        self.together = together
        self.adapted = adapted


class CatalogueError(IgnisError):
    """A model could not be found or fetched; the message says what to do."""


class ModelFileError(IgnisError):
    """A model's files are missing, damaged or contradict themselves.

    `file` and `key` say where, `found` and `expected` say what; each is None where it is unknown.
    A reader that knows only the key leaves `file` None, and the caller that opened it fills it in.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        found: object = None,
        expected: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.key = key
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.key) if part)
        facts = []
        if self.found is not None:
            facts.append(f"found {self.found}")
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({', '.join(facts)})" if facts else text


class TemplateError(IgnisError):
    """A chat template failed, or refused the conversation with `raise_exception`."""


class TemplateMissing(TemplateError):
    """The model has no chat template; the message says what to do instead."""


class RequestError(IgnisError):
    """A client asked for something that cannot be done.

    `param` names the field as a path (`messages[2].content[0].type`), None for the whole request;
    `code` is the machine-readable reason of OpenAI's error shape.
    """

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class EngineError(IgnisError):
    """The engine could not go on; the sequences it held are lost."""
