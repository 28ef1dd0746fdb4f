"""Answer chat messages: the chat template makes the prompt, and the generated text becomes a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from server.errors import InvalidRequest
from server.ipc.call import Call
from server.operations.cost import Cost, max_tokens
from server.operations.generate import GeneratedChoice, GenerateRun, GenerateSpec, generate, generation_cost
from server.operations.generated_text import ScoredToken, TextDelta
from server.operations.generation_options import GenerationOptions
from server.operations.generation_run import PhaseSeconds, TokenUsage
from server.operations.runtime import Runtime, ServedModel
from server.text.chat import ChatError, chat_context, continued_text

FinishReason = Literal["stop", "length", "tool_calls", "timeout"]


@dataclass(frozen=True)
class ToolChoice:
    """Whether the answer calls tools.

    mode: `none` forbids calls, `auto` allows them, `required` demands at least one.
    name: the only function that may be called; None for any. Only with `required`.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True)
class ChatSpec:
    """Ask for an answer to chat messages.

    messages: as chat templates take them: `role`, `content` (text, or a list of `{"type": "text", "text"}`), and
        optionally `tool_calls` (`{"id", "type": "function", "function": {"name", "arguments": object}}`),
        `tool_call_id`, `name`, `reasoning_content`.
    model: name of the model, or None for the first one with a chat template.
    tools: `{"type": "function", "function": {"name", "description", "parameters": JSON schema}}`.
    parallel_tool_calls: whether an answer may contain several calls.
    add_generation_prompt: end the prompt with the beginning of an assistant message.
    continue_final_message: continue the last message instead of starting a new one.
    thinking: whether the model reasons before it answers, as the template's variable `enable_thinking`; None leaves it
        to the template.
    template_variables: further variables of the template.
    documents: texts that some templates put into the prompt.
    """

    messages: Sequence[Mapping[str, Any]]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    model: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    thinking: bool | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    documents: Sequence[Mapping[str, Any]] = ()

    @property
    def stream(self) -> bool:
        return self.options.stream

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. A template may repeat its own text for every message."""
        given = len(orjson.dumps([list(self.messages), list(self.tools), list(self.documents)]))
        templates = model.text.chat_templates.by_name.values()
        characters = given + max(map(len, templates), default=0) * (len(self.messages) + len(self.tools) + 1)
        tokens = [max_tokens(characters, model.max_input_tokens)]
        return generation_cost(self.options, model, characters, tokens, self.options.candidates)


@dataclass(frozen=True)
class ToolCall:
    """A complete call of a function. arguments: JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class ToolCallDelta:
    """New text of one call. index: place of the call in the answer. id, name: only in the call's first delta."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class ChatDelta:
    """New parts of one answer. index: place of the answer among the choices. Deltas concatenate to the answer."""

    index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)


@dataclass(frozen=True)
class ChatChoice:
    """One answer.

    content: text for the user; empty for an answer of calls alone.
    reasoning: text that the template marks as thinking; empty without any.
    stop_reason: the stop string or stop token that ended it, or None.
    logprobs: one entry per generated token, if requested.
    """

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int]
    logprobs: list[ScoredToken] | None


@dataclass(frozen=True)
class ChatResult:
    """All answers to one conversation. seed: of the first answer."""

    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    seed: int
    timings: PhaseSeconds


@dataclass
class ChatRun:
    """A submitted `ChatSpec`."""

    run: GenerateRun

    @property
    def model_name(self) -> str:
        return self.run.model.name

    def usage(self) -> TokenUsage:
        """Token counts so far. The cached tokens are known with the first deltas."""
        return self.run.usage()

    async def begin(self) -> list[ChatDelta]:
        return self._deltas(await self.run.begin())

    async def forward(self, sink: Callable[[list[ChatDelta]], bool]) -> bool:
        return await self.run.forward(lambda deltas: sink(self._deltas(deltas)))

    async def complete(self) -> None:
        await self.run.complete()

    def result(self) -> ChatResult:
        result = self.run.result()
        choices = [self._choice(choice) for choice in result.choices]
        return ChatResult(result.model, choices, result.usage, result.seed, result.timings)

    def _deltas(self, deltas: list[TextDelta]) -> list[ChatDelta]:
        return [
            ChatDelta(
                delta.answer.index,
                delta.text,
                token_ids=delta.token_ids,
                logprobs=[delta.answer.scored(entry) for entry in delta.logprobs],
            )
            for delta in deltas
            if delta.text or delta.token_ids
        ]

    def _choice(self, choice: GeneratedChoice) -> ChatChoice:
        reason: Any = choice.finish_reason
        return ChatChoice(choice.text, "", [], reason, choice.stop_reason, choice.token_ids, choice.logprobs)


async def chat(runtime: Runtime, call: Call, spec: ChatSpec) -> ChatRun:
    """Render the template, tokenize and submit. Raises InvalidRequest that names the field at fault."""
    model = _model(runtime, spec)
    prompt_ids = await _prompt_ids(runtime, model, spec)
    try:
        run = await generate(runtime, call, GenerateSpec([prompt_ids], spec.options, model.name))
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = "messages"
            error.message = error.message.replace("`prompt`", "`messages`")
        raise
    return ChatRun(run)


async def count_prompt_tokens(runtime: Runtime, spec: ChatSpec) -> tuple[str, int]:
    """Name of the model and number of tokens of the prompt, without generating. Raises InvalidRequest as `chat`."""
    model = _model(runtime, spec)
    return model.name, len(await _prompt_ids(runtime, model, spec))


def _model(runtime: Runtime, spec: ChatSpec) -> ServedModel:
    """The named model, or the first one with a chat template."""
    models = runtime.candidates(spec.model, "generate")
    with_template = [model for model in models if model.text.chat_templates.by_name]
    if with_template:
        return with_template[0]
    names = ", ".join(f"`{model.name}`" for model in models)
    raise InvalidRequest(f"{names}: the checkpoint has no chat template; use the completion routes", "model")


async def _prompt_ids(runtime: Runtime, model: ServedModel, spec: ChatSpec) -> list[int]:
    text = await runtime.in_thread(lambda: _prompt_text(runtime, model, spec))
    encodings = await runtime.encode(model.tokenizer, [text], param="messages", add_special_tokens=False)
    return encodings[0].ids


def _prompt_text(runtime: Runtime, model: ServedModel, spec: ChatSpec) -> str:
    """The prompt as the template writes it. Raises InvalidRequest if the template fails or rejects the messages."""
    if spec.continue_final_message and spec.add_generation_prompt:
        spec = replace(spec, add_generation_prompt=False)
    templates = model.text.chat_templates
    try:
        source = templates.choose(with_tools=bool(spec.tools))
        context = chat_context(
            templates,
            spec.messages,
            tools=list(spec.tools) or None,
            documents=list(spec.documents) or None,
            add_generation_prompt=spec.add_generation_prompt,
            extra_variables={**_thinking_variable(spec.thinking, source), **spec.template_variables},
        )
        text = runtime.chat_renderer.render(source, context, runtime.max_text_characters)
        return continued_text(text, spec.messages[-1]) if spec.continue_final_message else text
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
