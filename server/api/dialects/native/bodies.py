"""Request bodies of the native dialect, and their conversion to the specifications of operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from server.api.fields.fields import (
    MAX_ITEMS,
    MAX_WORDS,
    Body,
    Count,
    GenerationFields,
    IdLists,
    Instruction,
    Prompt,
    ShortText,
    Side,
    SplitSentences,
    Texts,
    TextsOrIds,
    TextsOrPairs,
    TimedBody,
    one_or_many,
)
from server.errors import InvalidRequest
from server.operations.generating.generate import GenerateSpec
from server.operations.labelling.classify import ClassifySpec
from server.operations.labelling.fill_mask import DEFAULT_TOP_K, FillMaskSpec
from server.operations.labelling.labelled_entities import DEFAULT_THRESHOLD, MAX_LABELS, LabelledEntitiesSpec
from server.operations.labelling.question_answer import QuestionAnswerSpec
from server.operations.labelling.token_classify import TokenClassifySpec
from server.operations.labelling.zero_shot_classify import DEFAULT_TEMPLATE, ZeroShotClassifySpec
from server.operations.ranking.embed import EmbedAllSpec, EmbedSpec
from server.operations.ranking.embed_sparse import EmbedSparseSpec
from server.operations.ranking.late_chunking import MAX_CHUNKS, EmbedChunksSpec
from server.operations.ranking.late_interaction import LateInteractionSpec
from server.operations.ranking.rerank import RerankSpec
from server.operations.ranking.similarity import SimilaritySpec
from server.operations.tokenize import DetokenizeSpec, TokenizeSpec
from server.operations.translating.translate import TranslateSpec
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.protected import Protection
from server.text.tokens.truncation import TruncationSide

CHUNK_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}


def is_one(inputs: object) -> bool:
    """Whether a field holds one input (a text, or a list of token ids) rather than a list of inputs."""
    return isinstance(inputs, str) or (isinstance(inputs, list) and isinstance(inputs[0], int))


def as_list(inputs: Any) -> list[Any]:
    """Put a single input (a text, or a list of token ids) into a list. A list of inputs is returned unchanged."""
    return [inputs] if is_one(inputs) else inputs


class TruncatedBody(TimedBody):
    """Base of request bodies whose texts are shortened to the model's limit, unless `truncate` is false."""

    truncate: Annotated[
        bool | None, Field(description="false refuses a long text; default: it is shortened, and a header says so")
    ] = None
    truncation_direction: Side | None = None

    def truncation(self) -> TruncationSide | None:
        return None if self.truncate is False else self.truncation_direction or "right"


class GenerateBody(GenerationFields):
    """Body of `POST /generate`."""

    prompt: Prompt

    def spec(self) -> GenerateSpec:
        return GenerateSpec(as_list(self.prompt), self.options(), self.model, fails_alone=True)


def _are_terms(value: Any) -> Any:
    """Check that a glossary is null or an object of strings. Raises ValueError.

    Replaces pydantic's check, whose message would repeat the term of a wrong value.
    """
    if value is not None and not (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
        raise ValueError("must be an object whose values are strings")
    return value


Terms = Annotated[dict[str, str], BeforeValidator(_are_terms)]


ProtectedTerms = Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=128)]


class TranslateBody(GenerationFields):
    """Body of `POST /translate`."""

    inputs: Texts
    num_alternatives: Annotated[int | None, Field(ge=0, le=15)] = None
    split_sentences: SplitSentences = None
    glossary: Terms | None = None
    protect: bool | ProtectedTerms | None = None
    quality: Annotated[
        bool | None,
        Field(description="report each sentence with its score, and flag translations in another language"),
    ] = None
    context: Annotated[
        str | None, Field(description="text around the inputs, which is not translated; for language models only")
    ] = None
    formality: Annotated[
        Literal["more", "less", "prefer_more", "prefer_less"] | None,
        Field(description="for language models whose prompt has it; others ignore prefer_more and prefer_less"),
    ] = None
    format: Annotated[
        Literal["text", "html", "xml"] | None, Field(description="html and xml: the tags of the inputs stay in place")
    ] = None

    def spec(self) -> TranslateSpec:
        return TranslateSpec(
            as_list(self.inputs),
            self.options(),
            self.num_alternatives or 0,
            None if self.split_sentences is None else self.split_sentences is not False,
            self.model,
            split_at_newlines=self.split_sentences != "nonewlines",
            markup=MarkupOptions(self.format) if self.format in ("html", "xml") else None,
            glossary=self.glossary or {},
            protect=self._protection(),
            context=self.context,
            formality=self.formality,
            quality=self.quality is True,
            fails_alone=True,
        )

    def _protection(self) -> Protection | None:
        if self.protect is None or self.protect is True:
            return None if self.protect is None else Protection(patterns=True)
        return Protection() if self.protect is False else Protection(True, tuple(dict.fromkeys(self.protect)))


