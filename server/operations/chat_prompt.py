"""The prompt of a chat: messages and tools as the checkpoint's template takes them, rendered to text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.errors import InvalidRequest
from server.ipc.call import Call
from server.operations.answer_plan import Reasoning
from server.operations.chat_spec import ChatSpec
from server.operations.runtime import Runtime, ServedModel
from server.text.chat import ChatError, as_parts, chat_context, continued_text, with_continued
from server.text.tool_formats import TemplateTools, reasoning_markers

_FIXED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
_NO_TOOLS = TemplateTools()


async def render_prompt(
    runtime: Runtime, call: Call, model: ServedModel, spec: ChatSpec, tools: TemplateTools | None
) -> str:
    """The prompt as the template writes it.

    tools: tool support of the template, if the request has tools.
    Raises InvalidRequest if the template fails or rejects the messages, and the errors of `Pool.run`.
    """
    fixed = next((name for name in _FIXED_VARIABLES if name in spec.template_variables), None)
    if fixed is not None:
        raise InvalidRequest(f"`chat_template_kwargs` must not contain `{fixed}`", "chat_template_kwargs")
    if not spec.messages:
        raise InvalidRequest("`messages` is empty", "messages")
    templates = model.text.chat_templates
    messages = template_messages(spec.messages, tools or _NO_TOOLS, model.name)
    shown = [tool.for_template() for tool in spec.tools] if spec.tool_choice.mode != "none" else []

    def render() -> str:
        source, text = templates.choose(with_tools=tools is not None), ""
        lost = templates.forms_of(source).lost & {message.get("role") for message in messages}
        call.ignore(f"messages:{role}" for role in sorted(lost))
        if spec.continue_final_message:
            messages[-1], text = with_continued(messages[-1])
        context = chat_context(
            templates,
            templates.in_forms(source, messages),
            tools=shown or None,
            documents=list(spec.documents) or None,
            null_content=True,
            add_generation_prompt=spec.add_generation_prompt and not spec.continue_final_message,
            extra_variables={**_thinking_variable(spec.thinking, source), **spec.template_variables},
        )
        rendered = runtime.chat_renderer.render(source, context, runtime.max_text_characters, call.deadline)
        return continued_text(rendered, text) if spec.continue_final_message else rendered

    try:
        return await runtime.in_template_thread(render, call)
    except ChatError as error:
        raise InvalidRequest(f"`messages`: {error}", "messages") from None


def _thinking_variable(thinking: bool | None, source: str) -> dict[str, Any]:
    """The template variable that turns reasoning on or off. Raises InvalidRequest where the template has none.

    A template that mentions no reasoning needs no variable to turn it off.
    """
    if thinking is None:
        return {}
    if "enable_thinking" in source:
        return {"enable_thinking": thinking}
    if thinking or "think" in source or "reasoning" in source:
        raise InvalidRequest(
            "`thinking` cannot be chosen: the model's chat template has no variable `enable_thinking`", "thinking"
        )
    return {}


def template_messages(messages: Sequence[Mapping[str, Any]], tools: TemplateTools, model: str) -> list[dict[str, Any]]:
    """Messages with calls as the template takes them. Members that are None are left out.

    Raises InvalidRequest for calls and results that the template leaves out, and for arguments that are not an object.
    """
    prepared = []
    for index, message in enumerate(messages):
        stated = {key: value for key, value in message.items() if value is not None}
        if stated.get("tool_calls"):
            if not tools.writes_calls:
                raise InvalidRequest(
                    f"`messages[{index}].tool_calls`: the chat template of `{model}` leaves function calls out",
                    "messages",
                )
            calls = [
                _call(call, tools, f"`messages[{index}].tool_calls[{i}]") for i, call in enumerate(stated["tool_calls"])
            ]
            stated = {**stated, **({} if stated.get("content") else tools.empty_content), "tool_calls": calls}
        if stated.get("role") == "tool" and not tools.writes_results:
            raise InvalidRequest(
                f"`messages[{index}]`: the chat template of `{model}` leaves messages with the role `tool` out",
                "messages",
            )
        if stated.get("role") == "tool" and tools.results_as_parts and isinstance(stated.get("content"), str):
            stated["content"] = as_parts(stated["content"])
        if "tool_call_id" in stated:
            stated["tool_call_id"] = _id(stated["tool_call_id"], tools)
        prepared.append(stated)
    return prepared


def _call(call: Mapping[str, Any], tools: TemplateTools, place: str) -> dict[str, Any]:
    """A call whose arguments are an object or JSON text, whichever the template takes."""
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = None
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(f"{place}.function.arguments` must be a JSON object", "messages")
    function["arguments"] = json.dumps(arguments, ensure_ascii=False) if tools.arguments_as_text else arguments
    call_id = {"id": _id(call["id"], tools)} if call.get("id") is not None else {}
    return {**call, **call_id, "type": "function", "function": function}


def _id(call_id: str, tools: TemplateTools) -> str:
    """An id in the length that the template accepts: its last letters and digits."""
    length = tools.format.id_characters if tools.format is not None else None
    if length is None:
        return call_id
    return re.sub(r"[^A-Za-z0-9]", "", call_id)[-length:].rjust(length, "0")


def reasoning_of(
    template: str, prompt: str, messages: Sequence[Mapping[str, Any]], continues_message: bool
) -> Reasoning | None:
    """How the answer to a prompt begins with reasoning; None if the template marks none or the prompt has ended it."""
    markers = reasoning_markers(template)
    if markers is None:
        return None
    begin, end = markers
    if continues_message:
        content = messages[-1].get("content")
        is_open = isinstance(content, str) and content.rfind(begin) > content.rfind(end)
        return Reasoning(begin, end, True) if is_open else None
    tail = prompt.rstrip()
    return None if tail.endswith(end) else Reasoning(begin, end, tail.endswith(begin))
