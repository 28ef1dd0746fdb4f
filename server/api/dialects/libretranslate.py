"""The LibreTranslate dialect: `/translate` with `q`, `/detect`, `/languages`, `/frontend/settings`.

Bodies are JSON or forms, and hold the API key in `api_key`. Fields and answers were read from LibreTranslate's own
source. Unlike LibreTranslate, this server keeps character references in translated HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, RootModel

from server.api.error_shape import AnswerBody, ErrorMembers, ErrorShape
from server.api.fields import Body, Language, SplitSentences, Texts, form_value
from server.api.route import GetRoute, JsonRoute, Route
from server.api.state import State
from server.operations.generating.generation_options import GenerationOptions
from server.operations.translating.detect_language import (
    DetectedTranslation,
    DetectLanguageSpec,
    detect_language,
    translate_detected,
)
from server.operations.translating.translate import TranslateSpec
from server.text.languages.detect import DetectedLanguage
from server.text.languages.offered_languages import language_label, offered_languages
from server.text.markup.markup import MarkupOptions

_CODES = {"zt": "zh-Hant", "pb": "pt-BR"}
"""Codes of LibreTranslate's own, and what they mean."""
_KEY = Annotated[str | None, Field(max_length=1024, description="the API key, if no header has it")]


class LibreTranslateBody(Body):
    """`POST /translate`. `source`: a language code, or auto. `alternatives`: number of further translations.

    `split_sentences` is a field of this server: nonewlines joins the lines of texts that are wrapped.
    """

    q: Texts
    source: Language
    target: Language
    format: Annotated[Literal["text", "html"] | None, BeforeValidator(lambda value: value or None)] = None
    alternatives: Annotated[Annotated[int, Field(ge=0, le=15)] | None, BeforeValidator(form_value)] = None
    split_sentences: SplitSentences = None
    api_key: _KEY = None

    def spec(self) -> TranslateSpec:
        return TranslateSpec(
            [self.q] if isinstance(self.q, str) else self.q,
            GenerationOptions(
                source_lang=None if self.source == "auto" else _CODES.get(self.source, self.source),
                target_lang=_CODES.get(self.target, self.target),
            ),
            num_alternatives=self.alternatives or 0,
            split_sentences=self.split_sentences is not False,
            split_at_newlines=self.split_sentences != "nonewlines",
            model=self.model,
            markup=MarkupOptions("html") if self.format == "html" else None,
        )


class LibreTranslateDetectBody(Body):
    """`POST /detect`."""

    q: Texts
    api_key: _KEY = None

    def spec(self) -> DetectLanguageSpec:
        return DetectLanguageSpec([self.q] if isinstance(self.q, str) else ["\n".join(self.q)], model=self.model)


class DetectedLanguageConfidence(AnswerBody):
    """A language, and its probability in percent."""

    language: str
    confidence: float


