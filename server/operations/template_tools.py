"""Tool support of a chat template, found by rendering a sample conversation, once per template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server.errors import InvalidRequest
from server.ipc.call import Call
from server.operations.runtime import Runtime, ServedModel
from server.text.chat import ChatError, ChatStopped, chat_context
from server.text.tool_formats import GENERIC, TemplateTools, by_marker, recognise

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
    """Tool support of the chat template of a model. The first request that needs it renders a sample conversation.

    Raises InvalidRequest for a slow template, and the errors of `Pool.run`.
    """
    templates = model.text.chat_templates
    source = templates.choose(with_tools=True)

    def render(messages: Messages, tools: Messages | None) -> str:
        context = chat_context(templates, messages, tools=tools, null_content=True)
        try:
            return runtime.chat_renderer.render(source, context, runtime.max_text_characters, call.deadline)
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
    if not written:
        results = _RESULT in render([_QUESTION, _ANSWER], tools)
        return TemplateTools(unknown if shows_tools else None, writes_results=results)
    best = written[0]
    results = _RESULT in render([_QUESTION, _call(*variants[best]), _ANSWER], tools)
    return TemplateTools((rows[best] or unknown) if shows_tools else None, True, results, *variants[best])


def _call(as_text: bool, content: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", **content, "tool_calls": [call]}
