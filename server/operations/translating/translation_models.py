"""Choose the models that translate between a request's languages: one model, or two through a pivot language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.errors import InvalidRequest
from server.operations.generating.generation_options import GenerationOptions
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.languages.languages import TranslationPrompt, UnknownPair
from server.text.languages.pivots import AUTOMATIC, OFF, chosen_pivot, connecting_languages, translations
from server.text.languages.prompt_frame import PromptFrame

_SEARCH_OPTIONS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "truncate",
)
"""Options of the request that also apply to the translation into a pivot language. All others only apply to the answer.
"""


LONGEST_RATIO = 6
"""Maximum number of tokens that a translation may have per source token. Longer translations are taken for loops."""


def longest_answer(num_tokens: int) -> int:
    """Maximum number of tokens of a translation. num_tokens: number of tokens of the source."""
    return 32 + LONGEST_RATIO * max(num_tokens, 1)


@dataclass(frozen=True)
class TranslationStep:
    """One model of a translation and the languages that it translates between.

    prompt: the checkpoint's codes and tokens for these languages.
    options: the request's options that apply to this model.
    frame: the prompt of a language model around a text; None for an encoder-decoder.
    tag_frame: the prompt of a language model around a text with inline tags; None if the model has none, or no text has
        tags.
    """

    model: ServedModel
    prompt: TranslationPrompt
    options: GenerationOptions
    frame: PromptFrame | None = None
    tag_frame: PromptFrame | None = None

    @property
    def generation_options(self) -> GenerationOptions:
        """The options for generation. For a language model, they have no languages, because its prompt names them."""
        if self.model.instruction is None:
            return self.options
        return replace(self.options, source_lang=None, target_lang=None, fill_context=True)

    def answer_tokens(self, source: Sequence[int]) -> int | None:
        """Maximum number of tokens of a language model's answer to a source text.

        None if another limit applies: the limit of the request, or of an encoder-decoder's checkpoint.
        source: token ids of the source text with its prompt.
        """
        if self.frame is None or self.options.max_new_tokens is not None:
            return None
        return longest_answer(len(source) - self.frame.num_tokens)


@dataclass(frozen=True)
class TranslationPath:
    """The models of a translation, in order. pivot: code of the language between two models; None for one model."""

    steps: tuple[TranslationStep, ...]
    pivot: str | None = None

    @property
    def first(self) -> TranslationStep:
        return self.steps[0]

    @property
    def last(self) -> TranslationStep:
        return self.steps[-1]

    @property
    def is_instructed(self) -> bool:
        """Whether a language model is used. It has no attention that could align source and translation."""
        return any(step.frame is not None for step in self.steps)


def choose_path(runtime: Runtime, name: str | None, options: GenerationOptions) -> TranslationPath:
    """Choose the first model that offers the pair of languages, or two models that translate through a pivot language.

    name: name of the only model to consider; None for all models.
    Raises InvalidRequest, which lists the offered pairs, if no models offer the pair.
    """
    refusals: list[tuple[str, UnknownPair]] = []
    models = runtime.candidates(name, "translate")
    for model in models:
        try:
            prompt = model.text.languages.match(options.source_lang, options.target_lang)
            return TranslationPath((_step(model, prompt, options),))
        except UnknownPair as error:
            refusals.append((model.name, error))
    connecting = _connecting(models, options) if runtime.pivot != OFF else []
    pivot = chosen_pivot(connecting, runtime.pivot)
    if pivot is not None:
        return _pivoted(models, options, pivot)
    raise _refusal(refusals, options, connecting if runtime.pivot == AUTOMATIC else [])


def _step(model: ServedModel, prompt: TranslationPrompt, options: GenerationOptions) -> TranslationStep:
    """Create a step. If the checkpoint has settings for this pair of languages, they are the model's defaults."""
    return TranslationStep(model.for_task(prompt.task), prompt, options)


def _connecting(models: Sequence[ServedModel], options: GenerationOptions) -> list[str]:
    if options.source_lang is None or options.target_lang is None:
        return []
    return connecting_languages([model.text.languages for model in models], options.source_lang, options.target_lang)


def _pivoted(models: Sequence[ServedModel], options: GenerationOptions, pivot: str) -> TranslationPath:
    searching = {name: getattr(options, name) for name in _SEARCH_OPTIONS}
    first = GenerationOptions(source_lang=options.source_lang, target_lang=pivot, **searching)
    last = replace(options, source_lang=pivot, truncate=None)
    steps = []
    for own in (first, last):
        assert own.source_lang is not None and own.target_lang is not None, "a pivot connects two stated languages"
        checkpoints = [model.text.languages for model in models]
        place, prompt = next(iter(translations(checkpoints, own.source_lang, own.target_lang)))
        steps.append(_step(models[place], prompt, own))
    return TranslationPath(tuple(steps), pivot)


def _refusal(
    refusals: Sequence[tuple[str, UnknownPair]], options: GenerationOptions, connecting: Sequence[str]
) -> InvalidRequest:
    """Create the error for a pair that is not offered.

    refusals: (name of the model, its error), for each model.
    connecting: languages of which the setting `--pivot` would have to choose one as the pivot; empty if there are none.
    """
    first = refusals[0][1]
    if len(refusals) == 1:
        return InvalidRequest(str(first), first.param)
    problems = {error.problem: error for _, error in refusals}
    missing = [field for field in ("source_lang", "target_lang") if getattr(options, field) is None]
    problem, param = first.problem, first.param
    if len(problems) > 1:
        problem = (
            f"send {' and '.join(f'`{field}`' for field in missing)}" if missing else "this translation is not offered"
        )
        param = missing[0] if missing else "target_lang"
    if connecting:
        problem += f" without a pivot language: set --pivot to one of {', '.join(connecting)}"
    listings = "; ".join(f"{refused}: {error.listing}" for refused, error in refusals)
    return InvalidRequest(f"{problem}; {listings}", param)


def language_prompt_of(options: GenerationOptions, model: ServedModel) -> TranslationPrompt:
    """The model's codes and tokens for the languages of `options`.

    Raises InvalidRequest for a pair of languages that the model does not offer.
    """
    try:
        return model.text.languages.match(options.source_lang, options.target_lang)
    except UnknownPair as error:
        raise InvalidRequest(str(error), error.param) from None