class LibreTranslateAnswer(AnswerBody):
    """Strings for one text, lists for a list of texts. `detectedLanguage`: only with `source` auto."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguageConfidence | list[DetectedLanguageConfidence] | None = None


class LibreTranslateDetectAnswer(RootModel[list[DetectedLanguageConfidence]]):
    """The languages that the text may be in, most likely first."""


class LibreTranslateLanguage(AnswerBody):
    code: str
    name: str
    targets: list[str]
    direct: list[str]


class LibreTranslateLanguagesAnswer(RootModel[list[LibreTranslateLanguage]]):
    """The languages of the loaded models, each with those that it is translated to: none for a target only.

    `direct`: those of `targets` that one model translates. The others need a pivot language. The field is our own.
    """


class LanguageName(AnswerBody):
    code: str
    name: str


class FrontendLanguages(AnswerBody):
    source: LanguageName
    target: LanguageName


class FrontendSettingsAnswer(AnswerBody):
    charLimit: int
    frontendTimeout: int
    apiKeys: bool
    keyRequired: bool
    suggestions: bool
    filesTranslation: bool
    supportedFilesFormat: list[str]
    language: FrontendLanguages


class LibreTranslateError(ErrorMembers):
    error: str


_ERRORS = ErrorShape(
    statuses={401: 403, 422: 400},
    fields={"inputs": "q", "source_lang": "source", "target_lang": "target", "num_alternatives": "alternatives"},
    body=lambda error, request_id: {"error": error.message},
    answer=LibreTranslateError,
)


def _confidence(detected: DetectedLanguage) -> dict[str, Any]:
    return {"language": detected.language, "confidence": round(100 * detected.share, 1)}


def _translated(body: LibreTranslateBody, results: Sequence[DetectedTranslation]) -> dict[str, Any]:
    """The values of a single text, or lists of them."""
    answer: dict[str, list[Any]] = {"translatedText": [one.translation.text for one in results]}
    if body.alternatives:
        answer["alternatives"] = [[text for text, _ in one.translation.alternatives] for one in results]
    if body.source == "auto":
        answer["detectedLanguage"] = [_confidence(one.detected) for one in results if one.detected is not None]
    return {name: values[0] if isinstance(body.q, str) else values for name, values in answer.items()}


def _detected(body: LibreTranslateDetectBody, results: Sequence[Sequence[DetectedLanguage]]) -> list[dict[str, Any]]:
    return [_confidence(one) for one in results[0]]


def _shown(code: str) -> str:
    return next((own for own, known in _CODES.items() if known == code), code)


def _languages(state: State, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    models = [model.text.languages for model in state.runtime.candidates(None, "translate")]
    return [
        {
            "code": _shown(one.code),
            "name": one.name,
            "targets": sorted(map(_shown, one.targets)),
            "direct": sorted(map(_shown, one.direct)),
        }
        for one in offered_languages(models, state.runtime.pivot)
    ]


def _frontend_settings(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    target = min(target for one in _languages(state, parameters) for target in one["targets"])
    return {
        "charLimit": state.settings.max_text_characters,
        "frontendTimeout": 500,
        "apiKeys": bool(state.keys),
        "keyRequired": bool(state.keys),
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": target, "name": language_label(_CODES.get(target, target))},
        },
    }


_PARAMETERS = {"api_key": "the API key, if no header has it"}
_LANGUAGES = [{"code": "en", "name": "English", "targets": ["fr"], "direct": ["fr"]}]

ROUTES: tuple[Route[Any, Any, Any], ...] = (
    JsonRoute(
        path="/translate",
        operation="translate",
        name="libretranslate_translate",
        field="q",
        description="Translate texts as LibreTranslate does.",
        body=LibreTranslateBody,
        answer=LibreTranslateAnswer,
        example=(
            {"q": "The garden is small.", "source": "auto", "target": "fr"},
            {
                "translatedText": "Le jardin est petit.",
                "detectedLanguage": {"language": "en", "confidence": 98.3},
            },
        ),
        parse=LibreTranslateBody.spec,
        run=translate_detected,
        render=_translated,
        errors=_ERRORS,
        takes_forms=True,
        key_field="api_key",
    ),
    JsonRoute(
        path="/detect",
        operation="detect_language",
        name="libretranslate_detect",
        description="The language of a text, among those that the loaded models translate.",
        body=LibreTranslateDetectBody,
        answer=LibreTranslateDetectAnswer,
        example=({"q": "The garden is small."}, [{"language": "en", "confidence": 98.3}]),
        parse=LibreTranslateDetectBody.spec,
        run=detect_language,
        render=_detected,
        errors=_ERRORS,
        takes_forms=True,
        key_field="api_key",
    ),
)
GET_ROUTES: tuple[GetRoute, ...] = (
    GetRoute(
        path="/languages",
        name="libretranslate_languages",
        description="The languages that the loaded models translate.",
        answer=LibreTranslateLanguagesAnswer,
        example=_LANGUAGES,
        render=_languages,
        errors=_ERRORS,
        parameters=_PARAMETERS,
        key_field="api_key",
    ),
    GetRoute(
        path="/frontend/settings",
        name="libretranslate_frontend_settings",
        description="What a LibreTranslate page may offer: limits, default languages, no files and no suggestions.",
        answer=FrontendSettingsAnswer,
        example={
            "charLimit": 400_000,
            "frontendTimeout": 500,
            "apiKeys": False,
            "keyRequired": False,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {
                "source": {"code": "auto", "name": "Auto Detect"},
                "target": {"code": "fr", "name": "French"},
            },
        },
        render=_frontend_settings,
        errors=_ERRORS,
        parameters=_PARAMETERS,
        key_field="api_key",
    ),
)
