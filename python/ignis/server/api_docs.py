"""The routes and fields as a page for people: Markdown for the repository, HTML for `/docs`.

`python -m ignis.server.api_docs > docs/API.md` writes the former.
"""

from __future__ import annotations

import html
import json

from ignis.server.fields import Field
from ignis.server.routes import ROUTES, Route

_INTRO = (
    "Every field is honoured, inert (only for the values that change nothing here) or refused "
    "with 400 `unsupported_value`. Null means absent. Fields that no table names are ignored. "
    "Bodies are UTF-8 JSON without duplicate keys, NaN or Infinity."
)

_USAGE = (
    "`usage.prompt_tokens` counts each prompt once, however many answers it has. "
    "`usage.prompt_tokens_details.cached_tokens` is how many of them the prompt's first answer did "
    "not compute, because an earlier prompt, of any client, began alike; it is always there, also "
    "in the last chunk of a stream with `include_usage`. Matching is by content alone."
)

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;"
    "padding:.3rem .6rem;border-bottom:1px solid #8884}code{font:13px ui-monospace,monospace}"
    ".refused{opacity:.6}:root{color-scheme:light dark}"
)


def markdown() -> str:
    """The page as Markdown."""
    parts = [
        "# HTTP API",
        "",
        "Written by `python -m ignis.server.api_docs`; edit `ignis/server/field_tables.py`.",
        "",
        _INTRO,
        "",
        _USAGE,
    ]
    for route in ROUTES:
        parts += ["", f"## {route.method} {route.path}", "", f"{route.summary}."]
        if route.table is None:
            continue
        parts += ["", "| field | use | accepts | meaning |", "| --- | --- | --- | --- |"]
        for field in route.table.fields:
            cells = [f"`{field.name}`", field.use.value, f"`{_accepts(field)}`", field.meaning]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def page(version: str) -> str:
    """The page as HTML that needs nothing from elsewhere."""
    routes = "".join(_route_html(route) for route in ROUTES)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>ignis API</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>ignis {html.escape(version)}</h1><p>{_code(_INTRO)}</p><p>{_code(_USAGE)}</p>"
        f"<p>For machines: <a href='/openapi.json'>openapi.json</a></p>{routes}</html>"
    )


def _route_html(route: Route) -> str:
    head = f"<h2><code>{route.method} {route.path}</code></h2><p>{html.escape(route.summary)}.</p>"
    if route.table is None:
        return head
    rows = "".join(
        f"<tr class={field.use.value}><td><code>{field.name}</code><td>{field.use.value}"
        f"<td><code>{html.escape(_accepts(field))}</code><td>{_code(field.meaning)}"
        for field in route.table.fields
    )
    return f"{head}<table><tr><th>field<th>use<th>accepts<th>meaning{rows}</table>"


def _code(text: str) -> str:
    """Text with `code` in it as HTML."""
    parts = html.escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _accepts(field: Field) -> str:
    schema = field.schema()
    schema.pop("description", None)
    default = schema.pop("default", None)
    kinds = schema.get("anyOf", [schema])
    shown = " or ".join(_kind(kind) for kind in kinds if kind != {"type": "null"}) or "nothing"
    if field.required:
        return f"{shown}, required"
    return shown if default is None else f"{shown}, default {json.dumps(default)}"


def _kind(schema: dict[str, object]) -> str:
    if "enum" in schema:
        options = schema["enum"]
        assert isinstance(options, list)
        return " or ".join(json.dumps(option) for option in options)
    if "anyOf" in schema:
        kinds = schema["anyOf"]
        assert isinstance(kinds, list)
        return " or ".join(_kind(kind) for kind in kinds)
    kind = str(schema.get("type", "anything"))
    if "minimum" in schema and "maximum" in schema:
        return f"{kind} {schema['minimum']} to {schema['maximum']}"
    if kind == "array":
        items = schema.get("items")
        return f"list of {_kind(items)}" if isinstance(items, dict) else "list"
    return "nothing" if kind == "null" else kind


if __name__ == "__main__":
    print(markdown(), end="")
