"""Request bodies of the Ollama dialect, and their conversion to the specifications of operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from server.api.dialects.ollama.messages import (
    AnyTool,
    OllamaChatMessage,
    OllamaToolChoice,
    chat_messages,
    chosen_tool,
    dropped_tools,
    function_tools,
)
from server.api.dialects.ollama.options import OllamaOptions
from server.api.fields.field_kinds import Hint, only, wish
from server.api.fields.fields import Texts, TimedBody
from server.api.fields.keep_alive import unloads
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec
from server.operations.cost import Cost
from server.operations.generating.generate import GenerateSpec
from server.operations.generating.generation_options import GenerationOptions, SamplingDefaults
from server.operations.generating.grammar import JsonFormat
from server.operations.ranking.embed import EmbedSpec
from server.operations.served_model import ServedModel

SAMPLING = SamplingDefaults(do_sample=True, temperature=0.8, top_k=40, top_p=0.9)
"""Sampling of a request without sampling options, as Ollama documents it. Ollama's default repeat penalty, 1, has no
effect."""
UNKNOWN_OPTION = "options:unknown"
"""Name that stands for all unknown options in `X-Ignored-Parameters`. Text of the client is never repeated there."""
NUM_CTX = "options.num_ctx"
"""Name in `X-Ignored-Parameters` of a requested context that is longer than the model's."""
_TOO_LONG = Field(description="dropped, and named: a conversation that does not fit the context is refused")
_IMAGE = Field(description="of an image; not supported, except as 0")
_KEEP = Field(description="time that the model stays loaded, as 300 or 5m; unused if all models load at the start")
_MISPLACED = Field(description="dropped, and named: belongs into `options`")


class OllamaBody(TimedBody):
    """Base of the bodies of this dialect. A model's name may end in the tag `:latest`, which is removed.

    `keep_alive`: time that the model stays loaded without requests: with 0 it is unloaded at once, with a negative
        value never. In a request without text, 0 unloads the model. No effect if all models are loaded at the start.
    """

    options: OllamaOptions | None = None
    keep_alive: Annotated[Any, _KEEP] = None

    @field_validator("model")
    @classmethod
    def _without_tag(cls, model: str | None) -> str | None:
        return model and model.removesuffix(":latest")

    @property
    def num_ctx(self) -> int:
        """Context length that the client asks for, in tokens; 0 if it does not ask for a length."""
        return max(self.options.num_ctx or 0, 0) if self.options else 0

    def dropped(self) -> Iterator[str]:
        """Names of dropped parameters that the schema cannot find: one name that stands for all unknown options."""
        if self.options and self.options.has_unknown:
            yield UNKNOWN_OPTION


