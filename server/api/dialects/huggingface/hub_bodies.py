"""Request bodies of the hub's tasks, as `huggingface_hub.InferenceClient` sends them, and their conversion.

A setting that is not supported and would change the answer may only have its default value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from server.api.dialects.huggingface.tgi_bodies import TgiBody
from server.api.fields.field_kinds import Hint, Unsupported, only
from server.api.fields.fields import MAX_ITEMS, MAX_WORDS, Count, Finite, Language, ShortText, Side, Texts, TimedBody
from server.errors import InvalidRequest
from server.operations.generating.generate import GenerateSpec
from server.operations.generating.generation_options import GenerationOptions
from server.operations.labelling.classify import ClassifySpec
from server.operations.labelling.entities import OUTSIDE
from server.operations.labelling.fill_mask import DEFAULT_TOP_K, FillMaskSpec
from server.operations.labelling.question_answer import QuestionAnswerSpec
from server.operations.labelling.spans import MAX_ANSWER_TOKENS
from server.operations.labelling.token_classify import TokenClassifySpec
from server.operations.labelling.zero_shot_classify import DEFAULT_TEMPLATE, ZeroShotClassifySpec
from server.operations.ranking.embed import EmbedSpec
from server.operations.ranking.similarity import SimilaritySpec
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec
from server.operations.translating.translate import TranslateSpec


class HubFields(BaseModel):
    """Base of the objects inside bodies. It refuses unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class HubOptions(HubFields):
    """Settings of Hugging Face's hosted service. They have no effect here."""

    use_cache: Hint = None
    wait_for_model: Hint = None
    use_gpu: Hint = None


class HubBody(TimedBody):
    """Base class for the bodies of tasks, with the field that all tasks share."""

    options: HubOptions | None = None


def as_list(inputs: Any) -> list[str]:
    """Put a single text into a list. A list is returned unchanged."""
    return [inputs] if isinstance(inputs, str) else inputs


class HubGenerateBody(TgiBody):
    """Body for the task text generation."""

    options: HubOptions | None = None


class HubEmbedBody(HubBody):
    """Feature extraction. The settings are fields of the body, like `inputs`."""

    inputs: Texts
    normalize: bool | None = None
    prompt_name: Annotated[str | None, Field(max_length=64)] = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None
    encoding_format: Annotated[Any, only("float")] = None

    def spec(self) -> EmbedSpec:
        side = None if self.truncate is False else self.truncation_direction or "right"
        normalizes = self.normalize is not False
        return EmbedSpec(as_list(self.inputs), self.model, normalizes, side, self.dimensions, self.prompt_name)


class HubNoParameters(HubFields):
    """The object `parameters` of a task that has none. It must be empty."""


class HubSentences(HubFields):
    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]


class HubSimilarityBody(HubBody):
    """Body for the task sentence similarity."""

    inputs: HubSentences
    parameters: HubNoParameters | None = None

    def spec(self) -> SimilaritySpec:
        return SimilaritySpec(self.inputs.source_sentence, self.inputs.sentences, self.model)


class HubClassifyParameters(HubFields):
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    top_k: Annotated[int | None, Field(ge=1)] = None


class HubClassifyBody(HubBody):
    """Body for the task text classification."""

    inputs: Texts
    parameters: HubClassifyParameters | None = None

    def spec(self) -> ClassifySpec:
        given = self.parameters or HubClassifyParameters()
        inputs = [(text,) for text in as_list(self.inputs)]
        return ClassifySpec(inputs, self.model, given.function_to_apply, False, given.top_k)


class HubZeroShotParameters(HubFields):
    candidate_labels: Annotated[list[ShortText], Field(min_length=1, max_length=MAX_ITEMS)]
    hypothesis_template: Annotated[str | None, Field(min_length=2, max_length=1024)] = None
    multi_label: bool | None = None


class HubZeroShotBody(HubBody):
    """Body for the task zero-shot classification."""

    inputs: Texts
    parameters: HubZeroShotParameters

    def spec(self) -> ZeroShotClassifySpec:
        given = self.parameters
        template = given.hypothesis_template or DEFAULT_TEMPLATE
        labels = given.candidate_labels
        return ZeroShotClassifySpec(as_list(self.inputs), labels, self.model, template, bool(given.multi_label))


