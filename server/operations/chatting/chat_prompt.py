"""Render the prompt of a chat from messages and tools, with the checkpoint's template, and tokenize it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.operations.chatting.answer_plan import Reasoning
from server.operations.chatting.chat_spec import ChatSpec
from server.operations.chatting.late_instructions import reads_late_instructions, with_instructions_at_front
from server.operations.chatting.reasoning_settings import reasoning_variables
from server.operations.marked_prompts import special_texts
from server.operations.runtime import MAX_TEXT_TOKENS, PIECE_TOKENS, Runtime
from server.operations.served_model import ServedModel
from server.system.loop_iterations import next_iteration
from server.text.chats.chat import ChatError, ChatTooLong, as_parts, chat_context, continued_text, with_continued
from server.text.chats.text_marks import TextMarks
from server.text.chats.tool_formats import TemplateTools, reasoning_markers
from server.text.tokens.marked_text import MarkedText

_FIXED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
_NO_TOOLS = TemplateTools()

CHARACTERS_PER_TOKEN = 16
"""A prompt with more characters per token of the context cannot fit. Prose and source code have 3 to 5 characters per
token, text with much white space up to 10."""
_BYTES_PER_CHARACTER = 6
"""Maximum bytes of one character in JSON text."""
_CUT_TOKENS = 16
"""Maximum number of tokens by which a text's count grows if it is tokenized in two pieces."""


def max_prompt_characters(runtime: Runtime, model: ServedModel) -> int:
    """Maximum number of characters of a prompt that is rendered and tokenized. Its tokens then decide if it fits."""
    return max(runtime.max_text_characters, CHARACTERS_PER_TOKEN * model.max_input_tokens)


def check_body_bytes(runtime: Runtime, num_bytes: int) -> None:
    """Raise ContextLengthExceeded for a request body that is too long for the context of every loaded chat model.

    Raises NotReady while the models are loading.
    """
    contexts = [model.max_input_tokens for model in runtime.ready() if "chat" in model.operations()]
    longest = max(contexts, default=0)
    most = _BYTES_PER_CHARACTER * max(runtime.max_text_characters, CHARACTERS_PER_TOKEN * longest)
    if num_bytes > most:
        raise ContextLengthExceeded(
            f"the body has {num_bytes:,} bytes; a conversation that fits the longest context of a loaded model "
            f"({longest:,} tokens) has at most {most:,}"
        )


def check_characters(runtime: Runtime, model: ServedModel, spec: ChatSpec) -> None:
    """Raise ContextLengthExceeded for messages that are too long for the model, before they are rendered."""
    most = max_prompt_characters(runtime, model)
    if spec.characters > most:
        raise ContextLengthExceeded(
            f"`messages` and the other texts have {spec.characters:,} characters; the context of `{model.name}` is "
            f"{model.max_input_tokens:,} tokens, and longer texts than {most:,} characters are not tokenized",
            "messages",
        )


