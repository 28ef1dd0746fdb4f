"""Answer chat messages: render the chat template, generate text, and split it into content, reasoning and calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.chatting.answer_parser import AnswerParser, ToolCall, ToolCallDelta
from server.operations.chatting.answer_plan import AnswerPlan, AnswerPlanner, Reasoning, SectionKind
from server.operations.chatting.chat_prompt import check_characters, encode_prompt, reasoning_of, render_prompt
from server.operations.chatting.chat_spec import ChatSpec
from server.operations.chatting.function_tool import FunctionTool
from server.operations.chatting.template_tools import template_tools
from server.operations.chatting.tool_grammar import (
    CallGrammar,
    Function,
    ToolChoice,
    callable_functions,
    special_tokens,
)
from server.operations.generating.generate import GeneratedChoice, GenerateRun, GenerateSpec, generate
from server.operations.generating.generated_text import GeneratedText, ScoredToken, TextDelta, tokens_within
from server.operations.generating.generation_run import PhaseSeconds, TokenUsage
from server.operations.generating.grammar import TextGrammar, text_grammar
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.chats.tool_formats import TemplateTools
from server.text.tokens.computed import Computed

FinishReason = Literal["stop", "length", "tool_calls", "timeout"]
__all__ = [
    "ChatChoice",
    "ChatDelta",
    "ChatResult",
    "ChatRun",
    "ChatSpec",
    "FunctionTool",
    "SectionKind",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "chat",
    "count_prompt_tokens",
]


@dataclass(slots=True)
class ChatDelta:
    """New parts of one answer. All deltas of an answer, joined, give the whole answer.

    index: index of the answer among the choices.
    logprobs: log-probabilities of all new tokens, if requested.
    content_logprobs: log-probabilities of new tokens that belong to the content, if requested.
    """

    index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)
    content_logprobs: list[ScoredToken] = field(default_factory=list)


@dataclass(frozen=True)
class ChatChoice:
    """One answer.

    content: text for the user; empty for an answer that has only calls.
    reasoning: text between the template's markers of reasoning; empty if there is none.
    stop_reason: the stop string or stop token that ended the answer; None if it ended for another reason.
    logprobs: one entry per generated token, if requested.
    content_logprobs: one entry per token of the content, if requested.
    unfinished: section in which the text ends, or None if it ends after a complete call or between sections. `calls`
        means that the last call is incomplete.
    """

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int]
    logprobs: Sequence[ScoredToken] | None
    unfinished: SectionKind | None = None
    content_logprobs: Sequence[ScoredToken] | None = None


@dataclass(frozen=True)
class ChatResult:
    """All answers to one conversation. seed: seed of the first answer. timings: durations of the phases."""

    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    seed: int
    timings: PhaseSeconds


class ChatRun:
    """A submitted `ChatSpec`. plan: the sections of each answer (reasoning, content and calls)."""

    def __init__(self, run: GenerateRun, plan: AnswerPlan) -> None:
        self.run = run
        self._names = _field_names(run.spec)
        self._special_ids = plan.special_ids
        self._parsers = {text.index: AnswerParser(plan) for row in run.texts for text in row}
        self._content_logprobs = {index: _ContentLogprobs(plan.special_ids) for index in self._parsers}

    @property
    def model_name(self) -> str:
        return self.run.model.name

    @property
    def answer_size(self) -> int:
        return self.run.answer_size

    def usage(self) -> TokenUsage:
        """Token counts so far. The number of cached tokens is known when the first deltas have arrived."""
        return self.run.usage()

    async def begin(self) -> list[ChatDelta]:
        with _naming_fields(self._names):
            return self._deltas(await self.run.begin())

    async def forward(self, sink: Callable[[list[ChatDelta]], bool]) -> bool:
        with _naming_fields(self._names):
            return await self.run.forward(lambda deltas: sink(self._deltas(deltas)))

    async def complete(self) -> None:
        await self.forward(lambda _: True)

    @property
    def timed_out(self) -> bool:
        return self.run.timed_out

    def result(self) -> ChatResult:
        result = self.run.result()
        texts = {text.index: text for row in self.run.texts for text in row}
        choices = [self._choice(choice, texts[choice.index]) for choice in result.choices]
        reasoning_tokens = sum(len(self._tokens_of("reasoning", text)) for text in texts.values())
        usage = replace(result.usage, reasoning_tokens=reasoning_tokens)
        return ChatResult(result.model, choices, usage, result.seed, result.timings)

    def _tokens_of(self, part: SectionKind, text: GeneratedText) -> list[int]:
        """Indices of the answer's tokens that belong to one section, for example the reasoning."""
        span = self._parsers[text.index].spans.get(part)
        return [] if span is None else text.tokens_within(*span, self._special_ids)

    def _deltas(self, deltas: list[TextDelta]) -> list[ChatDelta]:
        new = [self._delta(delta) for delta in deltas]
        return [
            delta
            for delta in new
            if delta.content or delta.reasoning or delta.tool_calls or delta.token_ids or delta.content_logprobs
        ]

    def _delta(self, delta: TextDelta) -> ChatDelta:
        parser = self._parsers[delta.answer.index]
        new = parser.push(delta.text, delta.marks)
        if delta.answer.done:
            new.extend(parser.finish())
        logprobs = [delta.answer.scored(entry) for entry in delta.logprobs]
        of_content = self._content_logprobs[delta.answer.index].push(delta, logprobs, parser)
        parts = new.content, new.reasoning, new.tool_calls
        return ChatDelta(delta.answer.index, *parts, delta.token_ids, logprobs, of_content)

    def _choice(self, choice: GeneratedChoice, text: GeneratedText) -> ChatChoice:
        parser = self._parsers[choice.index]
        reason: Any = choice.finish_reason
        if reason == "stop" and parser.has_complete_calls:
            reason = "tool_calls"
        scored, of_content = choice.logprobs, None
        if scored is not None:
            indices = self._tokens_of("content", text)
            of_content = Computed(len(indices), lambda index: scored[indices[index]])
        return ChatChoice(
            parser.parts.content,
            parser.parts.reasoning,
            parser.tool_calls,
            reason,
            choice.stop_reason,
            choice.token_ids,
            choice.logprobs,
            parser.unfinished,
            of_content,
        )