class HubFillMaskParameters(HubFields):
    targets: Annotated[list[ShortText] | None, Field(min_length=1, max_length=MAX_WORDS)] = None
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None


class HubFillMaskBody(HubBody):
    """Body for the task fill-mask, which finds words for a mask."""

    inputs: Texts
    parameters: HubFillMaskParameters | None = None

    def spec(self) -> FillMaskSpec:
        given = self.parameters or HubFillMaskParameters()
        return FillMaskSpec(as_list(self.inputs), self.model, given.top_k or DEFAULT_TOP_K, given.targets or ())


class HubTokenClassifyParameters(HubFields):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: Annotated[list[str] | None, Field(max_length=MAX_WORDS)] = None
    stride: Count | None = None


class HubTokenClassifyBody(HubBody):
    """Body for the task token classification."""

    inputs: Texts
    parameters: HubTokenClassifyParameters | None = None

    def spec(self) -> TokenClassifySpec:
        given = self.parameters or HubTokenClassifyParameters()
        ignored = [OUTSIDE] if given.ignore_labels is None else given.ignore_labels
        strategy = given.aggregation_strategy or "simple"
        return TokenClassifySpec(as_list(self.inputs), self.model, strategy, given.stride, ignored)


class HubQuestion(HubFields):
    question: Annotated[str, Field(min_length=1)]
    context: Annotated[str, Field(min_length=1)]


class HubQuestionParameters(HubFields):
    """Parameters of question answering. Windows always have the default length and overlap of transformers."""

    align_to_words: Annotated[Any, only(True)] = None
    doc_stride: Annotated[Any, only(128)] = None
    handle_impossible_answer: Annotated[Any, only(False)] = None
    max_answer_len: Annotated[int | None, Field(ge=1, le=384)] = None
    max_question_len: Annotated[Any, only(64)] = None
    max_seq_len: Annotated[Any, only(384)] = None
    top_k: Annotated[int | None, Field(ge=1, le=MAX_WORDS)] = None


class HubQuestionBody(HubBody):
    """Body for the task question answering."""

    inputs: HubQuestion
    parameters: HubQuestionParameters | None = None

    def top_k(self) -> int:
        return (self.parameters.top_k if self.parameters else None) or 1

    def spec(self) -> QuestionAnswerSpec:
        longest = (self.parameters.max_answer_len if self.parameters else None) or MAX_ANSWER_TOKENS
        return QuestionAnswerSpec(self.inputs.question, self.inputs.context, self.model, self.top_k(), longest)