class EmbedAllBody(TruncatedBody):
    """Body of `POST /embed_all`. `EmbedBody` has the same fields, and `pooling`."""

    inputs: TextsOrIds
    normalize: bool | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None

    def spec(self) -> EmbedAllSpec:
        inputs = as_list(self.inputs)
        return EmbedAllSpec(
            inputs, self.model, self.normalize is not False, self.truncation(), self.dimensions, self.prompt_name
        )


class EmbedBody(EmbedAllBody):
    """Body of `POST /embed` without the fields `chunks` and `late_interaction`: one vector for each input."""

    pooling: Literal["mean", "cls", "last", "max"] | None = None

    def spec(self) -> EmbedSpec:
        return EmbedSpec(**vars(super().spec()), pooling=self.pooling)


def _are_chunks(value: Any) -> Any:
    """Check the parts of a text: "sentences", or a list of pairs (first character, end), returned as tuples.

    Raises ValueError for any other value, and for more than `MAX_CHUNKS` parts.
    """
    if value == "sentences":
        return value
    pairs = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    if not pairs or not value or not all(type(place) is int and place >= 0 for pair in value for place in pair):
        raise ValueError('must be "sentences", or a list of pairs: first character and end of each part')
    if len(value) > MAX_CHUNKS:
        raise ValueError(f"has {len(value)} parts; the limit is {MAX_CHUNKS}")
    return [(start, end) for start, end in value]


class EmbedChunksBody(TimedBody):
    """Body of `POST /embed` with the field `chunks`: one vector for each part of a long text.

    The model reads the whole text in one pass, and then each part is pooled.
    """

    inputs: Annotated[str, Field(min_length=1)]
    chunks: Annotated[
        Any,
        BeforeValidator(_are_chunks),
        WithJsonSchema({"anyOf": [{"const": "sentences"}, {"type": "array", "items": CHUNK_SCHEMA, "minItems": 1}]}),
    ]
    normalize: bool | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None
    pooling: Annotated[Literal["mean"] | None, Field(description="needed where the checkpoint pools otherwise")] = None
    truncate: Annotated[Literal[False] | None, Field(description="true would lose parts, so it is refused")] = None

    def spec(self) -> EmbedChunksSpec:
        return EmbedChunksSpec(
            self.inputs,
            None if self.chunks == "sentences" else self.chunks,
            self.model,
            self.normalize is not False,
            self.dimensions,
            self.prompt_name,
            self.pooling,
        )


class LateInteractionBody(TruncatedBody):
    """Body of `POST /embed` with the field `late_interaction`: one vector per token of a query or document."""

    inputs: Texts
    late_interaction: Literal["query", "document"]
    normalize: bool | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None

    def spec(self) -> LateInteractionSpec:
        return LateInteractionSpec(
            as_list(self.inputs),
            self.late_interaction,
            self.model,
            self.normalize is not False,
            self.truncation(),
            self.dimensions,
        )


class EmbedSparseBody(TruncatedBody):
    """Body of `POST /embed_sparse`."""

    inputs: TextsOrIds
    prompt_name: Annotated[str | None, Field(max_length=64)] = None

    def spec(self) -> EmbedSparseSpec:
        return EmbedSparseSpec(as_list(self.inputs), self.model, self.truncation(), self.prompt_name)


class ClassifyBody(TruncatedBody):
    """Body of `POST /classify`. `inputs`: a text, or a list whose items are texts or pairs (lists of two texts)."""

    inputs: TextsOrPairs
    top_k: Annotated[int | None, Field(ge=1)] = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    raw_scores: bool | None = None

    def spec(self) -> ClassifySpec:
        inputs = as_list(self.inputs)
        return ClassifySpec(
            [(text,) if isinstance(text, str) else tuple(text) for text in inputs],
            self.model,
            self.function_to_apply,
            bool(self.raw_scores),
            self.top_k,
            self.truncation(),
        )