class _ContentLogprobs:
    """Selects the log-probabilities of content tokens in one answer, as soon as the section of each token is known."""

    def __init__(self, special_ids: frozenset[int]) -> None:
        self._special_ids = special_ids
        self._place = 0
        self._tokens: deque[tuple[int, str, ScoredToken]] = deque()

    def push(self, delta: TextDelta, logprobs: Sequence[ScoredToken], parser: AnswerParser) -> list[ScoredToken]:
        """Add the tokens of a delta that the parser has read.

        Returns the log-probabilities of tokens that are now known to belong to the content.
        """
        if logprobs:
            self._tokens += zip(delta.token_ids, delta.pieces, logprobs, strict=True)
        settled: list[tuple[int, str, ScoredToken]] = []
        begin = self._place
        while self._tokens and (self._place < parser.settled_place or delta.answer.done):
            settled.append(self._tokens.popleft())
            self._place += len(settled[-1][1])
        span = parser.spans.get("content")
        if span is None:
            return []
        ids, pieces = [token_id for token_id, _, _ in settled], [piece for _, piece, _ in settled]
        return [settled[index][2] for index in tokens_within(ids, pieces, begin, *span, self._special_ids)]


async def chat(runtime: Runtime, call: Call, spec: ChatSpec) -> ChatRun:
    """Render the chat template, tokenize the prompt, and submit it to the engine.

    Raises InvalidRequest, which names the wrong field, ContextLengthExceeded, and the errors of `Admission.admit`.
    """
    model = _model(runtime, spec)
    check_characters(runtime, model, spec)
    runtime.admission.admit(call, model, spec.cost(model), "messages")
    functions = await _functions(runtime, call, spec)
    tools = await _template_tools(runtime, call, model, spec)
    prompt = await render_prompt(runtime, call, model, spec, tools)
    text, text_format = None, spec.options.text_format
    if text_format is not None:
        text = await runtime.pools.grammar.run(
            lambda: text_grammar(text_format, runtime.grammar_compiler, call.ignore), call
        )
    plan = await runtime.pools.tokenize.run(lambda: _plan(model, spec, functions, tools, prompt.text, text), call)
    prompt_ids = await encode_prompt(runtime, call, model, prompt)
    sections = plan.sections if plan.kinds != ["content"] else ()
    # A longer answer than the memory for keys and values holds ends with `length`, as one that fills the context does.
    options = replace(spec.options, fill_context=True)
    generation = GenerateSpec([prompt_ids], options, model.name, sections, plan.special_ids)
    with _naming_fields(_field_names(generation)):
        run = await generate(runtime, call, generation)
    return ChatRun(run, plan)


async def count_prompt_tokens(runtime: Runtime, call: Call, spec: ChatSpec) -> tuple[str, int]:
    """Count the tokens of a chat's prompt without generating. Returns the model's name and the number of tokens.

    Raises the same errors as `chat`.
    """
    model = _model(runtime, spec)
    check_characters(runtime, model, spec)
    runtime.admission.admit(call, model, spec.cost(model), "messages")
    await _functions(runtime, call, spec)
    prompt = await render_prompt(runtime, call, model, spec, await _template_tools(runtime, call, model, spec))
    return model.name, len(await encode_prompt(runtime, call, model, prompt))


