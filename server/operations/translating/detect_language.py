"""Detect the languages of texts, and translate texts whose language the request does not state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.cost import Cost, characters_of
from server.operations.generating.generation_run import complete_result
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.translating.translate import TranslateSpec, translate
from server.operations.translating.translate_run import TranslatedText
from server.operations.translating.translation_models import choose_path
from server.text.languages.chinese import chinese_script
from server.text.languages.detect import PRECISE_LANGUAGES, DetectedLanguage, DetectionError
from server.text.languages.language_codes import parse_language
from server.text.languages.pivots import pivoted_pairs
from server.text.markup.markup import plain_text
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupError

_COMMON = ("en", "de", "fr", "es", "it", "pt")
_MIN_CONSIDERED = 6
"""Minimum number of languages that the detector chooses from, if it has to recognize texts in the target language."""
_MIN_TARGET_SHARE = 0.5
"""A text counts as written in the target language if this language is the likeliest with at least this probability."""
_MIN_TARGET_RATIO = 1.5
"""A text also counts as written in the target language if this language is at least this many times as likely as the
second one. With many languages, even the likeliest one may have a low probability."""


@dataclass(frozen=True)
class DetectLanguageSpec:
    """Request for the languages of texts, among the source languages of the loaded models.

    target_lang: consider only this language, and languages that can be translated to it; None for all.
    model: consider only the languages of this model; None for all models.
    markup: how to read texts that are HTML or XML; None for plain text.
    is_source: whether the result has to be a source language. False without `target_lang` considers also the languages
        that the models translate to, and common languages.
    """

    texts: Sequence[str]
    target_lang: str | None = None
    model: str | None = None
    markup: MarkupOptions | None = None
    is_source: bool = True

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. Nothing is tokenized or sent to the engine."""
        return Cost(characters_of(self.texts), 0, 0)


@dataclass(frozen=True)
class DetectedTranslation:
    """The translation of one text. detected: language of the text; None if the request states the language."""

    translation: TranslatedText
    detected: DetectedLanguage | None


async def detect_language(runtime: Runtime, call: Call, spec: DetectLanguageSpec) -> list[list[DetectedLanguage]]:
    """Detect the languages of each text, most likely first; empty for a text without letters.

    If no model translates to `target_lang`, but a model reads it, all texts have to be in this language.
    Raises InvalidRequest if no model translates to `target_lang`, if the languages cannot be detected (for example
    because the package for it is missing), or if the markup cannot be read. Raises OperationNotSupported without a
    translation model.
    """
    models = runtime.candidates(spec.model, "translate")
    runtime.admission.admit(call, models[0], spec.cost(models[0]))
    runtime.check_characters(spec.texts, "inputs")
    languages = _sources(runtime, models, spec.target_lang)
    every = _sources(runtime, models, None)
    target = _language_of(spec.target_lang)
    only_target = languages is not None and not languages
    if only_target and (every is None or target not in every):
        raise _not_offered()
    considered = languages
    if languages is not None and target is not None:
        considered = _with_common_languages(languages | {target} | (every if only_target and every else frozenset()))
    elif languages is not None and not spec.is_source:
        considered = _with_common_languages(languages | _targets(models))
    known = every if every is None or considered is None else every | considered
    precise = known is not None and len(known) <= PRECISE_LANGUAGES

    def detect() -> list[list[DetectedLanguage]]:
        texts = [plain_text(text, spec.markup) for text in spec.texts] if spec.markup else spec.texts
        detector = runtime.language_detector
        if languages is None or (target is None and spec.is_source):
            return detector.detect(texts, languages, precise)
        try:
            found = detector.detect(texts, considered, precise)
        except DetectionError:
            if only_target:
                raise _not_offered() from None
            if len(languages) > 1:
                raise
            return detector.detect(texts, languages, precise)
        if target is None:
            return found
        reduced = [_of_the_request(ranked, languages, target) for ranked in found]
        if only_target and any(ranked and not own for ranked, own in zip(found, reduced, strict=True)):
            raise _not_offered()
        return reduced

    try:
        return await runtime.pools.detect.run(detect, call)
    except MarkupError as error:
        raise InvalidRequest(f"`inputs`: {error}", "inputs") from None
    except DetectionError as error:
        raise InvalidRequest(f"send `source_lang`: {error}", "source_lang") from None


def _not_offered() -> InvalidRequest:
    return InvalidRequest("no loaded model translates to `target_lang`", "target_lang")


def _with_common_languages(languages: frozenset[str]) -> frozenset[str]:
    """The given languages, with common languages added until there are `_MIN_CONSIDERED`.

    Without the added ones, a text in a language that no model reads would often be taken for the target language.
    """
    more = [code for code in _COMMON if code not in languages]
    return languages | frozenset(more[: max(0, _MIN_CONSIDERED - len(languages))])


