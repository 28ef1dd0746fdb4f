"""The LibreTranslate dialect: `/translate` with `q`, `/translate_file`, `/suggest`, `/detect` and others.

Bodies are JSON or forms, and may hold the API key in `api_key`. Fields and answers follow LibreTranslate's source code.
Unlike LibreTranslate, this server keeps character references (such as `&nbsp;`) in translated HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.fields.fields import Body, Language, SplitSentences, Texts, form_value
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape
from server.api.routes.get_route import GetRoute
from server.api.routes.route import JsonRoute, Route
from server.api.routes.state_route import StateRoute
from server.api.state import State
from server.api.stored.document_jobs import DocumentJob
from server.api.stored.document_upload import DocumentOptions, DocumentRoute, file_response
from server.operations.generating.generation_options import GenerationOptions
from server.operations.translating.detect_language import (
    DetectedTranslation,
    DetectLanguageSpec,
    detect_language,
    translate_detected,
)
from server.operations.translating.translate import TranslateSpec
from server.text.documents.formats import available_formats
from server.text.languages.detect import DetectedLanguage
from server.text.languages.language_codes import ARGOS_CODES
from server.text.languages.offered_languages import language_label, offered_languages
from server.text.markup.markup_options import MarkupOptions

MAX_SUGGESTED = 10_000
"""Maximum length of a suggested translation, and of its source text, in characters."""
_KEY = Annotated[str | None, Field(max_length=1024, description="the API key, if no header has it")]


class LibreTranslateBody(Body):
    """Body of `POST /translate`. `source`: a language code, or auto. `alternatives`: number of further translations.

    `split_sentences`: a field that LibreTranslate does not have. nonewlines joins the lines of wrapped texts.
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
                source_lang=None if self.source == "auto" else ARGOS_CODES.get(self.source, self.source),
                target_lang=ARGOS_CODES.get(self.target, self.target),
            ),
            num_alternatives=self.alternatives or 0,
            split_sentences=self.split_sentences is not False,
            split_at_newlines=self.split_sentences != "nonewlines",
            model=self.model,
            markup=MarkupOptions("html") if self.format == "html" else None,
        )


class LibreTranslateFileBody(Body):
    """Body of `POST /translate_file`, besides the file. `source`: a language code, or auto."""

    source: Language
    target: Language
    api_key: _KEY = None

    def options(self) -> DocumentOptions:
        source = None if self.source == "auto" else ARGOS_CODES.get(self.source, self.source)
        return DocumentOptions(source, ARGOS_CODES.get(self.target, self.target), model=self.model)


class LibreTranslateSuggestion(BaseModel):
    """Body of `POST /suggest`: a client's better translation of a text."""

    model_config = Body.model_config

    q: Annotated[str, Field(min_length=1, max_length=MAX_SUGGESTED, description="the text")]
    s: Annotated[str, Field(min_length=1, max_length=MAX_SUGGESTED, description="its suggested translation")]
    source: Annotated[Language, Field(description="language of the text")]
    target: Annotated[Language, Field(description="language of the translation")]
    api_key: _KEY = None


class LibreTranslateDetectBody(Body):
    """Body of `POST /detect`. The texts of a list are joined, and get one answer."""

    q: Texts
    api_key: _KEY = None

    def spec(self) -> DetectLanguageSpec:
        text = self.q if isinstance(self.q, str) else "\n".join(self.q)
        return DetectLanguageSpec([text], model=self.model, is_source=False)


class DetectedLanguageConfidence(AnswerBody):
    """A language, and its probability in percent."""

    language: str
    confidence: float


class LibreTranslateAnswer(AnswerBody):
    """The translations.

    If the request's `q` is a list, each field is a list with one value per text; otherwise a single value.

    `detectedLanguage`: present if the request's `source` is `auto`.
    """

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguageConfidence | list[DetectedLanguageConfidence] | None = None


class LibreTranslateFileAnswer(AnswerBody):
    """`translatedFileUrl`: address of the translated file, which can be fetched once within an hour."""

    translatedFileUrl: str


class LibreTranslateSuggestAnswer(AnswerBody):
    success: bool


class LibreTranslateFile(AnswerBody):
    """The bytes of a translated file."""


class LibreTranslateDetectAnswer(RootModel[list[DetectedLanguageConfidence]]):
    """The languages that the text may be in, most likely first."""


class LibreTranslateLanguage(AnswerBody):
    code: str
    name: str
    targets: list[str]
    direct: list[str] | None = None


