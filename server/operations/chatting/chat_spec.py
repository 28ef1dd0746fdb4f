"""`ChatSpec`, the typed specification of a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from server.operations.chatting.function_tool import FunctionTool
from server.operations.chatting.tool_grammar import ToolChoice
from server.operations.cost import Cost, most_tokens
from server.operations.generating.generate import generation_cost
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import with_beam_answers
from server.operations.served_model import ServedModel


@dataclass(frozen=True)
class ChatSpec:
    """Request for an answer to chat messages.

    messages: in the form that chat templates read: `role`, `content` (text, or a list of `{"type": "text", "text"}`),
        and optionally `tool_calls`, `tool_call_id`, `name`, `reasoning_content`. A call is
        `{"id", "type": "function", "function": {"name", "arguments": object or JSON text}}`.
    model: name of the model, or None for the first model with a chat template.
    tools: functions that the answer may call. With the tool choice `none` they are not in the prompt.
    parallel_tool_calls: whether an answer may contain several calls.
    add_generation_prompt: end the prompt with the beginning of an assistant message.
    continue_final_message: continue the last message instead of starting a new one.
    thinking: whether the model reasons before it answers; None leaves it to `reasoning_effort` and the template.
    thinking_field: name of the request's field for `thinking`, which is reported as ignored if the template has no
        switch for reasoning.
    messages_field: name of the request's field that `messages` were made from; empty if it is `messages` itself, with
        the same indices.
    reasoning_effort: one of `reasoning_settings.EFFORTS`. No effect in templates without such a setting.
    template_variables: further variables of the template.
    documents: texts that some templates put into the prompt.
    """

    messages: Sequence[Mapping[str, Any]]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    model: str | None = None
    tools: Sequence[FunctionTool] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    thinking: bool | None = None
    thinking_field: str = "thinking"
    messages_field: str = ""
    reasoning_effort: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    documents: Sequence[Mapping[str, Any]] = ()
    _given: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A large specification is made in a thread, where this takes no time of the event loop.
        tools = [tool.for_template() for tool in self.tools]
        given = [list(self.messages), tools, list(self.documents), dict(self.template_variables)]
        object.__setattr__(self, "_given", orjson.dumps(given).decode())

    @property
    def given(self) -> str:
        """JSON text of all data that the template gets: messages, tools, documents and variables."""
        return self._given

    @property
    def characters(self) -> int:
        """Number of characters in the JSON text of all data that the template gets."""
        return len(self._given)

    @property
    def stream(self) -> bool:
        return self.options.stream

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. A template may repeat its text for every message."""
        templates = model.text.chat_templates.by_name.values()
        repeats = len(self.messages) + len(self.tools) + 1
        characters = self.characters + max(map(len, templates), default=0) * repeats
        written = max(map(model.tokenizer.token_bound, templates), default=0) * repeats
        tokens = min(most_tokens(model.tokenizer, self._given) + written, model.max_input_tokens)
        options = with_beam_answers(self.options, model.info)
        return generation_cost(options, model, characters, [tokens], options.candidates)