def _of_the_request(ranked: Sequence[DetectedLanguage], sources: frozenset[str], target: str) -> list[DetectedLanguage]:
    """Reduce the detected languages of a text to those of the request. Empty if nothing was detected.

    If the text is most likely written in the target language, the result is this language alone. Otherwise it is the
    source languages, with shares that add up to 1; a single source language is assumed without detection.
    """
    if ranked and ranked[0].language == target:
        share, next_share = ranked[0].share, max((detected.share for detected in ranked[1:]), default=0.0)
        if share >= min(_MIN_TARGET_SHARE, _MIN_TARGET_RATIO * next_share):
            return [ranked[0]]
    found = [detected for detected in ranked if detected.language in sources]
    if not sources:
        return []
    if len(sources) == 1:
        return [DetectedLanguage(next(iter(sources)), 1.0)] if ranked else []
    total = sum(detected.share for detected in found)
    return [replace(detected, share=detected.share / total) for detected in found]


def _language_of(code: str | None) -> str | None:
    parsed = parse_language(code) if code else None
    return parsed.language if parsed else None


def _source_code(runtime: Runtime, spec: TranslateSpec, text: str, language: str) -> str:
    """The code of the source language of `text`.

    If Chinese is translated to Chinese in another script, the code names the script, provided that a model offers this
    pair.
    """
    target = spec.options.target_lang
    script = chinese_script(text) if language == "zh" == _language_of(target) else None
    if script is None or target is None:
        return language
    code = f"{language}-{script}"
    try:
        choose_path(runtime, spec.model, replace(spec.options, source_lang=code))
    except InvalidRequest:
        return language
    return code


async def translate_detected(runtime: Runtime, call: Call, spec: TranslateSpec) -> list[DetectedTranslation]:
    """Translate texts. If the request states no source language, the language of each text is detected first.

    A text in the target language is returned unchanged. So is a text without letters, whose language is reported as the
    alphabetically first source language, with share 0.
    Raises the errors of `detect_language` and `translate`.
    """
    options = spec.options
    if options.source_lang is not None:
        return [DetectedTranslation(translation, None) for translation in await _translate(runtime, call, spec)]
    detection = DetectLanguageSpec(spec.inputs, options.target_lang, spec.model, spec.markup)
    found = await detect_language(runtime, call, detection)
    sources = _sources(runtime, runtime.candidates(spec.model, "translate"), options.target_lang)
    fallback = DetectedLanguage(min(sources) if sources else _language_of(options.target_lang) or "en", 0.0)
    chosen = [ranked[0] if ranked else fallback for ranked in found]
    results: list[DetectedTranslation | None] = [None] * len(chosen)
    codes = [
        _source_code(runtime, spec, text, detected.language) for text, detected in zip(spec.inputs, chosen, strict=True)
    ]
    for language in dict.fromkeys(codes):
        places = [place for place, code in enumerate(codes) if code == language]
        part = replace(
            spec,
            inputs=[spec.inputs[place] for place in places],
            options=replace(options, source_lang=language),
        )
        for place, translation in zip(places, await _translate(runtime, call, part), strict=True):
            results[place] = DetectedTranslation(translation, chosen[place])
    return [result for result in results if result is not None]


async def _translate(runtime: Runtime, call: Call, spec: TranslateSpec) -> list[TranslatedText]:
    result = await complete_result(await translate(runtime, call, spec))
    return result.translations


def _targets(models: Sequence[ServedModel]) -> frozenset[str]:
    """Languages to which the models translate, as plain codes."""
    targets = {target for model in models for _, target in model.text.languages.pairs()}
    return frozenset(language.language for language in map(parse_language, targets - {"mul"}) if language is not None)


def _sources(runtime: Runtime, models: Sequence[ServedModel], target: str | None) -> frozenset[str] | None:
    """Languages that the models translate to `target`, also through a pivot language, as plain codes.

    target: None for all source languages. The result is None if a model translates from any language.
    """
    found: set[str] = set()
    for model in models:
        sources = model.text.languages.sources(target)
        if sources is None:
            return None
        found |= sources
    requested = parse_language(target) if target else None
    if requested is None:
        return frozenset(found)
    for source, written in pivoted_pairs([model.text.languages for model in models], runtime.pivot):
        language, own = parse_language(written), parse_language(source)
        if language is not None and own is not None and requested.fits(language):
            found.add(own.language)
    return frozenset(found - {requested.language} if len(found) > 1 else found)
