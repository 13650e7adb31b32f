from __future__ import annotations

import copy
from typing import Any

import pytest

from ignis.errors import RequestError
from ignis.text import normalise_messages, normalise_tools
from ignis.text.json_values import DEPTH_MAX

USER = {"role": "user", "content": "hi"}


def call(arguments: object, **more: object) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function, **more}],
    }


def one(message: dict[str, Any]) -> dict[str, Any]:
    return normalise_messages([message])[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ("a\0b", "a\0b"),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_content_becomes_text(role: str, content: object, text: str) -> None:
    assert one({"role": role, "content": content})["content"] == text


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_null_or_missing_content_is_the_empty_text(role: str) -> None:
    assert one({"role": role, "content": None})["content"] == ""
    assert one({"role": role})["content"] == ""
    assert one(call("{}"))["content"] == ""


def test_two_part_text_beside_tool_calls_is_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = one(call("{}") | {"content": parts})
    assert message["content"] == "a\nb"
    assert len(message["tool_calls"]) == 1


def test_refusal_part_of_an_earlier_answer_is_text() -> None:
    parts = [{"type": "refusal", "refusal": "no"}]
    assert one({"role": "assistant", "content": parts})["content"] == "no"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1, "a": {"c": []}}', {"b": 1, "a": {"c": []}}),
        ({"b": 1}, {"b": 1}),
        ("", {}),
        (None, {}),
        ("{bad", "{bad"),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": ' + "1" * 5000 + "}", '{"a": ' + "1" * 5000 + "}"),
    ],
)
def test_arguments_become_an_object_where_they_are_one(arguments: object, expected: object) -> None:
    function = one(call(arguments))["tool_calls"][0]["function"]
    assert function["arguments"] == expected
    if isinstance(expected, dict):
        assert list(function["arguments"]) == list(expected)


def test_developer_speaks_as_system() -> None:
    assert one({"role": "developer", "content": "x"}) == {"role": "system", "content": "x"}


def test_other_fields_pass_and_nulls_do_not() -> None:
    message = USER | {"name": "Ann", "custom": {"a": [1]}, "tool_calls": None, "refusal": None}
    assert one(message) == USER | {"name": "Ann", "custom": {"a": [1]}}


def test_request_is_left_as_it_was() -> None:
    messages = [call('{"a": 1}') | {"content": [{"type": "text", "text": "a"}]}]
    before = copy.deepcopy(messages)
    normalise_messages(messages)
    assert messages == before


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([USER, "hi"], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": None, "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([USER, {"role": "Bogus", "content": "x"}], "messages[1].role"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "system"}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["x"]}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "tool", "content": [{"type": "nope"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "a\ud800"}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}],
            "messages[0].content[0].text",
        ),
        ([USER | {"name": "\ud800"}], "messages[0].name"),
        ([USER | {"name": 5}], "messages[0].name"),
        ([USER | {"tool_calls": [1]}], "messages[0].tool_calls"),
        ([call("{}") | {"tool_calls": {}}], "messages[0].tool_calls"),
        ([call("{}") | {"tool_calls": [1]}], "messages[0].tool_calls[0]"),
        ([call("{}", type="custom")], "messages[0].tool_calls[0].type"),
        ([call("{}", function=None)], "messages[0].tool_calls[0].function"),
        ([call("{}", function={"name": ""})], "messages[0].tool_calls[0].function.name"),
        ([call(5)], "messages[0].tool_calls[0].function.arguments"),
        ([call('{"a": "\\ud800"}')], "messages[0].tool_calls[0].function.arguments.a"),
    ],
)
def test_wrong_message_is_refused_by_its_field(messages: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_messages(messages)
    assert caught.value.param == param


def test_nesting_is_bounded() -> None:
    deep: object = "x"
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(RequestError, match="deeper"):
        normalise_messages([USER | {"custom": deep}])


def test_tools_pass_through() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert normalise_tools(tools) == tools
    assert normalise_tools(None) is None
    assert normalise_tools([]) is None


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        (["f"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "description": "\ud800"}}],
            "tools[0].function.description",
        ),
    ],
)
def test_wrong_tool_is_refused_by_its_field(tools: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_tools(tools)
    assert caught.value.param == param
