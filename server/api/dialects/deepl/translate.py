"""Routes of the DeepL dialect for texts and usage: `/v2/translate`, `/v2/usage`.

A body is JSON, or a form that repeats the field `text` for several texts. Fields, answers and statuses are those that
DeepL's Python package uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.api.dialects.deepl.common import (
    ERRORS,
    Context,
    Formality,
    GlossaryId,
    GlossaryIds,
    named_glossaries,
    stated_formality,
)
from server.api.fields.field_kinds import Hint, Unsupported, only
from server.api.fields.fields import Body, Language, Texts, form_flag, one_or_many
from server.api.routes.error_shape import AnswerBody
from server.api.routes.get_route import GetRoute
from server.api.routes.route import JsonRoute, Route
from server.api.state import State
from server.errors import InvalidRequest
from server.operations.generating.generation_options import GenerationOptions
from server.operations.translating.detect_language import DetectedTranslation, translate_detected
from server.operations.translating.translate import TranslateSpec
from server.text.markup.markup_options import MarkupOptions


def _split_mode(value: object) -> object:
    """Convert the value of `split_sentences` to text, because some clients send a number or a boolean."""
    return str(int(value)) if isinstance(value, int) else value


def _tags(value: object) -> object:
    """Split text with commas into a list of tag names. Any other value, such as a list, is returned unchanged."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


Flag = Annotated[bool | None, BeforeValidator(form_flag)]
TagName = Annotated[str, Field(min_length=1, max_length=64)]
Tags = Annotated[Annotated[list[TagName], Field(max_length=256)] | None, BeforeValidator(_tags)]


class DeeplTranslateBody(Body):
    """Body of `POST /v2/translate`.

    `split_sentences`: 0 never splits, 1 splits at punctuation and line breaks, nonewlines splits at punctuation only.
    `non_splitting_tags`, `splitting_tags`, `ignore_tags` and `outline_detection` require `tag_handling`.
    `context`, and `formality` more and less, need a language model whose translation prompt has a place for them.
    Fields for a style, custom instructions or a translation memory are refused, because the models have none of these.
    """

    text: Annotated[Texts, BeforeValidator(one_or_many)]
    target_lang: Language
    source_lang: Language | None = None
    split_sentences: Annotated[Literal["0", "1", "nonewlines"] | None, BeforeValidator(_split_mode)] = None
    preserve_formatting: Hint = None
    tag_handling: Annotated[Literal["html", "xml"] | None, BeforeValidator(lambda value: value or None)] = None
    tag_handling_version: Hint = None
    outline_detection: Flag = None
    splitting_tags: Tags = None
    non_splitting_tags: Tags = None
    ignore_tags: Tags = None
    show_billed_characters: Flag = None
    formality: Formality = None
    model_type: Annotated[str | None, only("latency_optimized", "prefer_quality_optimized")] = None
    context: Context = None
    glossary_id: GlossaryId = None
    glossary_ids: GlossaryIds = None
    style_id: Unsupported = None
    custom_instructions: Annotated[list[Any] | None, only([])] = None
    translation_memory_id: Unsupported = None
    translation_memory_threshold: Unsupported = None

    def spec(self) -> TranslateSpec:
        """Convert the body to a `TranslateSpec`.

        Raises InvalidRequest for tag options without `tag_handling`, and for glossaries without `source_lang`.
        """
        for name in ("outline_detection", "splitting_tags", "non_splitting_tags", "ignore_tags"):
            needed = "`tag_handling` xml" if name == "outline_detection" else "`tag_handling`"
            allowed = ("xml",) if name == "outline_detection" else ("xml", "html")
            if getattr(self, name) is not None and self.tag_handling not in allowed:
                raise InvalidRequest(f"`{name}` requires {needed}", name)
        at_newlines = self.split_sentences != "nonewlines" and (
            self.split_sentences is not None or self.tag_handling != "html"
        )
        return TranslateSpec(
            self.text,
            GenerationOptions(source_lang=self.source_lang, target_lang=self.target_lang),
            split_sentences=self.split_sentences != "0",
            split_at_newlines=at_newlines,
            model=self.model,
            markup=self._markup(at_newlines),
            glossary_ids=named_glossaries(self.glossary_id, self.glossary_ids, self.source_lang),
            context=self.context or None,
            formality=stated_formality(self.formality),
        )

    def _markup(self, at_newlines: bool) -> MarkupOptions | None:
        if self.tag_handling is None:
            return None
        lower = str.lower if self.tag_handling == "html" else str
        return MarkupOptions(
            self.tag_handling,
            splitting_tags=frozenset(map(lower, self.splitting_tags or ())),
            non_splitting_tags=frozenset(map(lower, self.non_splitting_tags or ())),
            ignore_tags=frozenset(map(lower, self.ignore_tags or ())),
            detect_outline=self.outline_detection is not False,
            split_at_newlines=at_newlines,
        )


class DeeplTranslation(AnswerBody):
    """The translation of one text. `detected_source_language`: the language of the request, or the detected one.

    `model_type_used`: always `latency_optimized` if the request has `model_type`, because all models here count as this
        kind.
    """

    detected_source_language: str
    text: str
    billed_characters: int | None = None
    model_type_used: str | None = None


class DeeplTranslateAnswer(AnswerBody):
    translations: list[DeeplTranslation]


class DeeplUsageAnswer(AnswerBody):
    """Usage of the account. `character_count` is always 0, because the server counts no characters.

    `character_limit`: the number that DeepL states for accounts without a limit.
    """

    character_count: int
    character_limit: int


def _translated(body: DeeplTranslateBody, results: Sequence[DetectedTranslation]) -> dict[str, Any]:
    rendered = []
    for text, result in zip(body.text, results, strict=True):
        language = result.detected.language if result.detected else body.source_lang or ""
        translation: dict[str, Any] = {"detected_source_language": language.upper(), "text": result.translation.text}
        if body.show_billed_characters:
            translation["billed_characters"] = len(text)
        if body.model_type:
            translation["model_type_used"] = "latency_optimized"
        rendered.append(translation)
    return {"translations": rendered}


def _usage(state: State, parameters: Mapping[str, str]) -> dict[str, int]:
    return {"character_count": 0, "character_limit": 1_000_000_000_000}


ROUTES: tuple[Route[Any, Any, Any], ...] = (
    JsonRoute(
        path="/v2/translate",
        operation="translate",
        name="deepl_translate",
        description="Translate texts as DeepL does.",
        body=DeeplTranslateBody,
        answer=DeeplTranslateAnswer,
        example=(
            {"text": ["The garden is small."], "target_lang": "FR"},
            {"translations": [{"detected_source_language": "EN", "text": "Le jardin est petit."}]},
        ),
        parse=DeeplTranslateBody.spec,
        run=translate_detected,
        render=_translated,
        errors=ERRORS,
        takes_forms=True,
    ),
)
GET_ROUTES: tuple[GetRoute, ...] = (
    GetRoute(
        path="/v2/usage",
        name="deepl_usage",
        description="No characters are billed.",
        answer=DeeplUsageAnswer,
        example={"character_count": 0, "character_limit": 1_000_000_000_000},
        render=_usage,
        errors=ERRORS,
    ),
)
