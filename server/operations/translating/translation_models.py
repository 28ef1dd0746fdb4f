"""Which of the loaded models translates between the languages of a request."""

from __future__ import annotations

from server.errors import InvalidRequest
from server.operations.generating.generation_options import GenerationOptions
from server.operations.runtime import Runtime, ServedModel
from server.text.languages.languages import TranslationPrompt, UnknownPair


def choose_model(
    runtime: Runtime, name: str | None, options: GenerationOptions
) -> tuple[ServedModel, TranslationPrompt]:
    """The first model that offers the pair of languages. Raises InvalidRequest that lists the pairs on offer.

    name: name of the model, or None for any.
    """
    refusals: list[tuple[str, UnknownPair]] = []
    for model in runtime.candidates(name, "translate"):
        try:
            return model, model.text.languages.match(options.source_lang, options.target_lang)
        except UnknownPair as error:
            refusals.append((model.name, error))
    first = refusals[0][1]
    if len(refusals) == 1:
        raise InvalidRequest(str(first), first.param)
    problems = {error.problem: error for _, error in refusals}
    missing = [field for field in ("source_lang", "target_lang") if getattr(options, field) is None]
    problem, param = first.problem, first.param
    if len(problems) > 1:
        problem = (
            f"send {' and '.join(f'`{field}`' for field in missing)}" if missing else "this translation is not offered"
        )
        param = missing[0] if missing else "target_lang"
    listings = "; ".join(f"{refused}: {error.listing}" for refused, error in refusals)
    raise InvalidRequest(f"{problem}; {listings}", param)


def language_prompt_of(options: GenerationOptions, model: ServedModel) -> TranslationPrompt:
    """The checkpoint's prompt for this translation. Raises InvalidRequest if it does not offer the pair."""
    try:
        return model.text.languages.match(options.source_lang, options.target_lang)
    except UnknownPair as error:
        raise InvalidRequest(str(error), error.param) from None
