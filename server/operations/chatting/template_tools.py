"""Find out the tool support of a chat template by rendering sample conversations, once per template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.chats.chat import ChatError, ChatStopped, as_parts, chat_context
from server.text.chats.tool_formats import GENERIC, TemplateTools, by_marker, recognise

_NAME, _ARGUMENTS, _RESULT, _ID = "sample_tool", {"sample_key": "sample value"}, "sample_result", "sample123"
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A sample.",
        "parameters": {"type": "object", "properties": {"sample_key": {"type": "string"}}, "required": ["sample_key"]},
    },
}
_QUESTION: Mapping[str, Any] = {"role": "user", "content": "A sample question."}
_ANSWER: Mapping[str, Any] = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": _RESULT}


Messages = Sequence[Mapping[str, Any]]


async def template_tools(runtime: Runtime, call: Call, model: ServedModel) -> TemplateTools:
    """Tool support of a model's chat template. The first request that needs it renders sample conversations.

    Raises InvalidRequest if the template is stopped at a limit, and the errors of `Pool.run`.
    """
    templates = model.text.chat_templates
    source = templates.choose(with_tools=True)

    def render(messages: Messages, tools: Messages | None) -> str:
        given = templates.in_forms(source, messages)
        context = chat_context(templates, given, tools=tools, null_content=True)
        try:
            return runtime.chat_renderer.render(source, context, runtime.max_text_characters, call.limits.next_deadline)
        except ChatStopped:
            raise
        except ChatError:
            return ""

    if source not in runtime.template_tools:
        try:
            found = await runtime.in_template_thread(lambda: _inspect(source, render), call)
        except ChatStopped as error:
            raise InvalidRequest(f"`messages`: {error}", "messages") from None
        runtime.template_tools[source] = found
    return runtime.template_tools[source]


def _inspect(source: str, render: Callable[[Messages, Messages | None], str]) -> TemplateTools:
    shows_tools = _NAME in render([_QUESTION], [_TOOL])
    tools = [_TOOL] if shows_tools else None
    unknown = by_marker(source) or GENERIC
    variants = [(as_text, content) for as_text in (False, True) for content in ({}, {"content": None}, {"content": ""})]
    texts = [render([_QUESTION, _call(*variant)], None) for variant in variants]
    rows = [recognise(text, _NAME, _ARGUMENTS) for text in texts]
    written = [index for index, text in enumerate(texts) if rows[index] is not None]
    written += [index for index, text in enumerate(texts) if _NAME in text and "sample_key" in text]
    shown = unknown if shows_tools else None
    if not written:
        return _with_results(TemplateTools(shown), [_QUESTION], tools, render)
    best = written[0]
    found = TemplateTools(shown and (rows[best] or unknown), True, False, *variants[best])
    return _with_results(found, [_QUESTION, _call(*variants[best])], tools, render)


def _with_results(
    found: TemplateTools,
    before: Messages,
    tools: Messages | None,
    render: Callable[[Messages, Messages | None], str],
) -> TemplateTools:
    """Find out whether the template reads results of calls, and in which form. Returns `found` with the two fields set.

    before: messages before the result. tools: tools in the form of the template; None to render without tools.
    render: renders messages and tools with the template.
    """
    if _RESULT in render([*before, _ANSWER], tools):
        return replace(found, writes_results=True)
    writes = _RESULT in render([*before, {**_ANSWER, "content": as_parts(_RESULT)}], tools)
    return replace(found, writes_results=writes, results_as_parts=writes)


def _call(as_text: bool, content: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", **content, "tool_calls": [call]}
