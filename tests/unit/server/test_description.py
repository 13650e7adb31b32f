"""The description says what the server does: every field of OpenAI's, and every answer."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from ignis.server import api_docs, openapi
from ignis.server.field_tables import CHAT, COMPLETIONS
from ignis.server.fields import FieldTable, Use

DOCS = Path(__file__).parents[3] / "docs" / "API.md"


@pytest.mark.parametrize(
    ("table", "params"),
    [
        (CHAT, chat_create_params.CompletionCreateParamsBase),
        (COMPLETIONS, completion_create_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_of_the_official_client_is_declared(table: FieldTable, params: type) -> None:
    known = {field.name for field in table.fields}
    assert typing.get_type_hints(params).keys() - known == set()


def test_every_field_says_what_it_means() -> None:
    for field in (*CHAT.fields, *COMPLETIONS.fields):
        assert field.meaning
        if field.use is Use.REFUSED:
            assert not field.required


def test_docs_page_is_made_from_the_tables() -> None:
    assert DOCS.read_text() == api_docs.markdown(), (
        "run `python -m ignis.server.api_docs > docs/API.md`"
    )


def test_html_page_needs_nothing_from_elsewhere() -> None:
    html = api_docs.page("1.2.3")
    assert "1.2.3" in html
    assert "://" not in html
    assert "logit_bias" in html


def test_every_status_has_a_reason() -> None:
    description = openapi.describe("1")
    for path in description["paths"].values():
        for operation in path.values():
            assert all(reply["description"] for reply in operation["responses"].values())