def _model(runtime: Runtime, spec: ChatSpec) -> ServedModel:
    """The model that `spec` names, or the first model with a chat template.

    Raises InvalidRequest if no such model has a chat template.
    """
    models = runtime.candidates(spec.model, "generate")
    with_template = [model for model in models if model.text.chat_templates.by_name]
    if with_template:
        return with_template[0]
    names = ", ".join(f"`{model.name}`" for model in models)
    raise InvalidRequest(f"{names}: the checkpoint has no chat template; use the completion routes", "model")


async def _functions(runtime: Runtime, call: Call, spec: ChatSpec) -> list[Function]:
    """Compile the functions that an answer may call. Raises InvalidRequest for bad tools or a bad tool choice."""
    if not spec.tools and spec.tool_choice.mode == "auto":
        return []
    functions = await runtime.pools.grammar.run(
        lambda: callable_functions(spec.tools, spec.tool_choice, runtime.grammar_compiler), call
    )
    call.ignore(name for function in functions for name in function.ignored)
    if functions and spec.options.ignore_eos:
        raise InvalidRequest(
            "`ignore_eos` cannot be combined with `tools`, which decide where the text ends", "ignore_eos"
        )
    return functions


async def _template_tools(runtime: Runtime, call: Call, model: ServedModel, spec: ChatSpec) -> TemplateTools | None:
    """The tool support of the chat template, or None if the request has no tools and no calls.

    Raises InvalidRequest if the request has tools and the template ignores them.
    """
    shows_tools = bool(spec.tools) and spec.tool_choice.mode != "none"
    if not shows_tools and not any(
        message.get("tool_calls") or message.get("role") == "tool" for message in spec.messages
    ):
        return None
    found = await template_tools(runtime, call, model)
    if shows_tools and found.format is None:
        raise InvalidRequest(
            f"`tools` are not supported by `{model.name}`: its chat template ignores them, so it has no tool format",
            "tools",
        )
    return found


def _plan(
    model: ServedModel,
    spec: ChatSpec,
    functions: Sequence[Function],
    tools: TemplateTools | None,
    prompt: str,
    text: TextGrammar | None,
) -> AnswerPlan:
    """Plan the sections of the answers. prompt: the rendered prompt. text: grammar of the content; None for any text.

    Raises InvalidRequest for a format of the content that cannot be combined with the model's calls.
    """
    template = model.text.chat_templates.choose(with_tools=tools is not None)
    reasoning = reasoning_of(template, prompt, spec.messages, spec.continue_final_message)
    if reasoning is not None and not reasoning.is_open and spec.tool_choice.mode == "required":
        reasoning = None  # a forced call begins with the first token
    row = tools.format if tools is not None and functions else None
    if reasoning is None and row is None:
        return AnswerPlanner().plan()
    text_format = spec.options.text_format
    if text_format is not None and row is not None and row.at_start and spec.tool_choice.mode == "auto":
        raise InvalidRequest(
            f"`response_format` cannot be combined with `tools` for `{model.name}`, whose calls look like other JSON; "
            "set `tool_choice` to `none` or `required`",
            "response_format",
        )
    special = special_tokens(model.tokenizer, [*(row.texts if row is not None else ()), *_texts(reasoning)])
    several = spec.parallel_tool_calls and spec.tool_choice.name is None
    return AnswerPlanner(
        calls=CallGrammar(row, functions, special, several and row.parallel) if row is not None else None,
        is_required=spec.tool_choice.mode == "required",
        at_start=not spec.continue_final_message,
        text=text,
        reasoning=reasoning,
        special=special,
    ).plan()


def _texts(reasoning: Reasoning | None) -> list[str]:
    return [reasoning.begin, reasoning.end] if reasoning is not None else []


def _field_names(generation: GenerateSpec) -> dict[str, str]:
    """Field name in errors of generation to the name of the corresponding chat field."""
    constrained_by_tools = generation.sections and generation.options.text_format is None
    return {"prompt": "messages"} | ({"response_format": "tools"} if constrained_by_tools else {})


@contextmanager
def _naming_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Context manager that replaces field names in errors. names: old name to new name."""
    try:
        yield
    except InvalidRequest as error:
        name = names.get(error.param or "")
        if name is not None:
            error.message = error.message.replace(f"`{error.param}`", f"`{name}`")
            error.param = name
        raise
