"""Marks of prompts: what later prompts really share, over templates of every shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignis.errors import TemplateError
from ignis.text import (
    ChatMarks,
    ChatTemplate,
    PromptMark,
    TemplateSource,
    Tokenizer,
    marks_of_text,
    normalise_messages,
    render_chat,
)
from ignis.text.marks import PROBE, Encoded
from ignis.text.segments import Segment
from tests.unit.text.templates import TEMPLATES

PAGE = 16
Conversation = list[dict[str, Any]]

TOOLS: list[object] = [
    {"type": "function", "function": {"name": f"tool_{at}", "description": "def f(x): the cat"}}
    for at in range(3)
]
# Cheap to shrink, and white space at the edges is what merges with a header.
WORDS = st.lists(
    st.sampled_from(["the cat", "\n", " ", "\t", "1", ".", "é", "你好", "<|im_end|>", "x"]),
    max_size=6,
).map("".join)
SYSTEM = st.sampled_from(["", "the dog saw the cat " * 8, "naïve café\n" * 9, "x"])
RULES = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Prompts:
    """Prompts of one tokenizer and template, with their marks."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self.tokenizer = tokenizer
        source = TemplateSource("test", template)
        self.template = ChatTemplate(source, tokenizer.template_tokens())
        self.marks = ChatMarks(tokenizer, PAGE)

    def of(
        self, said: Sequence[dict[str, Any]], tools: list[object] | None = None
    ) -> tuple[list[int], dict[str, list[int]]]:
        """Ids, and the positions of each kind of mark."""
        messages = normalise_messages(list(said))

        def render(messages: list[dict[str, object]]) -> list[Segment]:
            return render_chat(self.tokenizer, self.template, messages, tools=tools)

        segments = render(messages)
        ids, edges = self.tokenizer.encode_with_edges(segments)
        found = self.marks.find(messages, Encoded(segments, ids, edges), render)
        assert list(found) == sorted(found)
        assert all(0 < mark.position < len(ids) for mark in found)
        kinds: dict[str, list[int]] = {"checkpoint": [], "prefix": []}
        for mark in found:
            kinds[mark.kind].append(mark.position)
        return ids, kinds


def said_by(system: str, *words: str) -> Conversation:
    """A conversation of a system text and of users' and assistants' words by turns."""
    start = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    return start + [{"role": roles[at % 2], "content": text} for at, text in enumerate(words)]


@pytest.fixture(params=sorted(TEMPLATES))
def prompts(request: pytest.FixtureRequest, byte_level: Tokenizer) -> Prompts:
    return Prompts(byte_level, TEMPLATES[request.param])


@RULES
@given(st.data(), SYSTEM, st.lists(WORDS, min_size=1, max_size=3).filter(lambda w: len(w) % 2))
def test_the_next_turn_begins_with_what_the_checkpoint_keeps(
    byte_level: Tokenizer, data: st.DataObject, system: str, words: list[str]
) -> None:
    name = data.draw(st.sampled_from(sorted(TEMPLATES)))
    prompts = Prompts(byte_level, TEMPLATES[name])
    ids, kinds = prompts.of(said_by(system, *words))
    answer_ids = data.draw(st.lists(st.integers(3, byte_level.vocab_size - 8), max_size=8))
    answer = data.draw(WORDS) + byte_level.decode(answer_ids)
    following = data.draw(WORDS)
    later, _ = prompts.of(said_by(system, *words, answer, following))
    (checkpoint,) = kinds["checkpoint"] or kinds["prefix"]
    assert later[:checkpoint] == ids[:checkpoint]


@RULES
@given(SYSTEM, st.lists(WORDS, min_size=2, max_size=2), st.booleans(), st.data())
def test_prompts_of_one_system_block_share_its_prefix(
    byte_level: Tokenizer, system: str, words: list[str], tools: bool, data: st.DataObject
) -> None:
    prompts = Prompts(byte_level, TEMPLATES[data.draw(st.sampled_from(sorted(TEMPLATES)))])
    given_tools = TOOLS if tools else None
    one, kinds = prompts.of(said_by(system, words[0]), given_tools)
    other, other_kinds = prompts.of(said_by(system, words[1], "the dog", words[0]), given_tools)
    for prefix in kinds["prefix"]:
        assert prefix % PAGE == 0
        if other_kinds["prefix"]:
            assert one[:prefix] == other[:prefix]


def test_the_checkpoint_is_the_end_of_the_header_or_the_token_before_it(prompts: Prompts) -> None:
    ids, kinds = prompts.of(said_by("", "the cat sat on the mat"))
    (checkpoint,) = kinds["checkpoint"]
    assert checkpoint >= len(ids) - 4
    thinks = prompts.tokenizer.decode(ids[checkpoint:], skip_special=False)
    assert thinks in {"\n", "\n<think>\n", "<think>\n", ":", "]", "ST]"}, thinks