class LibreTranslateLanguagesAnswer(RootModel[list[LibreTranslateLanguage]]):
    """The languages of the loaded models. `targets`: for each language, the languages into which it is translated.

    `direct`: the targets that need no pivot language; only if some targets need one. LibreTranslate has no such field.
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
    """Render an answer: single values for one text, or lists with one value per text for a list of texts."""
    answer: dict[str, list[Any]] = {"translatedText": [result.translation.text for result in results]}
    if body.alternatives:
        answer["alternatives"] = [[text for text, _ in result.translation.alternatives] for result in results]
    if body.source == "auto":
        answer["detectedLanguage"] = [_confidence(result.detected) for result in results if result.detected is not None]
    return {name: values[0] if isinstance(body.q, str) else values for name, values in answer.items()}


def _detected(body: LibreTranslateDetectBody, results: Sequence[Sequence[DetectedLanguage]]) -> list[dict[str, Any]]:
    return [_confidence(language) for language in results[0]]


def _link(request: Request, job: DocumentJob) -> dict[str, str]:
    suffix = job.filename.rpartition(".")[2]
    return {"translatedFileUrl": str(request.url_for("libretranslate_download_file", file=f"{job.key}.{suffix}"))}


def _file(state: State, request: Request, body: None) -> Response:
    return file_response(state, request, state.documents.linked(request.path_params["file"].partition(".")[0]))


def _suggest(state: State, request: Request, body: LibreTranslateSuggestion) -> dict[str, bool]:
    state.suggestions.add(body.q, body.s, body.source, body.target)
    return {"success": True}


def _shown(code: str) -> str:
    return next((own for own, known in ARGOS_CODES.items() if known == code), code)


async def _languages(state: State, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    models = await state.runtime.translations()
    return [
        {
            "code": _shown(language.code),
            "name": language.name,
            "targets": sorted(map(_shown, language.targets)),
        }
        | ({"direct": sorted(map(_shown, language.direct))} if language.direct != language.targets else {})
        for language in offered_languages(models, state.runtime.pivot)
    ]


async def _frontend_settings(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    target = min(target for language in await _languages(state, parameters) for target in language["targets"])
    return {
        "charLimit": state.settings.max_text_characters,
        "frontendTimeout": 500,
        "apiKeys": bool(state.keys),
        "keyRequired": bool(state.keys),
        "suggestions": state.suggestions.are_taken,
        "filesTranslation": True,
        "supportedFilesFormat": [f".{suffix}" for suffix in available_formats()],
        "language": {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": target, "name": language_label(ARGOS_CODES.get(target, target))},
        },
    }


_PARAMETERS = {"api_key": "the API key, if no header has it"}
_LANGUAGES = [{"code": "en", "name": "English", "targets": ["fr"]}]

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
    DocumentRoute(
        path="/translate_file",
        operation="translate",
        name="libretranslate_translate_file",
        description="Translate a document. The answer has a link to the translated file.",
        body=LibreTranslateFileBody,
        answer=LibreTranslateFileAnswer,
        example=(
            {"file": "(the bytes of a document)", "source": "en", "target": "fr"},
            {"translatedFileUrl": "http://127.0.0.1:8000/download_file/5bf0....docx"},
        ),
        options=LibreTranslateFileBody.options,
        render=_link,
        waits=True,
        errors=_ERRORS,
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
        description="What a LibreTranslate page may offer: limits, default languages and formats of files.",
        answer=FrontendSettingsAnswer,
        example={
            "charLimit": 400_000,
            "frontendTimeout": 500,
            "apiKeys": False,
            "keyRequired": False,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": [".txt", ".docx"],
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
STATE_ROUTES: tuple[StateRoute, ...] = (
    StateRoute(
        path="/suggest",
        method="POST",
        name="libretranslate_suggest",
        description="Suggest a better translation. The server writes it to a file for people to look at.",
        body=LibreTranslateSuggestion,
        body_example={"q": "The garden is small.", "s": "Le jardin est petit.", "source": "en", "target": "fr"},
        answer=LibreTranslateSuggestAnswer,
        example={"success": True},
        render=_suggest,
        errors=_ERRORS,
        works_in_thread=True,
        key_field="api_key",
    ),
    StateRoute(
        path="/download_file/{file}",
        method="GET",
        name="libretranslate_download_file",
        description="A translated file. The link is the secret that allows to fetch it.",
        answer=LibreTranslateFile,
        example={},
        render=_file,
        errors=_ERRORS,
        is_public=True,
    ),
)