async def render_prompt(
    runtime: Runtime, call: Call, model: ServedModel, spec: ChatSpec, tools: TemplateTools | None
) -> MarkedText:
    """Render the prompt with the chat template. Special tokens in texts of the request are marked as plain text.

    Adds template variables and messages that the template does not use to the ignored parameters of `call`.

    tools: tool support of the template, if the request has tools.
    Raises InvalidRequest if the template fails or rejects the messages, ContextLengthExceeded for a too long prompt,
    and the errors of `Pool.run`.
    """
    fixed = next((name for name in _FIXED_VARIABLES if name in spec.template_variables), None)
    if fixed is not None:
        raise InvalidRequest(f"`chat_template_kwargs` must not contain `{fixed}`", "chat_template_kwargs")
    if not spec.messages:
        raise InvalidRequest("`messages` is empty", "messages")
    _check_calls(spec, tools or _NO_TOOLS, model.name)
    templates = model.text.chat_templates
    shown = [tool.for_template() for tool in spec.tools] if spec.tool_choice.mode != "none" else []

    def render(source: str, reads_late: bool) -> MarkedText:
        _check_variables(call, spec, source, model.name)
        marks = TextMarks(special_texts(runtime, model.tokenizer), spec.given, source)
        given = marks.messages(spec.messages if reads_late else with_instructions_at_front(spec.messages))
        messages, text = template_messages(given, tools or _NO_TOOLS), ""
        lost = templates.forms_of(source).lost & {message.get("role") for message in messages}
        call.ignore(f"{spec.messages_field or 'messages'}:{role}" for role in sorted(lost))
        if spec.continue_final_message:
            messages[-1], text = with_continued(messages[-1])
        context = chat_context(
            templates,
            templates.in_forms(source, messages),
            tools=marks.value(shown) or None,
            documents=marks.value(list(spec.documents)) or None,
            null_content=True,
            add_generation_prompt=spec.add_generation_prompt and not spec.continue_final_message,
            extra_variables={**_reasoning_variables(call, spec, source), **spec.template_variables},
        )
        longest, deadline = max_prompt_characters(runtime, model), call.limits.next_deadline
        as_objects = tools is not None and not tools.arguments_as_text
        rendered = runtime.chat_renderer.render(
            source, context, longest + marks.num_characters, deadline, arguments_as_objects=as_objects
        )
        prompt = marks.read(continued_text(rendered, text) if spec.continue_final_message else rendered)
        if len(prompt.text) > longest:
            raise ChatTooLong(f"the text of the chat template is longer than {longest:,} characters")
        return prompt

    try:
        source = templates.choose(with_tools=tools is not None)
        reads_late = await reads_late_instructions(runtime, call, model, spec.messages, source)
        return await runtime.in_template_thread(lambda: render(source, reads_late), call)
    except ChatTooLong as error:
        raise ContextLengthExceeded(
            f"`messages`: {error}; the context of `{model.name}` is {model.max_input_tokens:,} tokens", "messages"
        ) from None
    except ChatError as error:
        raise InvalidRequest(f"`messages`: {error}", "messages") from None


async def encode_prompt(runtime: Runtime, call: Call, model: ServedModel, prompt: MarkedText) -> list[int]:
    """Tokenize a prompt, and return its token ids.

    The tokens of a prompt that may have more than `MAX_TEXT_TOKENS` are first counted in pieces, because tokenizing it
    at once needs memory for each token. Raises ContextLengthExceeded, and the errors of `Pool.run`.
    """
    await next_iteration()
    tokenizer = model.tokenizer
    if tokenizer.token_bound(prompt.text) > MAX_TEXT_TOKENS:
        await _check_tokens(runtime, call, model, prompt.text)
    if prompt.marks:
        with runtime.client.preparing():
            return await runtime.pools.tokenize_large.run(lambda: tokenizer.encode_marked(prompt), call)
    (ids,) = await runtime.encode_checked(tokenizer, [prompt.text], lambda encoding: encoding.ids, call=call)
    return ids


