"""The answers of one HTTP request: their sequences, merged into one order of events.

Every answer has its own sequence and its own text. Whoever starts a `Generation` must `close` it:
that cancels what still runs, so a client that left frees its lanes by the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ignis.admission import NeverFits
from ignis.engine.api import TokenBatch
from ignis.errors import RequestError
from ignis.server.answer import AnswerCut, AnswerText, Delta
from ignis.server.asked import Asked
from ignis.server.interfaces import TokenStream
from ignis.server.prompts import Prompt
from ignis.server.serving import LoadedModel
from ignis.text.tokenizer import Tokenizer

PENDING_BATCHES_MAX = 16
"""Batches that wait for a slow reader here; further ones stay with their sequence, which ends."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its place in `choices` and among those of its prompt, its tokens and its text."""

    index: int
    choice: int
    stream: TokenStream
    text: AnswerText


class Generation:
    """The running answers of one request."""

    def __init__(self, answers: Sequence[Answer], prompt_tokens: int) -> None:
        self.answers = answers
        self._prompt_tokens = prompt_tokens
        self._open = len(answers)
        self._batches: asyncio.Queue[tuple[Answer, TokenBatch | Exception]] = asyncio.Queue(
            PENDING_BATCHES_MAX
        )
        self._readers = [asyncio.create_task(self._read(answer)) for answer in answers]

    @property
    def is_done(self) -> bool:
        """Whether every answer has ended."""
        return self._open == 0

    async def next(self, timeout_seconds: float | None) -> tuple[Answer, Delta] | None:
        """The next text of any answer; None if none came in time. Precondition: not done.

        Raises AnswerCut or what the sequence's stream raised.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    answer, batch = await self._batches.get()
                    if answer.text.finish is None:
                        break
        except TimeoutError:
            return None
        if isinstance(batch, Exception):
            raise batch
        delta = answer.text.push(batch)
        if delta.finish is not None:
            self._open -= 1
            answer.stream.complete()
        return answer, delta

    def usage(self) -> dict[str, Any]:
        """Token counts so far, in OpenAI's shape.

        Each prompt counts once, with what was cached of it when its first answer began.
        """
        completion_tokens = sum(answer.text.completion_tokens for answer in self.answers)
        first = (answer.stream for answer in self.answers if answer.choice == 0)
        cached_tokens = sum(stream.cached_tokens for stream in first)
        return usage_of(self._prompt_tokens, completion_tokens, cached_tokens)

    def close(self) -> None:
        """Cancel what still runs."""
        for reader in self._readers:
            reader.cancel()
        for answer in self.answers:
            answer.stream.cancel()

    async def _read(self, answer: Answer) -> None:
        try:
            async for batch in answer.stream:
                await self._batches.put((answer, batch))
                if batch.finish_reason is not None:
                    return
            error: Exception = AnswerCut("the sequence ended without a finish reason")
        except Exception as raised:  # handed to whoever reads the generation
            error = raised
        await self._batches.put((answer, error))


class _NoTokens:
    """The stream of an answer that asked for no tokens."""

    cached_tokens = 0

    def __init__(self) -> None:
        self._batches = iter([TokenBatch((), "length")])

    def __aiter__(self) -> _NoTokens:
        return self

    async def __anext__(self) -> TokenBatch:
        for batch in self._batches:
            return batch
        raise StopAsyncIteration

    def cancel(self) -> None: ...
    def complete(self) -> None: ...


def start_empty(model: LoadedModel, asked: Asked, prompts: Sequence[Prompt]) -> Generation:
    """Answers of no tokens, for `max_tokens` 0: nothing is queued.

    Raises RequestError for a prompt that the context does not hold, as a queued one would.
    """
    for prompt in prompts:
        if len(prompt.ids) >= model.context_tokens_max:
            raise RequestError(
                f"the prompt has {len(prompt.ids)} tokens and the context holds "
                f"{model.context_tokens_max} tokens",
                "prompt",
                "context_length_exceeded",
            )
    answers = [
        Answer(index, choice, _NoTokens(), _text_of(model.tokenizer, asked, prompt))
        for index, (prompt, choice) in enumerate(product(prompts, range(asked.choices)))
    ]
    return Generation(answers, _tokens(prompts))


def _text_of(tokenizer: Tokenizer, asked: Asked, prompt: Prompt) -> AnswerText:
    return AnswerText(tokenizer, after=prompt.ids[-1], stops=asked.stops, stop_ids=asked.stop_ids)


def _tokens(prompts: Sequence[Prompt]) -> int:
    return sum(len(prompt.ids) for prompt in prompts)


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """Token counts in OpenAI's shape."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def start(
    model: LoadedModel,
    asked: Asked,
    prompts: Sequence[Prompt],
    *,
    request_id: str,
    param: str,
) -> Generation:
    """Queue every answer of every prompt; all of them or none.

    Answers to one prompt are queued together, so that the first computes it and the others begin
    from its state.

    Raises what `submit` raises; NeverFits then names `param`, the field that held the prompt.
    """
    answers: list[Answer] = []
    single = len(prompts) * asked.choices == 1
    try:
        for prompt in prompts:
            marked = prompt.shared() if asked.choices > 1 else prompt
            if not model.checkpoints:
                marked = marked.prefixes_alone()
            for choice in range(asked.choices):
                index = len(answers)
                name = request_id if single else f"{request_id}-{index}"
                stream = model.service.submit(asked.sequence(name, marked, choice))
                text = _text_of(model.tokenizer, asked, prompt)
                answers.append(Answer(index, choice, stream, text))
    except Exception as error:
        for answer in answers:
            answer.stream.cancel()
        if isinstance(error, NeverFits):
            error.param = param
        raise
    return Generation(answers, _tokens(prompts))