def test_a_long_system_block_is_a_prefix_wherever_it_is_shared(prompts: Prompts) -> None:
    ids, kinds = prompts.of(said_by("the dog saw the cat " * 20, "hi"))
    (prefix,) = kinds["prefix"]
    text = prompts.tokenizer.decode(ids[: prefix + PAGE], skip_special=False)
    assert text.count("the dog saw the cat") >= 19


def test_a_block_below_a_page_is_no_prefix(byte_level: Tokenizer) -> None:
    _, kinds = Prompts(byte_level, TEMPLATES["chatml"]).of(said_by("x", "the cat"))
    assert kinds["prefix"] == []


def test_tools_belong_to_the_block(byte_level: Tokenizer) -> None:
    prompts = Prompts(byte_level, TEMPLATES["chatml"])
    bare = prompts.of(said_by("", "hi"))[1]["prefix"]
    (prefix,) = prompts.of(said_by("", "hi"), TOOLS)[1]["prefix"]
    assert bare == []
    assert prefix > 5 * PAGE
    assert prompts.of(said_by("", "the cat"), TOOLS)[1]["prefix"] == [prefix]


def test_a_tool_loop_keeps_both_the_turn_and_the_call(byte_level: Tokenizer) -> None:
    prompts = Prompts(byte_level, TEMPLATES["thinks"])
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = said_by("", "the cat")
    loop = [
        *turn,
        {"role": "assistant", "content": "", "reasoning_content": "x", "tool_calls": [call]},
        {"role": "tool", "content": "456"},
    ]
    first, kinds = prompts.of(turn)
    ids, looped = prompts.of(loop)
    opening, latest = looped["checkpoint"]
    assert opening == kinds["checkpoint"][0]  # where the user's next turn parts from this one
    assert ids[:opening] == first[:opening]
    more = [*loop, {**loop[1], "content": "the dog"}, loop[2]]
    assert prompts.of(more)[0][:latest] == ids[:latest]
    spoken = [*loop, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and"}]
    assert prompts.of(spoken)[0][:opening] == ids[:opening]


def test_a_template_that_refuses_what_might_follow_marks_less(byte_level: Tokenizer) -> None:
    prompts = Prompts(byte_level, TEMPLATES["alternates"])
    _, kinds = prompts.of(said_by("the dog saw the cat " * 9, "hi", "the cat"))
    assert kinds["checkpoint"] == []  # nobody may speak twice
    assert kinds["prefix"] != []
    with pytest.raises(TemplateError):  # the prompt itself is refused as ever
        Prompts(byte_level, TEMPLATES["needs a user"]).of([{"role": "system", "content": "x"}])


def test_a_probe_in_a_clients_text_costs_marks_and_nothing_else(prompts: Prompts) -> None:
    ids, kinds = prompts.of(said_by(f"the dog saw {PROBE} the cat " * 9, PROBE))
    later, _ = prompts.of(said_by(f"the dog saw {PROBE} the cat " * 9, PROBE, "x", "y"))
    for position in [*kinds["checkpoint"], *kinds["prefix"]]:
        assert later[:position] == ids[:position]


def test_a_block_is_tokenized_once(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(byte_level, TEMPLATES["chatml"])
    system = "the dog saw the cat " * 200
    prompts.of(said_by(system, "hi"))
    encoded: list[int] = []
    whole, part = Tokenizer.encode_with_edges, Tokenizer.encode_after

    def count_whole(self: Tokenizer, segments: Any) -> Any:
        segments = list(segments)
        encoded.append(sum(len(segment.text) for segment in segments))
        return whole(self, segments)

    def count_part(self: Tokenizer, text: str, previous: int | None) -> Any:
        encoded.append(len(text))
        return part(self, text, previous)

    monkeypatch.setattr(Tokenizer, "encode_with_edges", count_whole)
    monkeypatch.setattr(Tokenizer, "encode_after", count_part)
    prompts.of(said_by(system, "the cat " * 1000))
    prompt, *rest = encoded
    assert prompt > 10_000
    assert sum(rest) < 2_000


def test_blocks_that_are_remembered_have_a_bound(byte_level: Tokenizer) -> None:
    prompts = Prompts(byte_level, TEMPLATES["chatml"])
    prompts.marks = ChatMarks(byte_level, PAGE, remembered_max=2)
    for at in range(5):
        prompts.of(said_by(f"the dog {at} " * 20, "hi"))
    assert len(prompts.marks._blocks) == 2


def test_sentencepiece_prompts_have_marks_too(sentencepiece: Tokenizer) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}a: {{ m.content }}\n"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}and: {% endif %}"
    )
    prompts = Prompts(sentencepiece, template)
    ids, kinds = prompts.of(said_by("", "the cat", "in the", "and"))
    assert kinds["checkpoint"] != []
    later, _ = prompts.of(said_by("", "the cat", "in the", "and", "cat", "the"))
    (checkpoint,) = kinds["checkpoint"]
    assert later[:checkpoint] == ids[:checkpoint]


def test_a_raw_prompt_is_kept_but_for_its_last_token() -> None:
    assert marks_of_text(10) == (PromptMark(9, "checkpoint"),)
    assert marks_of_text(1) == marks_of_text(0) == ()
