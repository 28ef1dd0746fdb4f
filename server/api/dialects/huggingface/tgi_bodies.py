"""Request bodies of the text-generation-inference dialect, and their conversion to a `GenerateSpec`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from server.api.fields.field_kinds import Hint, only
from server.api.fields.fields import Finite, Stops, TimedBody
from server.api.fields.response_format import MAX_PATTERN_CHARACTERS
from server.errors import InvalidRequest
from server.operations.generating.generate import GenerateSpec
from server.operations.generating.generation_options import SAMPLER_NEUTRAL, GenerationOptions
from server.operations.generating.grammar import JsonFormat, RegexFormat, TextFormat

DEFAULT_NEW_TOKENS = 100


def _json_text(value: object) -> object:
    """Parse a JSON schema that was sent as text; return other values unchanged. Raises ValueError for invalid JSON."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        raise ValueError("must be a JSON schema") from None


class _TgiSchema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class JsonGrammar(_TgiSchema):
    """JSON that matches a schema."""

    type: Literal["json", "json_object"]
    value: Annotated[dict[str, Any], BeforeValidator(_json_text)]

    def text_format(self) -> TextFormat:
        return JsonFormat(self.value, place="parameters.grammar.value")


class NamedSchema(_TgiSchema):
    """A JSON schema with a name. The name has no effect."""

    name: Hint = None
    schema_: Annotated[dict[str, Any], BeforeValidator(_json_text), Field(alias="schema", description="a JSON Schema")]


class NamedSchemaGrammar(_TgiSchema):
    """JSON that matches a schema, which the client sends with a name."""

    type: Literal["json_schema"]
    value: NamedSchema

    def text_format(self) -> TextFormat:
        return JsonFormat(self.value.schema_, place="parameters.grammar.value.schema")


class RegexGrammar(_TgiSchema):
    """A text that matches a regular expression as a whole."""

    type: Literal["regex"]
    value: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]

    def text_format(self) -> TextFormat:
        return RegexFormat(self.value)


class TgiParameters(_TgiSchema):
    """Options of text generation. Tokens are sampled if `do_sample` is true or a sampling option is not neutral."""

    adapter_id: Annotated[str | None, Field(min_length=1, max_length=256, description="the same as `model`")] = None
    best_of: Annotated[int | None, Field(ge=1, le=16)] = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    grammar: Annotated[JsonGrammar | NamedSchemaGrammar | RegexGrammar | None, Field(discriminator="type")] = None
    max_new_tokens: Annotated[int | None, Field(ge=1, le=1 << 20, description="default 100")] = None
    repetition_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    return_full_text: bool | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    stop: Stops | None = None
    temperature: Annotated[Finite | None, Field(gt=0, le=100)] = None
    top_k: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    top_n_tokens: Annotated[int | None, Field(ge=0, le=20)] = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    truncate: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    watermark: Annotated[Any, only(False)] = None


class TgiBody(TimedBody):
    """Body of `POST /generate` with the field `inputs`."""

    inputs: Annotated[str, Field(min_length=1)]
    parameters: TgiParameters | None = None
    stream: bool | None = None

    def given(self) -> TgiParameters:
        return self.parameters or TgiParameters()

    def spec(self) -> GenerateSpec:
        return self._spec(bool(self.stream))

    def streaming_spec(self) -> GenerateSpec:
        """The specification for `POST /generate_stream`. Raises InvalidRequest for `stream` false."""
        if self.stream is False:
            raise InvalidRequest("`stream` cannot be false here; use /generate", "stream")
        return self._spec(True)

    def _spec(self, stream: bool) -> GenerateSpec:
        given = self.given()
        count = given.best_of or 1
        samples = bool(given.do_sample) or any(
            (value := getattr(given, name, None)) is not None and value not in neutral
            for name, neutral in SAMPLER_NEUTRAL.items()
        )
        if given.decoder_input_details and stream:
            raise InvalidRequest("`decoder_input_details` cannot be combined with streaming", "decoder_input_details")
        if count > 1 and (stream or not samples):
            raise InvalidRequest("`best_of` above 1 needs sampling, and cannot be combined with streaming", "best_of")
        scored = stream or bool(given.details) or count > 1
        sent = {name: getattr(given, name) for name in _SAME_OPTIONS if getattr(given, name) is not None}
        options = GenerationOptions(
            **sent,
            stream=stream,
            max_new_tokens=given.max_new_tokens or DEFAULT_NEW_TOKENS,
            do_sample=samples,
            n=count,
            num_beams=1,
            include_stop=bool(given.stop),
            logprobs=scored,
            top_logprobs=(given.top_n_tokens or 0) if scored else 0,
            prompt_logprobs=bool(given.decoder_input_details and given.details),
            text_format=given.grammar.text_format() if given.grammar else None,
        )
        return GenerateSpec([self.inputs], options, given.adapter_id or self.model)


_SAME_OPTIONS = (
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "truncate",
    "typical_p",
)
"""Options with the same name and meaning in `GenerationOptions`."""
