"""Bodies of the Ollama dialect, and their conversion to specifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from server.api.chat_fields import ChatObject, JsonSchema, function_call
from server.api.field_kinds import Hint, Unsupported, only
from server.api.fields import Count, Finite, Stops, Texts, TimedBody
from server.errors import InvalidRequest
from server.operations.chat import ChatSpec, FunctionTool
from server.operations.cost import Cost
from server.operations.embed import EmbedSpec
from server.operations.generate import GenerateSpec
from server.operations.generation_options import GenerationOptions
from server.operations.grammar import JsonFormat
from server.operations.runtime import ServedModel

MAX_TOOLS = 128


class OllamaOptions(ChatObject):
    """`repeat_last_n`: the penalty applies to the whole text, or with 0 to nothing. `num_ctx`: at most the model's.

    Options that choose hardware, memory or batches are accepted without effect.
    """

    num_predict: Annotated[int | None, Field(ge=-2, le=1 << 20, description="-1 or -2: fill the context")] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=100)] = None
    top_k: Count | None = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    min_p: Annotated[Finite | None, Field(ge=0, le=1)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    repeat_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    repeat_last_n: Annotated[int | None, only(-1, 0)] = None
    presence_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    seed: Annotated[int | None, Field(ge=-1, lt=1 << 64)] = None
    stop: Stops | None = None
    num_ctx: Annotated[int | None, Field(ge=1)] = None
    mirostat: Annotated[int | None, only(0)] = None
    mirostat_tau: Hint = None
    mirostat_eta: Hint = None
    tfs_z: Annotated[float | None, only(1.0)] = None
    penalize_newline: Annotated[bool | None, only(True)] = None
    num_keep: Hint = None
    num_batch: Hint = None
    num_gpu: Hint = None
    num_thread: Hint = None
    main_gpu: Hint = None
    numa: Hint = None
    low_vram: Hint = None
    f16_kv: Hint = None
    use_mmap: Hint = None
    use_mlock: Hint = None
    logits_all: Annotated[bool | None, only(False)] = None
    vocab_only: Annotated[bool | None, only(False)] = None
    embedding_only: Annotated[bool | None, only(False)] = None


class OllamaBody(TimedBody):
    """Base of the bodies of this dialect. The tag `latest` of a model's name may be left out.

    `keep_alive`: without effect, since models stay loaded.
    """

    options: OllamaOptions | None = None
    keep_alive: Annotated[str | Finite | None, Field(description="accepted without effect: models stay loaded")] = None

    @field_validator("model")
    @classmethod
    def _without_tag(cls, model: str | None) -> str | None:
        return model and model.removesuffix(":latest")

    @property
    def num_ctx(self) -> int | None:
        return None if self.options is None else self.options.num_ctx


class OllamaTextBody(OllamaBody):
    """Base of the bodies that ask for text."""

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None

    def generation_options(self) -> GenerationOptions:
        given = self.options or OllamaOptions()
        limited = given.num_predict is not None and given.num_predict >= 0
        schema = {"type": "object"} if self.format == "json" else self.format or None
        return GenerationOptions(
            stream=self.stream is not False,
            max_new_tokens=given.num_predict if limited else None,
            fill_context=not limited,
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            min_p=given.min_p,
            typical_p=given.typical_p,
            repetition_penalty=1.0 if given.repeat_last_n == 0 else given.repeat_penalty,
            presence_penalty=given.presence_penalty or 0.0,
            frequency_penalty=given.frequency_penalty or 0.0,
            seed=None if given.seed == -1 else given.seed,
            stop=given.stop or (),
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            text_format=JsonFormat(schema, False, "format") if isinstance(schema, dict) else None,
        )


class OllamaFunctionCall(ChatObject):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: dict[str, Any]
    index: Count | None = None


class OllamaToolCall(ChatObject):
    id: str | None = None
    type: Literal["function"] | None = None
    function: OllamaFunctionCall


class OllamaChatMessage(ChatObject):
    """`tool_name`, `tool_call_id`: the call that a message of the role tool answers; without them, the oldest call that
    has no result.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[list[Any] | None, only([])] = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(ChatObject):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None

    def tool(self, index: int) -> FunctionTool:
        """index: place of the tool in the request."""
        place = f"tools[{index}].function"
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=bool(self.strict))


class OllamaTool(ChatObject):
    type: Literal["function"] | None = None
    function: OllamaFunction


