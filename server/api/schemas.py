"""What clients may send, field by field: strict types, bounds, no unknown fields. API.md sections 3 to 5.

`None` always means "not given". What may not be combined is refused by `refuse_contradictions`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from server.api.response_format import ResponseFormat
from server.errors import InvalidRequest

MAX_ITEMS = 1024
MAX_WORDS = 256
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256

Model = Annotated[str | None, Field(min_length=1, max_length=256, description="a loaded model; default: the first fit")]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = list[TokenId]
ShortText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Language = Annotated[str, Field(min_length=2, max_length=32)]
IdText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]

_TEXT = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_ITEMS}


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


def _check_list(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("has to be a string or a list that is not empty")
    return value


def _check_length(value: list[Any]) -> None:
    if len(value) > MAX_ITEMS:
        raise ValueError(f"has {len(value)} items; the limit is {MAX_ITEMS}")


def _prompt(value: object) -> object:
    if isinstance(value, str) or _is_ids(value):
        return value
    items = _check_list(value)
    _check_length(items)
    if all(isinstance(item, str) for item in items) or all(_is_ids(item) for item in items):
        return items
    raise ValueError("has to be a string, a list of strings, token ids, or a list of lists of token ids")


def _texts_or_ids(value: object) -> object:
    if isinstance(value, str) or _is_ids(value):
        return value
    items = _check_list(value)
    _check_length(items)
    if all(isinstance(item, str) or _is_ids(item) for item in items):
        return items
    raise ValueError("has to be a string, token ids, or a list of either")


def _texts(value: object) -> object:
    if isinstance(value, str):
        return value
    items = _check_list(value)
    _check_length(items)
    if all(isinstance(item, str) for item in items):
        return items
    raise ValueError("has to be a string or a list of strings")


def _texts_or_pairs(value: object) -> object:
    if isinstance(value, str):
        return value
    items = _check_list(value)
    _check_length(items)
    for item in items:
        pair = isinstance(item, list) and len(item) in (1, 2) and all(isinstance(part, str) for part in item)
        if not isinstance(item, str) and not pair:
            raise ValueError("has to be a string, or a list of strings or of pairs of strings")
    return items


def _id_lists(value: object) -> object:
    if _is_ids(value):
        return value
    items = _check_list(value)
    _check_length(items)
    if all(item == [] or _is_ids(item) for item in items):
        return items
    raise ValueError("has to be token ids, or a list of lists of token ids")


def _strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


_PAIR = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 2}

Prompt = Annotated[
    Any,
    BeforeValidator(_prompt),
    WithJsonSchema({"anyOf": [_TEXT, _list_of(_TEXT), _IDS, _list_of(_IDS)]}),
]
TextsOrIds = Annotated[
    Any,
    BeforeValidator(_texts_or_ids),
    WithJsonSchema({"anyOf": [_TEXT, _IDS, _list_of({"anyOf": [_TEXT, _IDS]})]}),
]
Texts = Annotated[Any, BeforeValidator(_texts), WithJsonSchema({"anyOf": [_TEXT, _list_of(_TEXT)]})]
TextsOrPairs = Annotated[
    Any,
    BeforeValidator(_texts_or_pairs),
    WithJsonSchema({"anyOf": [_TEXT, _list_of({"anyOf": [_TEXT, _PAIR]})]}),
]
IdLists = Annotated[
    Any,
    BeforeValidator(_id_lists),
    WithJsonSchema({"anyOf": [_IDS, _list_of({"type": "array", "items": {"type": "integer", "minimum": 0}})]}),
]
Stops = Annotated[list[ShortText], BeforeValidator(_strings), Field(max_length=MAX_STOPS)]


class Body(BaseModel):
    """Base of every request: strict, nothing unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Model = None


class TimedBody(Body):
    """Base of every request that waits for the engine."""

    timeout_ms: Annotated[int | None, Field(ge=1, description="milliseconds; default 60000")] = None


SAMPLER_NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "typical_p": (1,),
}