class Sentences(BaseModel):
    """A sentence, and the sentences to compare with it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]


class SimilarityParameters(BaseModel):
    """The object `parameters` of `/similarity`, which holds the settings of a request in text-embeddings-inference."""

    model_config = ConfigDict(strict=True, extra="forbid")

    truncate: bool | None = None
    truncation_direction: Side | None = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None


class SimilarityBody(TruncatedBody):
    """Body of `POST /similarity`. The settings are fields of the body or of `parameters`, but not of both."""

    inputs: Sentences
    prompt_name: Annotated[str | None, Field(max_length=64)] = None
    parameters: SimilarityParameters | None = None

    def spec(self) -> SimilaritySpec:
        inputs = self.inputs
        given = self.parameters.model_dump(exclude_none=True) if self.parameters else {}
        for name, value in given.items():
            if getattr(self, name) is not None:
                raise InvalidRequest(f"`{name}` is both in the body and in `parameters`", name)
            setattr(self, name, value)
        return SimilaritySpec(inputs.source_sentence, inputs.sentences, self.model, self.truncation(), self.prompt_name)


class RerankBody(TruncatedBody):
    """Body of `POST /rerank`. `raw_scores`: return logits, or sums of cosines, instead of scores from 0 to 1."""

    query: Annotated[str, Field(min_length=1)]
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]
    raw_scores: bool | None = None
    return_text: bool | None = None
    instruction: Instruction | None = None

    def spec(self) -> RerankSpec:
        return RerankSpec(
            self.query,
            self.texts,
            self.model,
            bool(self.raw_scores),
            self.truncation(),
            instruction=self.instruction,
        )


class FillMaskBody(TimedBody):
    """Body of `POST /fill_mask`. `targets`: consider only these words. Each must be one token of the vocabulary."""

    inputs: Texts
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None
    targets: Annotated[
        Annotated[list[ShortText], Field(min_length=1, max_length=MAX_WORDS)] | None, BeforeValidator(one_or_many)
    ] = None

    def spec(self) -> FillMaskSpec:
        return FillMaskSpec(as_list(self.inputs), self.model, self.top_k or DEFAULT_TOP_K, self.targets or ())


class TokenClassifyBody(TimedBody):
    """Body of `POST /token_classify`. `stride`: number of tokens by which the windows of a long text overlap."""

    inputs: Texts
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    stride: Count | None = None

    def spec(self) -> TokenClassifySpec:
        return TokenClassifySpec(as_list(self.inputs), self.model, self.aggregation_strategy or "simple", self.stride)


class LabelledEntitiesBody(TimedBody):
    """Body of `POST /token_classify` with the field `labels`: find entities with these labels, by a GLiNER model."""

    inputs: Texts
    labels: Annotated[list[ShortText], Field(min_length=1, max_length=MAX_LABELS)]
    threshold: Annotated[float | None, Field(gt=0, lt=1)] = None
    aggregation_strategy: Annotated[
        Literal["simple"] | None, Field(description="only simple is accepted: entities consist of words")
    ] = None
    stride: Annotated[
        Count | None, Field(description="words that neighbouring windows of a long text have in common")
    ] = None

    def spec(self) -> LabelledEntitiesSpec:
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        return LabelledEntitiesSpec(as_list(self.inputs), self.labels, self.model, threshold, self.stride)


class QuestionAnswerBody(TimedBody):
    """Body of `POST /question_answer`."""

    question: Annotated[str, Field(min_length=1)]
    context: Annotated[str, Field(min_length=1)]
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None

    def spec(self) -> QuestionAnswerSpec:
        return QuestionAnswerSpec(self.question, self.context, self.model, self.top_k or 1)


class ZeroShotClassifyBody(TimedBody):
    """Body of `POST /zero_shot_classify`.

    `hypothesis_template`: a sentence about the text, with `{}` in place of the label.
    `task`: name of the classification, which GLiNER2 models read.
    """

    inputs: Texts
    candidate_labels: Annotated[list[ShortText], Field(min_length=1, max_length=MAX_ITEMS)]
    hypothesis_template: Annotated[str | None, Field(min_length=2, max_length=1024)] = None
    multi_label: bool | None = None
    task: Annotated[str | None, Field(min_length=1, max_length=1024)] = None

    def spec(self) -> ZeroShotClassifySpec:
        inputs = as_list(self.inputs)
        template = self.hypothesis_template or DEFAULT_TEMPLATE
        return ZeroShotClassifySpec(
            inputs, self.candidate_labels, self.model, template, bool(self.multi_label), self.task
        )


class TokenizeBody(Body):
    """Body of `POST /tokenize`."""

    inputs: Texts
    add_special_tokens: bool | None = None

    def spec(self) -> TokenizeSpec:
        return TokenizeSpec(as_list(self.inputs), self.add_special_tokens is not False, self.model)


class DetokenizeBody(Body):
    """Body of `POST /detokenize`."""

    ids: IdLists
    skip_special_tokens: bool | None = None

    def spec(self) -> DetokenizeSpec:
        return DetokenizeSpec(as_list(self.ids), self.skip_special_tokens is not False, self.model)
