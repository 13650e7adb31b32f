"""The field tables of every route: the one place that says what each field means here."""

from __future__ import annotations

from ignis.server.fields import Field, FieldTable, honoured, inert, refused
from ignis.server.values import (
    Anything,
    Choice,
    Flag,
    Integer,
    ListOf,
    LogitBias,
    Number,
    Object,
    StopStrings,
    Text,
)
from ignis.text.stops import STOPS_MAX

CHOICES_MAX = 8
PROMPTS_MAX = 64

STOP_LENGTH_MAX = 256
STOP_IDS_MAX = 64
LOGIT_BIAS_MAX = 1024
TOP_LOGPROBS_MAX = 20
COUNT_MAX = 2**31 - 1
TOKENS_MAX = 2**20
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1
TOKEN_ID = Integer(0, 2**32 - 1)
NO_TOOLS = "tool calls are not parsed yet"
NO_GRAMMAR = "constrained output is not built yet"

MODEL = honoured(
    "model",
    Text(256),
    "the served model's id, or `id@agent` for a background request; absent means the served model",
)

_SAMPLING: tuple[Field, ...] = (
    honoured(
        "temperature",
        Number(0.0, 2.0),
        "0 (and anything below 1e-5) takes the most probable token",
        default=1.0,
    ),
    honoured("top_p", Number(0.0, 1.0), "nucleus sampling; 0 keeps one token", default=1.0),
    honoured("top_k", Integer(-1, COUNT_MAX), "0 or -1 keeps every token", default=0),
    honoured("min_p", Number(0.0, 1.0), "drop tokens below this share of the best", default=0.0),
    honoured("repetition_penalty", Number(0.1, 10.0), "1 is off", default=1.0),
    honoured("presence_penalty", Number(-2.0, 2.0), "0 is off", default=0.0),
    honoured("frequency_penalty", Number(-2.0, 2.0), "0 is off", default=0.0),
    honoured(
        "seed",
        Integer(SEED_MIN, SEED_MAX),
        "a signed or unsigned 64-bit number; a negative one counts from 2^64. The same request "
        "with the same seed gives the same text. Absent: drawn at random",
    ),
    honoured("logit_bias", LogitBias(LOGIT_BIAS_MAX), "token ids to a bias in -100..100"),
    honoured(
        "stop",
        StopStrings(STOPS_MAX, STOP_LENGTH_MAX),
        f"up to {STOPS_MAX} strings that end the answer and are left out of it",
    ),
    honoured(
        "stop_token_ids",
        ListOf(TOKEN_ID, STOP_IDS_MAX),
        "token ids that end the answer, besides the model's own",
    ),
    honoured(
        "ignore_eos",
        Flag(),
        "go on past the model's end token; needs an explicit max_tokens",
        default=False,
    ),
    honoured("n", Integer(1, CHOICES_MAX), "answers to the same prompt", default=1),
)

_SERVING: tuple[Field, ...] = (
    honoured("stream", Flag(), "answer as server-sent events", default=False),
    honoured(
        "stream_options",
        Object({"include_usage": Flag(), "include_obfuscation": Flag()}),
        "`include_usage` adds a last chunk with the token counts; only with stream",
    ),
    honoured(
        "class",
        Choice(("interactive", "agent")),
        "an agent request yields to interactive ones",
    ),
    inert("user", Text(), "any string; not used"),
    inert("safety_identifier", Text(), "any string; not used"),
    inert("prompt_cache_key", Text(), "any string; matching is by content"),
    inert("metadata", Object({}), "any object; not kept"),
    inert("store", Choice((False,)), "false; answers are never kept"),
    inert("service_tier", Choice(("auto", "default")), "auto or default; there is one tier"),
    refused("min_tokens", "use ignore_eos and max_tokens for a fixed length"),
    refused("guided_json", NO_GRAMMAR),
    refused("guided_regex", NO_GRAMMAR),
    refused("guided_grammar", NO_GRAMMAR),
    refused("structured_outputs", NO_GRAMMAR),
    refused("grammar", NO_GRAMMAR),
    refused("prompt_logprobs", "log-probabilities of the prompt are not computed"),
)

_TEMPLATE: tuple[Field, ...] = (
    honoured(
        "add_generation_prompt",
        Flag(),
        "end the prompt where the assistant's answer begins",
        default=True,
    ),
    honoured(
        "chat_template_kwargs",
        Object({}),
        "variables for the model's chat template",
    ),
    refused("chat_template", "the model's own template is used"),
    refused("continue_final_message", "a message cannot be continued yet"),
)