async def _check_tokens(runtime: Runtime, call: Call, model: ServedModel, prompt: str) -> None:
    """Tokenize a prompt in pieces. Raises ContextLengthExceeded as soon as they exceed the model's input limit."""
    length = max(len(prompt) * PIECE_TOKENS // model.tokenizer.token_bound(prompt), 1)
    tokens = 0
    for start in range(0, len(prompt), length):
        count = partial(_count_tokens, model, prompt[start : start + length])
        tokens += await runtime.pools.tokenize_large.run(count, call) - _CUT_TOKENS
        if tokens > model.max_input_tokens:
            raise ContextLengthExceeded(
                f"`messages` has more than {tokens:,} tokens; the context of `{model.name}` is "
                f"{model.max_input_tokens:,} tokens",
                "messages",
                (tokens, model.max_input_tokens),
            )


def _count_tokens(model: ServedModel, text: str) -> int:
    return len(model.tokenizer.encode([text], add_special_tokens=False, offsets=False)[0].ids)


def _reasoning_variables(call: Call, spec: ChatSpec, source: str) -> dict[str, Any]:
    """The template variables for reasoning. If the template has no switch for it, `call` gets an ignored parameter."""
    variables, is_granted = reasoning_variables(source, spec.thinking, spec.reasoning_effort)
    if not is_granted:
        call.ignore([spec.thinking_field])
    return variables


def _check_calls(spec: ChatSpec, tools: TemplateTools, model: str) -> None:
    """Raise InvalidRequest if the messages have calls or results that the template leaves out. model: model name."""
    for index, message in enumerate(spec.messages):
        if message.get("tool_calls") and not tools.writes_calls:
            place, lost = f"messages[{index}].tool_calls", "function calls"
        elif message.get("role") == "tool" and not tools.writes_results:
            place, lost = f"messages[{index}]", "messages with the role `tool`"
        else:
            continue
        place = spec.messages_field or place
        raise InvalidRequest(f"`{place}`: the chat template of `{model}` leaves {lost} out", "messages")


def _check_variables(call: Call, spec: ChatSpec, source: str, model: str) -> None:
    """Check that the template reads the documents and variables of the request.

    Unread variables are added to the ignored parameters of `call`. Raises InvalidRequest for unread documents.

    source: text of the template. model: name of the model.
    """

    def reads(name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", source) is not None

    if spec.documents and not reads("documents"):
        raise InvalidRequest(f"`documents`: the chat template of `{model}` leaves documents out", "documents")
    if not all(reads(name) for name, value in spec.template_variables.items() if value is not None):
        call.ignore(["chat_template_kwargs"])


def template_messages(messages: Sequence[Mapping[str, Any]], tools: TemplateTools) -> list[dict[str, Any]]:
    """Convert calls and results in messages to the form that the template reads. Members that are None are removed."""
    prepared = []
    for message in messages:
        stated = {key: value for key, value in message.items() if value is not None}
        if stated.get("tool_calls"):
            calls = [_call(call, tools) for call in stated["tool_calls"]]
            stated = {**stated, **({} if stated.get("content") else tools.empty_content), "tool_calls": calls}
        if stated.get("role") == "tool" and tools.results_as_parts and isinstance(stated.get("content"), str):
            stated["content"] = as_parts(stated["content"])
        if "tool_call_id" in stated:
            stated["tool_call_id"] = _id(stated["tool_call_id"], tools)
        prepared.append(stated)
    return prepared


def _call(call: Mapping[str, Any], tools: TemplateTools) -> dict[str, Any]:
    """Convert the id and the arguments of a call to the form that the template reads.

    Arguments that were sent as text stay text. The renderer parses them for a template that reads objects.
    """
    function = dict(call["function"])
    arguments = function["arguments"]
    if isinstance(arguments, str):
        function["arguments"] = arguments if arguments.strip() else "{}"
    elif tools.arguments_as_text:
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    call_id = {"id": _id(call["id"], tools)} if call.get("id") is not None else {}
    return {**call, **call_id, "type": "function", "function": function}


def _id(call_id: str, tools: TemplateTools) -> str:
    """Shorten or fill a call id to the length that the template requires, from its last letters and digits."""
    length = tools.format.id_characters if tools.format is not None else None
    if length is None:
        return call_id
    return re.sub(r"[^A-Za-z0-9]", "", call_id)[-length:].rjust(length, "0")


def reasoning_of(
    template: str, prompt: str, messages: Sequence[Mapping[str, Any]], continues_message: bool
) -> Reasoning | None:
    """Markers of the reasoning at the beginning of an answer. None if the answer has no reasoning.

    This is so if the template has no markers of reasoning, or the reasoning has ended in the prompt or in the message
    that is continued.

    template: text of the template. prompt: the rendered prompt.
    continues_message: whether the answer continues the last message.
    """
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
