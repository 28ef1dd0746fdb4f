"""Detect the languages of texts, and translate texts whose language the request leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.cost import Cost, characters_of
from server.operations.generating.generation_run import complete_result
from server.operations.runtime import Runtime, ServedModel
from server.operations.translating.translate import TranslatedText, TranslateSpec, translate
from server.text.languages.detect import PRECISE_LANGUAGES, DetectedLanguage, DetectionError
from server.text.languages.language_codes import parse_language
from server.text.markup.markup import MarkupOptions, plain_text
from server.text.markup.markup_tokens import MarkupError


@dataclass(frozen=True)
class DetectLanguageSpec:
    """Ask for the languages of texts, among those that the loaded models translate.

    target_lang: only languages with a translation to this one.
    model: only languages of this model.
    markup: the texts are HTML or XML.
    """

    texts: Sequence[str]
    target_lang: str | None = None
    model: str | None = None
    markup: MarkupOptions | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. Nothing is tokenized or sent to the engine."""
        return Cost(characters_of(self.texts), 0, 0)


@dataclass(frozen=True)
class DetectedTranslation:
    """The translation of one text. detected: its language, or None if the request states it."""

    translation: TranslatedText
    detected: DetectedLanguage | None


async def detect_language(runtime: Runtime, call: Call, spec: DetectLanguageSpec) -> list[list[DetectedLanguage]]:
    """The languages of each text, most likely first; empty for a text without letters.

    Raises InvalidRequest if nothing can be detected, and OperationNotSupported without a translation model.
    """
    models = runtime.candidates(spec.model, "translate")
    runtime.admission.admit(call, models[0], spec.cost(models[0]))
    runtime.check_characters(spec.texts, "inputs")
    languages = _sources(models, spec.target_lang)
    every = _sources(models, None)
    if languages is not None and not languages:
        raise InvalidRequest("no loaded model translates to `target_lang`", "target_lang")
    precise = every is not None and len(every) <= PRECISE_LANGUAGES

    def detect() -> list[list[DetectedLanguage]]:
        texts = [plain_text(text, spec.markup) for text in spec.texts] if spec.markup else spec.texts
        return runtime.language_detector.detect(texts, languages, precise)

    try:
        return await runtime.pools.detect.run(detect, call)
    except MarkupError as error:
        raise InvalidRequest(f"`inputs`: {error}", "inputs") from None
    except DetectionError as error:
        raise InvalidRequest(f"send `source_lang`: {error}", "source_lang") from None


async def translate_detected(runtime: Runtime, call: Call, spec: TranslateSpec) -> list[DetectedTranslation]:
    """Translate texts, each from its own language if the request states none.

    A text without letters is translated from the first source language in alphabetical order, reported with share 0.
    """
    options = spec.options
    if options.source_lang is not None:
        return [DetectedTranslation(one, None) for one in await _translate(runtime, call, spec)]
    detection = DetectLanguageSpec(spec.inputs, options.target_lang, spec.model, spec.markup)
    found = await detect_language(runtime, call, detection)
    sources = _sources(runtime.candidates(spec.model, "translate"), options.target_lang)
    fallback = DetectedLanguage(min(sources) if sources else "en", 0.0)
    chosen = [ranked[0] if ranked else fallback for ranked in found]
    results: list[DetectedTranslation | None] = [None] * len(chosen)
    for language in dict.fromkeys(one.language for one in chosen):
        places = [place for place, one in enumerate(chosen) if one.language == language]
        part = replace(
            spec,
            inputs=[spec.inputs[place] for place in places],
            options=replace(options, source_lang=language),
        )
        for place, one in zip(places, await _translate(runtime, call, part), strict=True):
            results[place] = DetectedTranslation(one, chosen[place])
    return [one for one in results if one is not None]


async def _translate(runtime: Runtime, call: Call, spec: TranslateSpec) -> list[TranslatedText]:
    result = await complete_result(await translate(runtime, call, spec))
    return result.translations


def _sources(models: Sequence[ServedModel], target: str | None) -> frozenset[str] | None:
    """Languages that the models translate to `target`; None if one of them takes any language."""
    found: set[str] = set()
    for model in models:
        sources = model.text.languages.sources(target)
        if sources is None:
            return None
        found |= sources
    parsed = parse_language(target) if target else None
    return frozenset(found - {parsed.language} if parsed and len(found) > 1 else found)