class HubDecoding(HubFields):
    """Options of text generation, with the names that transformers gives them."""

    max_length: Annotated[int | None, Field(ge=2, le=1 << 20)] = None
    min_length: Count | None = None
    max_new_tokens: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    min_new_tokens: Count | None = None
    do_sample: bool | None = None
    temperature: Annotated[Finite | None, Field(ge=0, le=100)] = None
    top_k: Count | None = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    min_p: Annotated[Finite | None, Field(ge=0, le=1)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    repetition_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    no_repeat_ngram_size: Count | None = None
    encoder_no_repeat_ngram_size: Count | None = None
    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    num_beam_groups: Annotated[int | None, Field(ge=1, le=16)] = None
    diversity_penalty: Annotated[Finite | None, Field(ge=0, le=100)] = None
    length_penalty: Annotated[Finite | None, Field(ge=-100, le=100)] = None
    early_stopping: bool | Literal["never"] | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> HubDecoding:
        if self.max_length is not None and (self.min_length or 0) > self.max_length:
            raise ValueError(f"`min_length` {self.min_length} is more than `max_length` {self.max_length}")
        return self

    def options(self) -> dict[str, Any]:
        """Convert the parameters to fields of `GenerationOptions`.

        `max_length` and `min_length` count the start token, so they become one new token less. They are ignored if
        `max_new_tokens` or `min_new_tokens` is also given.
        """
        given = self.model_dump(exclude_none=True)
        for length, new_tokens in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            if (tokens := given.pop(length, None)) is not None:
                given.setdefault(new_tokens, max(tokens - 1, 0))
        return given


class HubSummarizeParameters(HubFields):
    clean_up_tokenization_spaces: Annotated[Any, only(False)] = None
    generate_parameters: HubDecoding | None = None
    truncation: Annotated[Any, only("do_not_truncate")] = None

    def options(self, **more: Any) -> GenerationOptions:
        given = self.generate_parameters.options() if self.generate_parameters else {}
        return GenerationOptions(**given, **more)


class HubSummarizeBody(HubBody):
    """Summarization, and other texts that an encoder-decoder makes of a text."""

    inputs: Annotated[str, Field(min_length=1)]
    parameters: HubSummarizeParameters | None = None

    def spec(self) -> GenerateSpec:
        options = (self.parameters or HubSummarizeParameters()).options()
        return GenerateSpec([self.inputs], options, self.model, task="summarization")


class HubTranslateParameters(HubSummarizeParameters):
    src_lang: Language | None = None
    tgt_lang: Language | None = None


class HubTranslateBody(HubBody):
    """Body for the task translation."""

    inputs: Texts
    parameters: HubTranslateParameters | None = None

    def spec(self) -> TranslateSpec:
        given = self.parameters or HubTranslateParameters()
        options = given.options(source_lang=given.src_lang, target_lang=given.tgt_lang)
        return TranslateSpec(as_list(self.inputs), options, model=self.model)


class HubSpeechDecoding(HubFields):
    """Options of speech recognition, with the names that transformers gives them."""

    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=1)] = None
    language: Annotated[Language | None, Field(description="code or English name; default: detected")] = None
    task: Literal["transcribe", "translate"] | None = None
    use_cache: Hint = None
    do_sample: Annotated[Any, only(False)] = None
    early_stopping: Annotated[Any, only(False)] = None
    num_beam_groups: Annotated[Any, only(1)] = None
    epsilon_cutoff: Unsupported = None
    eta_cutoff: Unsupported = None
    max_length: Unsupported = None
    max_new_tokens: Unsupported = None
    min_length: Unsupported = None
    min_new_tokens: Unsupported = None
    penalty_alpha: Unsupported = None
    top_k: Unsupported = None
    top_p: Unsupported = None
    typical_p: Unsupported = None


class HubSpeechParameters(HubFields):
    return_timestamps: bool | Literal["word"] | None = None
    generation_parameters: HubSpeechDecoding | None = None
    generate_kwargs: Annotated[HubSpeechDecoding | None, Field(description="the same as `generation_parameters`")] = (
        None
    )


class HubSpeechBody(HubBody):
    """Automatic speech recognition with parameters. Without parameters, the body may be the file itself."""

    inputs: Annotated[str, Field(min_length=1, description="a recording in base64")]
    parameters: HubSpeechParameters | None = None

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        """Convert the body to a `TranscribeSpec`. Raises InvalidRequest if both names of the decoding options are sent.

        As in the pipeline of transformers, each window of the recording is decoded once. A window with a poor result is
        not decoded again at a higher temperature.

        max_seconds: longest recording that the server accepts.
        """
        given = self.parameters or HubSpeechParameters()
        if given.generation_parameters is not None and given.generate_kwargs is not None:
            raise InvalidRequest(
                "`generate_kwargs` and `generation_parameters` are two names of one field; send one of them",
                "parameters.generate_kwargs",
            )
        decoding = given.generation_parameters or given.generate_kwargs or HubSpeechDecoding()
        return TranscribeSpec(
            file,
            max_seconds,
            decoding.task or "transcribe",
            model=self.model,
            language=decoding.language,
            temperatures=(decoding.temperature or 0.0,),
            num_beams=decoding.num_beams,
            no_speech_threshold=1.0,
            with_times=bool(given.return_timestamps),
            with_words=given.return_timestamps == "word",
            words_param="return_timestamps",
        )


class HubTaskBody(
    RootModel[
        HubGenerateBody
        | HubEmbedBody
        | HubSimilarityBody
        | HubClassifyBody
        | HubZeroShotBody
        | HubFillMaskBody
        | HubTokenClassifyBody
        | HubQuestionBody
        | HubSummarizeBody
        | HubTranslateBody
        | HubSpeechBody
    ]
):
    """The body of any hub task, for the OpenAPI document."""