_MESSAGE: dict[str, object] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "null"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
                    },
                },
            ]
        },
    },
}

_MESSAGES = Anything({"type": "array", "minItems": 1, "items": _MESSAGE})

CHAT = FieldTable(
    honoured("messages", _MESSAGES, "the conversation; content is text", required=True),
    MODEL,
    honoured(
        "max_tokens",
        Integer(1, COUNT_MAX),
        "the longest answer, clamped to what the context leaves",
    ),
    honoured(
        "max_completion_tokens",
        Integer(1, COUNT_MAX),
        "the same as max_tokens; if both are given they must be equal",
    ),
    honoured("logprobs", Flag(), "log-probabilities of the answer's tokens", default=False),
    honoured(
        "top_logprobs",
        Integer(0, TOP_LOGPROBS_MAX),
        "alternatives at each position; only with logprobs",
    ),
    *_SAMPLING,
    *_SERVING,
    *_TEMPLATE,
    inert(
        "response_format",
        Object({"type": Choice(("text",))}),
        '{"type": "text"} alone; ' + NO_GRAMMAR,
    ),
    inert("tools", ListOf(Anything(), 0), "an empty list; " + NO_TOOLS),
    inert("tool_choice", Choice(("none", "auto")), "none or auto; " + NO_TOOLS),
    inert("functions", ListOf(Anything(), 0), "an empty list; " + NO_TOOLS),
    inert("function_call", Choice(("none", "auto")), "none or auto; " + NO_TOOLS),
    inert("parallel_tool_calls", Choice((True,)), "true; " + NO_TOOLS),
    inert("modalities", ListOf(Choice(("text",)), 1), '["text"]; answers are text'),
    inert("reasoning_effort", Choice(("none",)), "none; the model does not reason apart"),
    inert("verbosity", Choice(("medium",)), "medium; the length is the model's own"),
    inert("prediction", Object({}), "any object; a hint of speed that is not used"),
    inert("prompt_cache_retention", Text(), "any string; matching is by content"),
    inert("prompt_cache_options", Object({}), "any object; matching is by content"),
    inert("echo", Choice((False,)), "false; only completions repeat the prompt"),
    refused("audio", "answers are text"),
    refused("moderation", "no moderation model is served"),
    refused("web_search_options", "the server has no network access"),
)

COMPLETIONS = FieldTable(
    honoured(
        "prompt",
        Anything(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "minItems": 1, "items": {"type": "string"}},
                    {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                    {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "integer", "minimum": 0},
                        },
                    },
                ]
            }
        ),
        f"text, token ids, or a list of up to {PROMPTS_MAX} of either",
        required=True,
    ),
    MODEL,
    honoured(
        "max_tokens",
        Integer(0, COUNT_MAX),
        "the longest answer, clamped to what the context leaves; 0 generates nothing",
        default=16,
    ),
    honoured("logprobs", Integer(0, TOP_LOGPROBS_MAX), "alternatives at each position"),
    honoured(
        "echo",
        Flag(),
        "repeat the prompt before the answer; not with logprobs",
        default=False,
    ),
    *_SAMPLING,
    *_SERVING,
    inert("best_of", Integer(1, CHOICES_MAX), "the same as n; answers are not ranked"),
    inert("suffix", Choice(("",)), "an empty string; the text after the answer is not considered"),
    inert(
        "response_format",
        Object({"type": Choice(("text",))}),
        '{"type": "text"} alone; ' + NO_GRAMMAR,
    ),
)

TOKENIZE = FieldTable(
    MODEL,
    honoured("prompt", Text(), "text to encode; either this or messages"),
    honoured("messages", _MESSAGES, "a conversation to render and encode"),
    honoured(
        "add_special_tokens",
        Flag(),
        "begin a prompt with the model's beginning-of-sequence token, where it has one",
        default=True,
    ),
    honoured(
        "return_token_strs", Flag(), "also each token as the model's file writes it", default=False
    ),
    *_TEMPLATE,
)

DETOKENIZE = FieldTable(
    MODEL,
    honoured(
        "tokens", ListOf(TOKEN_ID, TOKENS_MAX), f"up to {TOKENS_MAX} token ids", required=True
    ),
    honoured("skip_special_tokens", Flag(), "leave control tokens out of the text", default=False),
)
