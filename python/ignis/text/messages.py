"""OpenAI messages brought to the one shape that chat templates expect.

Every message comes out with a known role and a text content, tool calls with arguments as an
object where they are one. Nothing is dropped in silence: what cannot be brought to that shape is
refused by the path of its field. Leaves out images, audio and files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from ignis.errors import RequestError
from ignis.text.json_values import check_value, kind_of

Message = dict[str, object]

_ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def normalise_messages(messages: object) -> list[Message]:
    """`messages` of a request, as templates expect them; the argument is left as it was.

    - role `developer` becomes `system`; `function` and unknown roles are refused;
    - content is a text, text parts joined by a line break; the null of an assistant or tool message
      is the empty text;
    - `arguments` of a tool call become an object if they are the JSON of one, nothing and null an
      empty one; other text stays text;
    - other fields pass through.

    Raises RequestError naming the field, such as `messages[2].content[0].type`.
    """
    if not isinstance(messages, list):
        raise RequestError("messages must be a list", "messages", "invalid_type")
    if not messages:
        raise RequestError("messages must hold at least one message", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def normalise_tools(tools: object) -> list[object] | None:
    """`tools` of a request, None where there are none; definitions pass through unchanged.

    Raises RequestError naming the field, such as `tools[1].function.name`.
    """
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", "tools", "invalid_type")
    check_value(tools, "tools")
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise RequestError(
                f"a tool must be an object, not {kind_of(tool)}", where, "invalid_type"
            )
        _check_function(tool, where)
    return list(tools)


def _message(message: object, where: str) -> Message:
    if not isinstance(message, dict):
        raise RequestError(
            f"a message must be an object, not {kind_of(message)}", where, "invalid_type"
        )
    role = _role(message.get("role"), f"{where}.role")
    check_value(message, where)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise RequestError(
            f"a name must be a text, not {kind_of(name)}", f"{where}.name", "invalid_type"
        )
    result: Message = {key: value for key, value in message.items() if value is not None}
    result["role"] = role
    result["content"] = _content(message.get("content"), role, f"{where}.content")
    if "tool_calls" in result:
        calls = _tool_calls(result.pop("tool_calls"), role, f"{where}.tool_calls")
        if calls:
            result["tool_calls"] = calls
    return result


def _role(role: object, where: str) -> str:
    if role == "function":
        raise RequestError(
            "role 'function' is no longer supported: use 'tool' and tool_call_id", where
        )
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(_ROLES)
        shown = repr(role) if isinstance(role, str) else kind_of(role)
        raise RequestError(f"unknown role {shown:.80}: expected one of {known}", where)
    return _ROLES[role]


def _content(content: object, role: str, where: str) -> str:
    match content:
        case str():
            return content
        case list():
            return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))
        case None if role in {"assistant", "tool"}:
            return ""
        case _:
            found = kind_of(content)
            raise RequestError(
                f"content must be a text or a list of text parts, not {found}",
                where,
                "invalid_type",
            )


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(
            f"a content part must be an object, not {kind_of(part)}", where, "invalid_type"
        )
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        shown = repr(kind) if isinstance(kind, str) else kind_of(kind)
        raise RequestError(
            f"content part of type {shown:.80} is not supported: only 'text' is",
            f"{where}.type",
            "unsupported_content",
        )
    text = part.get(str(kind))
    if not isinstance(text, str):
        raise RequestError(
            f"a {kind} part must have a text, not {kind_of(text)}",
            f"{where}.{kind}",
            "invalid_type",
        )
    return text


def _tool_calls(calls: object, role: str, where: str) -> list[dict[str, object]]:
    if not isinstance(calls, list):
        raise RequestError(
            f"tool calls must be a list, not {kind_of(calls)}", where, "invalid_type"
        )
    if calls and role != "assistant":
        raise RequestError(f"only an assistant message has tool calls, not role '{role}'", where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> dict[str, object]:
    if not isinstance(call, dict):
        raise RequestError(
            f"a tool call must be an object, not {kind_of(call)}", where, "invalid_type"
        )
    function = _check_function(call, where)
    place = f"{where}.function.arguments"
    arguments = _arguments(function.get("arguments"), place)
    return call | {"type": "function", "function": function | {"arguments": arguments}}


def _check_function(holder: Mapping[str, object], where: str) -> dict[str, object]:
    """The `function` of a tool or a tool call, which must have a name."""
    if holder.get("type", "function") != "function":
        raise RequestError("only type 'function' is supported", f"{where}.type")
    function = holder.get("function")
    if not isinstance(function, dict):
        found = kind_of(function)
        raise RequestError(
            f"function must be an object, not {found}", f"{where}.function", "invalid_type"
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("a function must have a name", f"{where}.function.name")
    return function


def _arguments(arguments: object, where: str) -> object:
    """Arguments as an object, or as text if they are not the JSON of one."""
    match arguments:
        case None | "":
            return {}
        case dict():
            return arguments
        case str():
            parsed = _parsed(arguments)
            if not isinstance(parsed, dict):
                return arguments
            check_value(parsed, where)
            return parsed
        case _:
            raise RequestError(
                f"arguments must be a text, not {kind_of(arguments)}", where, "invalid_type"
            )


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