@dataclass(frozen=True)
class OllamaSpec:
    """Ask for text. A request without messages or prompt only asks to load the model, and every model is loaded.

    chat: the request as chat messages, or None.
    plain: the request as a prompt, for a model without chat template or a raw prompt; or None.
    num_ctx: context that the client needs, in tokens.
    """

    chat: ChatSpec | None
    plain: GenerateSpec | None
    model: str | None
    stream: bool
    num_ctx: int | None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`."""
        costs = [one.cost(model) for one in (self.chat, self.plain) if one is not None]
        return max(costs, key=lambda cost: cost.input_characters, default=Cost(0, 0, 0))


class OllamaChatBody(OllamaTextBody):
    """`POST /api/chat`. `stream` is true by default."""

    messages: list[OllamaChatMessage] = Field(default_factory=list)
    tools: Annotated[list[OllamaTool] | None, Field(max_length=MAX_TOOLS)] = None

    def spec(self) -> OllamaSpec:
        options = self.generation_options()
        tools = [tool.function.tool(index) for index, tool in enumerate(self.tools or ())]
        chat = ChatSpec(_chat_messages(self.messages), options, self.model, tools=tools, thinking=self.think)
        return OllamaSpec(chat if self.messages else None, None, self.model, options.stream, self.num_ctx)


class OllamaGenerateBody(OllamaTextBody):
    """`POST /api/generate`. `stream` is true by default. `raw`: the prompt is used without the chat template."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    suffix: Annotated[str | None, only("")] = None
    template: Annotated[str | None, only("")] = None
    context: Annotated[list[int] | None, only([])] = None
    images: Annotated[list[Any] | None, only([])] = None
    width: Unsupported = None
    height: Unsupported = None
    steps: Unsupported = None

    def spec(self) -> OllamaSpec:
        """Convert the body. Raises InvalidRequest for fields that need the template that `raw` turns off."""
        options = self.generation_options()
        if not self.prompt and not self.system:
            return OllamaSpec(None, None, self.model, options.stream, self.num_ctx)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [{"role": "user", "content": self.prompt}] if self.prompt else []
        chat = ChatSpec(messages, options, self.model, thinking=self.think)
        plain = None
        if not self.system and not self.think:
            plain = GenerateSpec([self.prompt], options, self.model)
        elif self.raw:
            name = "system" if self.system else "think"
            raise InvalidRequest(f"`{name}` cannot be combined with `raw`, which leaves out the chat template", name)
        return OllamaSpec(None if self.raw else chat, plain, self.model, options.stream, self.num_ctx)


@dataclass(frozen=True)
class OllamaEmbedSpec(EmbedSpec):
    """Ask for vectors. num_ctx: context that the client needs, in tokens."""

    num_ctx: int | None = None


class OllamaEmbedBody(OllamaBody):
    """`POST /api/embed`. Of `options`, only `num_ctx` is checked; the others do not change a vector."""

    input: Texts
    truncate: bool | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None

    def spec(self) -> OllamaEmbedSpec:
        return OllamaEmbedSpec(
            [self.input] if isinstance(self.input, str) else self.input,
            self.model,
            truncation=None if self.truncate is False else "right",
            dimensions=self.dimensions,
            num_ctx=self.num_ctx,
        )


class OllamaEmbeddingsBody(OllamaBody):
    """`POST /api/embeddings`. The vector is not scaled to length 1."""

    prompt: Annotated[str, Field(min_length=1)]

    def spec(self) -> OllamaEmbedSpec:
        return OllamaEmbedSpec([self.prompt], self.model, normalize=False, num_ctx=self.num_ctx)


def _chat_messages(given: list[OllamaChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates take them. Calls get ids, and each tool message names the call that it answers."""
    messages: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []
    for one in given:
        message: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.thinking:
            message["reasoning_content"] = one.thinking
        if one.role == "tool":
            call_id, name = _answered(one, waiting)
            message |= {"tool_call_id": call_id, "name": name}
        if one.tool_calls:
            calls = [(call.id or f"call_{len(messages)}_{i}", call.function) for i, call in enumerate(one.tool_calls)]
            waiting += [(call_id, function.name) for call_id, function in calls]
            message["tool_calls"] = [function_call(call_id, call.name, call.arguments) for call_id, call in calls]
        messages.append(message)
    return messages


def _answered(message: OllamaChatMessage, waiting: list[tuple[str, str]]) -> tuple[str, str]:
    """Id and function of the call that a tool message answers. The call is removed from `waiting`."""
    for call in waiting:
        if message.tool_call_id in (None, call[0]) and message.tool_name in (None, call[1]):
            waiting.remove(call)
            return call
    raise InvalidRequest("`messages` has a message of the role tool without a call before it", "messages")
