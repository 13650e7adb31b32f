from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from ignis.errors import ModelFileError, RequestError, TemplateError, TemplateMissing
from ignis.text import ChatTemplate, Message, TemplateSource, find_template
from ignis.text.template_sandbox import Budget

DOUBLING = (
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}"
)
MESSAGES: list[Message] = [{"role": "user", "content": "hi"}]


def template(
    text: str, tool_use: str | None = None, budget: Callable[[], Budget] = Budget
) -> ChatTemplate:
    return ChatTemplate(
        TemplateSource("here", text, tool_use),
        {"bos_token": "<s>", "eos_token": "</s>"},
        now=lambda: datetime(2026, 3, 4),
        budget=budget,
    )


def render(text: str, **kwargs: object) -> str:
    return template(text).render(MESSAGES, kwargs=kwargs)


def test_variables_are_there() -> None:
    text = (
        "{{ bos_token }}{{ messages[0].content }}{{ tools is none }}{{ documents is none }}"
        "{{ add_generation_prompt }}{{ enable_thinking }}{{ eos_token }}"
    )
    assert render(text, enable_thinking=False) == "<s>hiTrueTrueTrueFalse</s>"


def test_blocks_are_trimmed_as_hugging_face_does() -> None:
    assert render("  {% if true %}\na\n  {% endif %}\nb\n") == "a\nb"


def test_json_is_written_as_it_is() -> None:
    assert render("{{ x | tojson }}", x={"b": "<é'>", "a": 1}) == '{"b": "<é\'>", "a": 1}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_helpers_of_hugging_face_work() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "04 Mar 2026"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop) == "01"


def test_macros_and_recursive_loops_work() -> None:
    macro = "{% macro m(x) %}[{{ x }}]{% endmacro %}{% for c in 'ab' %}{{ m(c) }}{% endfor %}"
    assert render(macro) == "[a][b]"
    recursive = (
        "{% for n in x recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}"
    )
    assert render(recursive, x=[{"v": 1, "c": [{"v": 2}, {"v": 3}]}]) == "1(23)"
    block = "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}"
    assert render(block) == "<x>"


def test_refusal_comes_out_with_its_own_message() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert str(caught.value) == "roles must alternate"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n{{ missing.field }}", "at line 2: 'missing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for k, v in x | items %}{% endfor %}", "mapping"),
        ("{% include 'other' %}", "loader"),
        ("{{ missing | tojson }}", "TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ range(10000000) | list | length }}", "too big"),
    ],
)
def test_failure_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said) as caught:
        render(text, x="{bad")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{% if %}", "{% endfor %}", "{{ x | nope }}", "{% for %}"])
def test_template_that_does_not_compile_names_its_place(text: str) -> None:
    with pytest.raises(TemplateError, match="here: line 2: "):
        template("\n" + text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "loops too often"),
        (DOUBLING, "loops too often"),
        ("{% for a in r %}{{ r }}{% endfor %}", "too long"),
        ("{{ 'x' * 100000000000 }}", "repeats"),
        ("{{ [1] * 100000000000 }}", "repeats"),
        ("{{ 10 ** 100000000 }}", "power"),
    ],
)
def test_runaway_template_is_stopped(text: str, said: str) -> None:
    bounded = template(text, budget=lambda: Budget(steps=20_000, chars=100_000))
    with pytest.raises(TemplateError, match=said):
        bounded.render(MESSAGES, kwargs={"r": list(range(1000))})


def test_slow_template_is_stopped() -> None:
    bounded = template("{% for a in r %}{% endfor %}", budget=lambda: Budget(seconds=0))
    with pytest.raises(TemplateError, match="longer than 0 s"):
        bounded.render(MESSAGES, kwargs={"r": [1]})


def test_ordinary_arithmetic_is_allowed() -> None:
    assert render("{{ 2 ** 10 }}{{ '-' * 3 }}{{ 6 * 7 }}{{ 2 ** 0.5 > 1 }}") == "1024---42True"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_client_cannot_set_our_variables(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        render("x", **{name: "y"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_tools_choose_the_tool_template() -> None:
    both = template("plain", "with tools")
    assert both.render(MESSAGES) == "plain"
    assert both.render(MESSAGES, tools=[{}]) == "with tools"
    assert template("plain").render(MESSAGES, tools=[{}]) == "plain"


class TestSource:
    def test_order(self, tmp_path: Path) -> None:
        metadata = {"tokenizer.chat_template": "gguf"}
        config, jinja, explicit = (
            tmp_path / name for name in ("tokenizer_config.json", "chat_template.jinja", "mine")
        )
        assert find_template(folder=tmp_path, metadata=metadata).default == "gguf"
        config.write_text(json.dumps({"chat_template": "config"}))
        assert find_template(folder=tmp_path, metadata=metadata).default == "config"
        jinja.write_text("jinja")
        assert find_template(folder=tmp_path, metadata=metadata).default == "jinja"
        explicit.write_text("explicit")
        found = find_template(explicit=explicit, folder=tmp_path, metadata=metadata)
        assert (found.default, found.origin) == ("explicit", str(explicit))

    def test_named_templates(self, tmp_path: Path) -> None:
        named = [{"name": n, "template": n.upper()} for n in ("default", "tool_use", "rag")]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        found = find_template(folder=tmp_path)
        assert (found.default, found.tool_use) == ("DEFAULT", "TOOL_USE")
        keys = {"tokenizer.chat_template": "d", "tokenizer.chat_template.tool_use": "t"}
        found = find_template(metadata=keys)
        assert (found.default, found.tool_use) == ("d", "t")

    def test_missing_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(TemplateMissing, match=r"/v1/completions.*--chat-template"):
            find_template(folder=tmp_path, metadata={})

    @pytest.mark.parametrize("value", [5, [], [{"name": "rag", "template": "x"}], ["x"]])
    def test_wrong_type_names_the_key(self, tmp_path: Path, value: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
        with pytest.raises(ModelFileError, match="chat_template"):
            find_template(folder=tmp_path)

    def test_unreadable_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="none"):
            find_template(explicit=tmp_path / "none")
