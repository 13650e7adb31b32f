"""What a completion request asked for, after its fields were checked one by one.

Here are the rules that need more than one field, or the model: both spellings of the cap, class
against model suffix, ids against the vocabulary, and the seed of each answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ignis.engine.api import RequestClass, SamplingParams, SequenceRequest
from ignis.errors import RequestError
from ignis.server.http_errors import ModelNotFound
from ignis.server.prompts import Prompt
from ignis.text.tokenizer import Tokenizer

AGENT_SUFFIX = "@agent"
GREEDY_BELOW = 1e-5
TOP_P_LOWEST = 1e-6

_SEED_RANGE = 2**64
_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so that the seeds of one request's answers all differ


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's parameters, common to all its answers."""

    sampling: SamplingParams
    max_tokens: int | None
    choices: int
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    request_class: RequestClass
    stream: bool
    include_usage: bool

    def sequence(self, request_id: str, prompt: Prompt, choice: int) -> SequenceRequest:
        """The sequence of answer `choice` to `prompt`; answer 0 has the request's own seed."""
        seed = (self.sampling.seed + choice * _SEED_STRIDE) % _SEED_RANGE
        return SequenceRequest(
            request_id=request_id,
            prompt=prompt.ids,
            max_tokens=self.max_tokens,
            sampling=replace(self.sampling, seed=seed),
            stop_ids=self.stop_ids,
            request_class=self.request_class,
            marks=prompt.marks,
        )


def asked_of(fields: Mapping[str, Any], model_id: str, tokenizer: Tokenizer) -> Asked:
    """What the checked `fields` of a chat or completions body ask of the served model.

    Precondition: `check_model` passed. Raises RequestError naming the field that contradicts
    another one or the model.
    """
    stream = fields["stream"]
    if fields["stream_options"] is not None and not stream:
        raise RequestError("stream_options needs stream to be true", "stream_options")
    max_tokens = _max_tokens(fields)
    if fields["ignore_eos"] and max_tokens is None:
        raise RequestError("ignore_eos needs an explicit max_tokens", "ignore_eos")
    stop_ids = frozenset(fields["stop_token_ids"] or ())
    _check_ids(sorted(stop_ids), tokenizer.vocab_size, "stop_token_ids")
    return Asked(
        sampling=_sampling(fields, tokenizer.vocab_size),
        max_tokens=max_tokens,
        choices=fields["n"],
        stops=tuple(dict.fromkeys(fields["stop"] or ())),
        stop_ids=stop_ids if fields["ignore_eos"] else stop_ids | tokenizer.eos_ids,
        request_class=_request_class(fields, model_id),
        stream=stream,
        include_usage=bool((fields["stream_options"] or {}).get("include_usage")),
    )


def check_model(asked: str | None, model_id: str) -> None:
    """Raise ModelNotFound unless `asked` is the served model, with or without `@agent`."""
    if asked is not None and asked not in (model_id, model_id + AGENT_SUFFIX):
        raise ModelNotFound(
            f"the model {asked!r} is not served here; GET /v1/models lists {model_id!r}", "model"
        )


def _request_class(fields: Mapping[str, Any], model_id: str) -> RequestClass:
    model, named = fields["model"], fields["class"]
    suffixed = model == model_id + AGENT_SUFFIX
    if suffixed and named == "interactive":
        raise RequestError("class is interactive but the model is named @agent", "class")
    return "agent" if suffixed or named == "agent" else "interactive"


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    caps = {
        name: fields[name]
        for name in ("max_tokens", "max_completion_tokens")
        if fields.get(name) is not None
    }
    if len(set(caps.values())) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; send one of them",
            "max_completion_tokens",
        )
    return next(iter(caps.values()), None)


def _sampling(fields: Mapping[str, Any], vocab_size: int) -> SamplingParams:
    bias = fields["logit_bias"] or ()
    for token, _ in bias:
        if token >= vocab_size:
            raise RequestError(
                f"logit_bias names token {token}; the vocabulary has {vocab_size} tokens",
                "logit_bias",
            )
    temperature, top_k, seed = fields["temperature"], fields["top_k"], fields["seed"]
    return SamplingParams(
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=top_k if 0 < top_k < vocab_size else 0,
        top_p=max(fields["top_p"], TOP_P_LOWEST),
        min_p=fields["min_p"],
        repetition_penalty=fields["repetition_penalty"],
        presence_penalty=fields["presence_penalty"],
        frequency_penalty=fields["frequency_penalty"],
        seed=secrets.randbits(64) if seed is None else seed % _SEED_RANGE,
        logprobs=_logprobs(fields),
        logit_bias=bias,
    )


def _logprobs(fields: Mapping[str, Any]) -> int | None:
    """Alternatives at each position: chat has a flag and a count, completions a count alone."""
    if "top_logprobs" not in fields:
        count: int | None = fields["logprobs"]
        return count
    if fields["top_logprobs"] is not None and not fields["logprobs"]:
        raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (fields["top_logprobs"] or 0) if fields["logprobs"] else None


def _check_ids(ids: list[int], vocab_size: int, param: str) -> None:
    if ids and ids[-1] >= vocab_size:
        raise RequestError(
            f"{param} holds {ids[-1]}; the vocabulary has {vocab_size} tokens", param
        )