class GenerationFields(TimedBody):
    """How to decode: the fields that `/generate` and `/translate` share."""

    stream: bool | None = None
    max_new_tokens: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
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
    n: Annotated[int | None, Field(ge=1, le=16)] = None
    best_of: Annotated[int | None, Field(ge=1, le=16)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    num_return_sequences: Annotated[int | None, Field(ge=1, le=16)] = None
    length_penalty: Annotated[Finite | None, Field(ge=-100, le=100)] = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: Annotated[int | None, Field(ge=1, le=16)] = None
    diversity_penalty: Annotated[Finite | None, Field(ge=0, le=100)] = None
    stop: Stops | None = None
    stop_token_ids: Annotated[TokenIds | None, Field(max_length=64)] = None
    include_stop: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
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
    user: Any = None
    metadata: Any = None
    store: Any = None

    def sampler(self, neutral: bool = False) -> str | None:
        """The first sampler field with a value; without `neutral`, only one that changes the distribution."""
        for name, values in SAMPLER_NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and (neutral or value not in values):
                return name
        return None

    @property
    def has_format(self) -> bool:
        """Whether not every text will do."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def candidates(self) -> int:
        """Rows to make for each prompt."""
        return self.best_of or self.n or 1

    @property
    def is_ranked(self) -> bool:
        """Whether only the best of the candidates are wanted."""
        return self.candidates > (self.n or 1)


def refuse_contradictions(body: GenerationFields, num_beams: int) -> None:
    """Raises InvalidRequest for fields that exclude each other; `num_beams` is the resolved one."""
    beams = num_beams > 1
    returned = body.num_return_sequences or 1
    if returned > num_beams:
        raise InvalidRequest(
            f"`num_return_sequences` {returned} is more than `num_beams` {num_beams}", "num_return_sequences"
        )
    if body.candidates < (body.n or 1):
        raise InvalidRequest(f"`best_of` {body.best_of} is less than `n` {body.n}", "best_of")
    if body.is_ranked and beams:
        raise InvalidRequest("`best_of` does not go with beam search; use `num_return_sequences`", "best_of")
    if body.is_ranked and body.stream:
        raise InvalidRequest("`best_of` above `n` does not go with `stream`: the best is known at the end", "best_of")
    if beams and (body.n or 1) > 1:
        raise InvalidRequest("`n` does not go with beam search; use `num_return_sequences`", "n")
    if beams and body.stop and body.skip_special_tokens is False:
        raise InvalidRequest("`stop` with beam search needs `skip_special_tokens`", "skip_special_tokens")
    if beams and any("\ufffd" in stop for stop in body.stop or ()):
        raise InvalidRequest("`stop` with beam search looks at bytes, and U+FFFD stands for none", "stop")
    if beams and body.do_sample:
        raise InvalidRequest(f"`do_sample` does not go with beam search (`num_beams` is {num_beams})", "do_sample")
    sampler = body.sampler()
    if sampler is not None and beams:
        raise InvalidRequest(f"`{sampler}` does not go with beam search (`num_beams` is {num_beams})", sampler)
    if sampler is not None and body.do_sample is False:
        raise InvalidRequest(f"`{sampler}` would have no effect, `do_sample` is false", sampler)
    if not beams and body.length_penalty not in (None, 1.0):
        raise InvalidRequest("`length_penalty` needs beam search (`num_beams` above 1)", "length_penalty")
    if not beams and body.early_stopping:
        raise InvalidRequest("`early_stopping` needs beam search (`num_beams` above 1)", "early_stopping")
    _refuse_groups(body, num_beams)
    for name, given in (("stream", body.stream), ("stop", body.stop and not beams)):
        if body.return_attention and given:
            raise InvalidRequest(f"`return_attention` does not go with `{name}`", "return_attention")
    if body.top_logprobs and not (body.logprobs or body.prompt_logprobs):
        raise InvalidRequest("`top_logprobs` needs `logprobs` or `prompt_logprobs` to be true", "top_logprobs")
    if body.ignore_eos and body.has_format:
        raise InvalidRequest(
            "`ignore_eos` does not go with `response_format`, which says where the text ends", "ignore_eos"
        )
    if body.include_stop and not (body.stop or body.stop_token_ids):
        raise InvalidRequest("`include_stop` needs `stop` or `stop_token_ids`", "include_stop")


def _refuse_groups(body: GenerationFields, num_beams: int) -> None:
    groups = body.num_beam_groups or 1
    if num_beams % groups:
        raise InvalidRequest(f"`num_beam_groups` {groups} does not divide `num_beams` {num_beams}", "num_beam_groups")
    if groups > 1 and not body.diversity_penalty:
        raise InvalidRequest(
            "`num_beam_groups` needs a `diversity_penalty` above 0, or all groups find the same", "num_beam_groups"
        )
    if body.diversity_penalty and groups == 1:
        raise InvalidRequest("`diversity_penalty` needs `num_beam_groups` above 1", "diversity_penalty")


class GenerateBody(GenerationFields):
    """`POST /generate`."""

    prompt: Prompt


class TranslateBody(GenerationFields):
    """`POST /translate`."""

    inputs: Texts
    num_alternatives: Annotated[int | None, Field(ge=0, le=15)] = None
    split_sentences: bool | None = None


class EmbedAllBody(TimedBody):
    """`POST /embed_all`. Everything `/embed` takes but `pooling`."""

    inputs: TextsOrIds
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None


class EmbedBody(EmbedAllBody):
    """`POST /embed`."""

    pooling: Literal["mean", "cls", "last", "max"] | None = None


class ClassifyBody(TimedBody):
    """`POST /classify`. A list of strings is several texts; a pair is a list inside the list."""

    inputs: TextsOrPairs
    top_k: Annotated[int | None, Field(ge=1)] = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None


class Sentences(BaseModel):
    """A sentence, and those to compare with it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]


class SimilarityBody(TimedBody):
    """`POST /similarity`."""

    inputs: Sentences
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None


class RerankBody(TimedBody):
    """`POST /rerank`. `raw_scores`: logits instead of numbers from 0 to 1."""

    query: Annotated[str, Field(min_length=1)]
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None


class FillMaskBody(TimedBody):
    """`POST /fill_mask`. `targets`: consider only these words, each one token of the vocabulary."""

    inputs: Texts
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None
    targets: Annotated[list[ShortText] | None, BeforeValidator(_strings), Field(min_length=1, max_length=MAX_WORDS)] = (
        None
    )


class TokenClassifyBody(TimedBody):
    """`POST /token_classify`. `stride`: tokens that the windows of a long text have in common."""

    inputs: Texts
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    stride: Count | None = None


class QuestionAnswerBody(TimedBody):
    """`POST /question_answer`."""

    question: Annotated[str, Field(min_length=1)]
    context: Annotated[str, Field(min_length=1)]
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None


class ZeroShotClassifyBody(TimedBody):
    """`POST /zero_shot_classify`. `hypothesis_template`: what each label says of a text, with `{}` in its place."""

    inputs: Texts
    candidate_labels: Annotated[list[ShortText], Field(min_length=1, max_length=MAX_ITEMS)]
    hypothesis_template: Annotated[str | None, Field(min_length=2, max_length=1024)] = None
    multi_label: bool | None = None


class TokenizeBody(Body):
    """`POST /tokenize`."""

    inputs: Texts
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    ids: IdLists
    skip_special_tokens: bool | None = None
