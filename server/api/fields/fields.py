"""Types of request fields, with their limits, and base classes of request bodies, for all dialects.

`None` always means that the field was not sent. Operations check which fields can be combined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from server.api.fields.field_kinds import Hint
from server.api.fields.response_format import ResponseFormat
from server.operations.generating.generation_options import GenerationOptions
from server.operations.sequence_sets import SET_NAME
from server.text.tokens.truncation import TruncationSide

MAX_ITEMS = 1024
MAX_WORDS = 256
MAX_STOPS = 16
MAX_FOREIGN_STOPS = 64
"""Maximum number of stop strings in dialects whose original servers have no limit: editors send more than `MAX_STOPS`.
"""
MAX_ALLOWED_SEQUENCES = 1 << 16
MAX_STOP_CHARACTERS = 256
MAX_NEW_TOKENS = 1 << 20

ModelName = Annotated[
    str | None, Field(min_length=1, max_length=256, description="a loaded model; default: the first that can answer")
]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
ShortText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Instruction = Annotated[str, Field(min_length=1, max_length=4096)]
Language = Annotated[str, Field(min_length=2, max_length=32)]
IdText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
AnswerCount = Annotated[int, Field(ge=1, le=16)]
BeamCount = Annotated[int, Field(ge=1, le=512)]

_TEXT = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def form_value(value: object) -> object:
    """Convert text of a form to an integer or boolean. Other text, and values from JSON, are returned unchanged."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:20])
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def form_flag(value: object) -> object:
    """Read a boolean, which a form sends as text: 0, 1, true or false.

    Other text of a form is converted as `form_value` does. Any other value is returned unchanged.
    """
    found = form_value(value)
    return bool(found) if isinstance(found, int) and found in (0, 1) else found


SplitSentences = Annotated[bool | Literal["nonewlines"] | None, BeforeValidator(form_flag)]
"""Whether texts are translated sentence by sentence. "nonewlines": yes, and a line break does not end a sentence."""


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_ITEMS}


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_ids(value: object) -> bool:
    return _is_text(value) or _is_ids(value)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(map(_is_text, value))


def _one_or_list(one: Callable[[object], bool], item: Callable[[object], bool], expected: str) -> BeforeValidator:
    """Create a validator for one value, or for a list of 1 to `MAX_ITEMS` items.

    one, item: whether a single value, or an item of a list, is valid.
    expected: text that describes valid values in an error.
    """

    def check(value: object) -> object:
        if one(value):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("must be a string or a list of at least one item")
        if len(value) > MAX_ITEMS:
            raise ValueError(f"has {len(value)} items; the limit is {MAX_ITEMS}")
        if all(map(item, value)):
            return value
        raise ValueError(f"must be {expected}")

    return BeforeValidator(check)


def _same_kind(value: Any) -> Any:
    if isinstance(value, list) and len({type(item) for item in value}) > 1:
        raise ValueError(f"must be {_PROMPT}")
    return value


def absent(*values: int) -> BeforeValidator:
    """Create a validator that converts `values` to None: integers that another server treats as null, such as -1."""
    return BeforeValidator(lambda value: None if type(value) is int and value in values else value)


def one_or_many(value: object) -> object:
    """Put a single string into a list. Any other value is returned unchanged."""
    return [value] if isinstance(value, str) else value


def _are_sequences(value: object) -> object:
    """Check the field `allowed_sequences`: texts and lists of token ids, or a stored set. Raises ValueError.

    Replaces pydantic's check, whose errors would be long and repeat texts.
    """
    if isinstance(value, str):
        if not re.fullmatch(SET_NAME, value):
            raise ValueError("must be a list of sequences, or the name of a stored set")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one string or list of token ids, or the name of a stored set")
    if len(value) > MAX_ALLOWED_SEQUENCES:
        raise ValueError(f"has {len(value):,} items; the limit is {MAX_ALLOWED_SEQUENCES:,}")
    wrong = next((number for number, item in enumerate(value, 1) if not (item and _is_text_or_ids(item))), None)
    if wrong is not None:
        raise ValueError(f"must have strings and lists of token ids, not empty; item {wrong:,} is neither")
    return value


_PAIR = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 2}
_PROMPT = "a string, a list of strings, token ids, or a list of lists of token ids"