class OllamaTextBody(OllamaBody):
    """Base of the bodies that ask for text.

    The fields from `temperature` to `logit_bias` belong into `options`. Some clients send them here, where Ollama
    ignores them; this server drops them and names them in `X-Ignored-Parameters`.
    """

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Annotated[str, Field(max_length=16)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    truncate: Annotated[Any, wish(False), _TOO_LONG] = None
    shift: Annotated[Any, wish(False), _TOO_LONG] = None
    debug_render_only: Annotated[
        bool | None, only(False), Field(alias="_debug_render_only", description="answer with the prompt; not supported")
    ] = None
    temperature: Annotated[Any, wish(), _MISPLACED] = None
    top_p: Annotated[Any, wish(), _MISPLACED] = None
    top_k: Annotated[Any, wish(), _MISPLACED] = None
    max_tokens: Annotated[Any, wish(), _MISPLACED] = None
    max_output_tokens: Annotated[Any, wish(), _MISPLACED] = None
    presence_penalty: Annotated[Any, wish(), _MISPLACED] = None
    frequency_penalty: Annotated[Any, wish(), _MISPLACED] = None
    seed: Annotated[Any, wish(), _MISPLACED] = None
    stop: Annotated[Any, wish([]), _MISPLACED] = None
    logit_bias: Annotated[Any, wish({}), _MISPLACED] = None
    user: Hint = None
    metadata: Hint = None

    @property
    def thinking(self) -> bool | None:
        """Whether the model reasons before it answers; None for the template's default.

        A text is an effort, such as "high". Every text but "none" means that the model reasons.
        """
        return self.think != "none" if isinstance(self.think, str) else self.think

    @property
    def switch(self) -> bool | None:
        return self.think if isinstance(self.think, bool) else None

    @property
    def effort(self) -> str | None:
        return self.think if isinstance(self.think, str) else None

    def without_text(self, stream: bool) -> OllamaSpec:
        """The specification of a request without text. It unloads the model if `keep_alive` is 0, or else loads it."""
        return OllamaSpec(None, None, self.model, stream, self.num_ctx, unloads(self.keep_alive))

    def generation_options(self) -> GenerationOptions:
        # As in Ollama, an empty schema stands for any object.
        schema = {"type": "object"} if self.format in ("json", {}) else self.format or None
        return GenerationOptions(
            stream=self.stream is not False,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            text_format=JsonFormat(schema, False, "format") if isinstance(schema, dict) else None,
            **(self.options or OllamaOptions()).sampling(),
            sampling_defaults=SAMPLING,
        )


@dataclass(frozen=True)
class OllamaSpec:
    """Request for text. If `chat` and `plain` are both None, the request only loads or unloads the model.

    chat: the request as a chat, or None for a raw prompt.
    plain: the request as a prompt, for a model without chat template; None if the request needs a template.
    num_ctx: context length that the client asks for, in tokens; 0 if it does not ask for a length.
    unloads: the request only unloads the model, so it does not load the model first.
    """

    chat: ChatSpec | None
    plain: GenerateSpec | None
    model: str | None
    stream: bool
    num_ctx: int
    unloads: bool = False

    @property
    def loads_model(self) -> bool:
        """Whether the model is loaded before the operation runs; not for a request that unloads it."""
        return not self.unloads

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission.

        If both `chat` and `plain` are set, the larger input counts.
        """
        costs = [spec.cost(model) for spec in (self.chat, self.plain) if spec is not None]
        return max(costs, key=lambda cost: cost.input_characters, default=Cost(0, 0, 0))


class OllamaChatBody(OllamaTextBody):
    """Body of `POST /api/chat`. `stream` is true by default. Without messages, the model is only loaded or unloaded."""

    messages: list[OllamaChatMessage] | None = None
    tools: list[AnyTool] | None = None
    tool_choice: OllamaToolChoice = "auto"

    def spec(self) -> OllamaSpec:
        options = self.generation_options()
        chat = ChatSpec(
            chat_messages(self.messages or ()),
            options,
            self.model,
            tools=function_tools(self.tools or ()),
            tool_choice=chosen_tool(self.tool_choice),
            thinking=self.switch,
            thinking_field="think",
            reasoning_effort=self.effort,
        )
        if not self.messages:
            return self.without_text(options.stream)
        return OllamaSpec(chat, None, self.model, options.stream, self.num_ctx)

    def dropped(self) -> Iterator[str]:
        yield from super().dropped()
        yield from dropped_tools(self.tools or ())


class OllamaGenerateBody(OllamaTextBody):
    """Body of `POST /api/generate`. `stream` is true by default.

    Without `prompt`, the model is only loaded or unloaded. `raw`: the prompt is used without the chat template.
    """

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: Annotated[str | None, only("")] = None
    template: Annotated[str | None, only("")] = None
    context: Annotated[list[int] | None, only([])] = None
    images: Annotated[list[Any] | None, only([])] = None
    width: Annotated[Any, only(0), _IMAGE] = None
    height: Annotated[Any, only(0), _IMAGE] = None
    steps: Annotated[Any, only(0), _IMAGE] = None

    def spec(self) -> OllamaSpec:
        """Convert the body. Raises InvalidRequest if `raw` is set with a field that needs the chat template."""
        options = self.generation_options()
        if not self.prompt:
            return self.without_text(options.stream)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages.append({"role": "user", "content": self.prompt})
        chat = ChatSpec(
            messages, options, self.model, thinking=self.switch, thinking_field="think", reasoning_effort=self.effort
        )
        plain = None
        if not self.system and not self.thinking:
            plain = GenerateSpec([self.prompt], options, self.model)
        elif self.raw:
            name = "system" if self.system else "think"
            raise InvalidRequest(f"`{name}` cannot be combined with `raw`, which leaves out the chat template", name)
        return OllamaSpec(None if self.raw else chat, plain, self.model, options.stream, self.num_ctx)


@dataclass(frozen=True)
class OllamaEmbedSpec(EmbedSpec):
    """Request for vectors. Without inputs, the request only loads or unloads the model.

    num_ctx: context length that the client asks for, in tokens; 0 if it does not ask for a length.
    unloads: the request only unloads the model, so it does not load the model first.
    """

    num_ctx: int = 0
    unloads: bool = False

    @property
    def loads_model(self) -> bool:
        """Whether the model is loaded before the operation runs; not for a request that unloads it."""
        return not self.unloads


class OllamaEmbedBody(OllamaBody):
    """Body of `POST /api/embed`. `options` have no effect on the vectors. Without `input`, the model is only loaded or
    unloaded."""

    input: Annotated[Texts | None, BeforeValidator(lambda texts: texts or None)] = None
    truncate: bool | None = None
    dimensions: Annotated[int | None, Field(ge=0)] = None

    def spec(self) -> OllamaEmbedSpec:
        return OllamaEmbedSpec(
            [self.input] if isinstance(self.input, str) else self.input or (),
            self.model,
            truncation=None if self.truncate is False else "right",
            dimensions=self.dimensions or None,
            num_ctx=self.num_ctx,
            unloads=not self.input and unloads(self.keep_alive),
        )


class OllamaEmbeddingsBody(OllamaBody):
    """Body of `POST /api/embeddings`. The vector of the answer is not normalized to length 1."""

    prompt: str | None = None

    def spec(self) -> OllamaEmbedSpec:
        texts = [self.prompt] if self.prompt else []
        return OllamaEmbedSpec(
            texts,
            self.model,
            normalize=False,
            num_ctx=self.num_ctx,
            unloads=not texts and unloads(self.keep_alive),
        )
