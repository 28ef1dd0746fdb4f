"""Convert items of OpenAI's built-in tools to function calls and results that a chat template can show.

Clients send such items in conversations that began on another server. A call without a readable result is dropped, if
its result belongs to the same item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from server.api.fields.tool_results import with_notes


class ShownItem(NamedTuple):
    """The part of an item that the model reads. If both fields are None, the item is dropped.

    call: id, function name and arguments of a call.
    result: id of a call, and the text of its result.
    """

    call: tuple[str, str, Mapping[str, Any]] | None = None
    result: tuple[str, str] | None = None


def _text(value: Any) -> str:
    """Convert a result to text: JSON, if it is no string, with notes in place of parts that are no text."""
    shown = with_notes(value)[0] if isinstance(value, list) else value
    return shown if isinstance(shown, str) else orjson.dumps(shown).decode()


def _object(value: Any) -> Mapping[str, Any]:
    """The arguments of a call as an object. JSON text is parsed; any other value becomes the argument `input`."""
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return value if isinstance(value, dict) else {"input": value}


def _call_id(item: Mapping[str, Any]) -> str:
    """The id of a call: `call_id`, or the item's `id` if the tool ran on OpenAI's servers. Empty without both."""
    return next((call_id for call_id in (item.get("call_id"), item.get("id")) if isinstance(call_id, str)), "")


def _call(name: str, field: str) -> Callable[[Mapping[str, Any]], ShownItem]:
    """Create a converter of items to calls.

    name: name of the called function. field: name of the item's field with the arguments.
    """
    return lambda item: ShownItem(call=(_call_id(item), name, _object(item.get(field))))


def _result(*fields: str) -> Callable[[Mapping[str, Any]], ShownItem]:
    """Create a converter of items to results. fields: names of fields; the first that is not null has the text."""
    return lambda item: ShownItem(result=(_call_id(item), _text(_first(item, *fields) or "")))


def _call_with_result(name: str, arguments: str, *fields: str) -> Callable[[Mapping[str, Any]], ShownItem]:
    """Create a converter of items to a call and its result. It drops an item without a result.

    name: name of the called function. arguments: name of the field that becomes the call's only argument.
    fields: names of fields; the first that is not null has the result.
    """

    def show(item: Mapping[str, Any]) -> ShownItem:
        result = _first(item, *fields)
        if result is None:
            return ShownItem()
        call_id = _call_id(item)
        return ShownItem((call_id, name, {arguments: item.get(arguments)}), (call_id, _text(result)))

    return show


def _mcp_call(item: Mapping[str, Any]) -> ShownItem:
    result = _first(item, "output", "error")
    if result is None:
        return ShownItem()
    call_id = _call_id(item)
    return ShownItem((call_id, _text(item.get("name")), _object(item.get("arguments"))), (call_id, _text(result)))


def _nothing(item: Mapping[str, Any]) -> ShownItem:
    return ShownItem()


def _first(item: Mapping[str, Any], *fields: str) -> Any:
    return next((item[name] for name in fields if item.get(name) is not None), None)


BUILT_IN_ITEMS: Mapping[str, Callable[[Mapping[str, Any]], ShownItem]] = {
    "local_shell_call": _call("local_shell", "action"),
    "local_shell_call_output": _result("output"),
    "shell_call": _call("shell", "action"),
    "shell_call_output": _result("output"),
    "apply_patch_call": _call("apply_patch", "operation"),
    "apply_patch_call_output": _result("output", "status"),
    "program": lambda item: ShownItem(call=(_call_id(item), "program", {"code": item.get("code")})),
    "program_output": _result("result"),
    "mcp_call": _mcp_call,
    "code_interpreter_call": _call_with_result("code_interpreter", "code", "outputs"),
    "file_search_call": _call_with_result("file_search", "queries", "results"),
    "web_search_call": _nothing,
    "computer_call": _nothing,
    "computer_call_output": _nothing,
    "image_generation_call": _nothing,
    "mcp_list_tools": _nothing,
    "mcp_approval_request": _nothing,
    "mcp_approval_response": _nothing,
    "tool_search_call": _nothing,
    "tool_search_output": _nothing,
    "additional_tools": _nothing,
    "ghost_snapshot": _nothing,
}
"""Type of an item to the function that converts it to a `ShownItem`."""

_COMPACTION = "is the summary of a conversation that only its own server can read; send the items that it replaces"
REFUSED_ITEMS: Mapping[str, str] = {
    "compaction": _COMPACTION,
    "compaction_summary": _COMPACTION,
    "compaction_trigger": "asks for a summary of the conversation, which the server does not make",
    "configuration_update": "changes settings within a conversation, which is not supported",
}
"""Types of items that are refused because dropping them would change the answer, and the text of the error."""