Prompt = Annotated[
    Any,
    AfterValidator(_same_kind),
    _one_or_list(_is_text_or_ids, _is_text_or_ids, _PROMPT),
    WithJsonSchema({"anyOf": [_TEXT, _list_of(_TEXT), _IDS, _list_of(_IDS)]}),
]
TextsOrIds = Annotated[
    Any,
    _one_or_list(_is_text_or_ids, _is_text_or_ids, "a string, token ids, or a list of either"),
    WithJsonSchema({"anyOf": [_TEXT, _IDS, _list_of({"anyOf": [_TEXT, _IDS]})]}),
]
Texts = Annotated[
    Any,
    _one_or_list(_is_text, _is_text, "a string or a list of strings"),
    WithJsonSchema({"anyOf": [_TEXT, _list_of(_TEXT)]}),
]
TextsOrPairs = Annotated[
    Any,
    _one_or_list(
        _is_text, lambda v: _is_text(v) or _is_pair(v), "a string, or a list of strings or of pairs of strings"
    ),
    WithJsonSchema({"anyOf": [_TEXT, _list_of({"anyOf": [_TEXT, _PAIR]})]}),
]
IdLists = Annotated[
    Any,
    _one_or_list(_is_ids, lambda v: v == [] or _is_ids(v), "token ids, or a list of lists of token ids"),
    WithJsonSchema({"anyOf": [_IDS, _list_of({"type": "array", "items": {"type": "integer", "minimum": 0}})]}),
]
_SEQUENCES = {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1, "maxItems": MAX_ALLOWED_SEQUENCES}
AllowedSequences = Annotated[
    Any,
    BeforeValidator(_are_sequences),
    WithJsonSchema({"anyOf": [_TEXT | {"pattern": f"^{SET_NAME}$"}, _SEQUENCES]}),
]
Side = Annotated[
    TruncationSide,
    BeforeValidator(lambda side: side.lower() if isinstance(side, str) else side),
    Field(description="left or right, in any case"),
]
Stops = Annotated[list[ShortText], BeforeValidator(one_or_many), Field(max_length=MAX_STOPS)]
ForeignStops = Annotated[
    list[ShortText],
    BeforeValidator(lambda value: [text for text in value if text != ""] if isinstance(value, list) else value),
    BeforeValidator(one_or_many),
    Field(max_length=MAX_FOREIGN_STOPS),
]
"""Stop strings in dialects of other servers. Empty strings are dropped."""
TopPOrZero = Annotated[Finite, Field(ge=0, le=1)]
"""`top_p` in dialects in which 0 is valid and keeps only the most likely token."""


TIMEOUT_DESCRIPTION = "milliseconds for the whole answer; default: the server's limit, usually none"


class Body(BaseModel):
    """Base of every request body. It has strict types and refuses unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: ModelName = None

    def field_names(self) -> Mapping[str, str]:
        """Field names that operations use in errors, and the names that this request has used for the same fields.

        They take precedence over the names in `ErrorShape.fields`.
        """
        return {}


class TimedBody(Body):
    """Base of the bodies of requests that need the engine: they have a time limit, `timeout_ms`."""

    timeout_ms: Annotated[int | None, Field(ge=1, description=TIMEOUT_DESCRIPTION)] = None


class SamplingFields(TimedBody):
    """Sampling and decoding options (docs/decoding.md) that generating routes of several dialects accept."""

    stream: bool | None = None
    min_new_tokens: Count | None = None
    do_sample: bool | None = None
    temperature: Annotated[Finite | None, Field(ge=0, le=100)] = None
    top_k: Count | None = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    min_p: Annotated[Finite | None, Field(ge=0, le=1)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    repetition_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    presence_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    no_repeat_ngram_size: Count | None = None
    encoder_no_repeat_ngram_size: Count | None = None
    logit_bias: Annotated[
        dict[IdText, Annotated[Finite, Field(ge=-100, le=100)]] | None,
        Field(description="token ids, as strings, and what to add to their logits"),
    ] = None
    bad_words: Annotated[list[ShortText] | None, Field(max_length=256)] = None
    allowed_token_ids: Annotated[TokenIds | None, Field(min_length=1)] = None
    suppress_tokens: TokenIds | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    num_beams: BeamCount | None = None
    length_penalty: Annotated[Finite | None, Field(ge=-100, le=100)] = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: AnswerCount | None = None
    diversity_penalty: Annotated[Finite | None, Field(ge=0, le=100)] = None
    stop: Stops | None = None
    stop_token_ids: Annotated[TokenIds | None, Field(max_length=64)] = None
    include_stop: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    user: Hint = None
    metadata: Hint = None

    def options(self, **renamed: Any) -> GenerationOptions:
        """Create `GenerationOptions` from the fields that the client has sent.

        renamed: further options, which the dialect has under other names. An option of None was not sent.
        """
        sent = {name: getattr(self, name) for name in _OPTION_NAMES & type(self).model_fields.keys()} | renamed
        if self.logit_bias is not None:
            sent["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return GenerationOptions(**{name: value for name, value in sent.items() if value is not None})


class GenerationFields(SamplingFields):
    """All options for generation that docs/decoding.md lists, for the native dialect."""

    max_new_tokens: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    n: AnswerCount | None = None
    best_of: AnswerCount | None = None
    num_return_sequences: BeamCount | None = None
    allowed_sequences: AllowedSequences | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    prompt_logprobs: bool | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_attention: bool | None = None
    truncate: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    forced_bos_token: Annotated[str | int | None, Field(description="a token, or its id")] = None
    decoder_prefix: Annotated[str | None, Field(min_length=1, max_length=4096)] = None
    source_lang: Language | None = None
    target_lang: Language | None = None
    response_format: ResponseFormat | None = None
    store: Hint = None

    def options(self, **renamed: Any) -> GenerationOptions:
        text_format = self.response_format and self.response_format.text_format()
        return super().options(text_format=text_format, **renamed)


_OPTION_NAMES = {field.name for field in fields(GenerationOptions)}
