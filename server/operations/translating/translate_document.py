"""Translate the texts of a document in portions, so that other requests never wait for a whole long document."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from server.errors import NotReady, Overloaded
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_run import complete_result
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.translating.detect_language import DetectLanguageSpec, detect_language
from server.operations.translating.instructed import Formality, check_wishes
from server.operations.translating.translate import TranslateSpec, translate
from server.operations.translating.translation_models import choose_path
from server.text.documents.units import TextUnit

PORTION_CHARACTERS, PORTION_CHARACTERS_WITH_TAGS = 4_000, 16_000
PORTION_UNITS = 64
"""Maximum characters and texts of a portion, which is about 40 sentences; a longer text is a portion by itself. Other
requests may have to wait for one portion. Tags count only for the limit with tags, because they hardly add work."""
PORTIONS_AT_ONCE = 3
"""Number of a document's portions in progress. With three, the steps of the engine stay full
while one of them ends."""
DETECTED_CHARACTERS = 8_000
"""Number of characters at the beginning of a document from which its language is detected."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 5.0
"""Pauses between attempts, which double up to the maximum.

The first pause is short, because often another portion of the same document holds the memory and ends soon.
"""
PATIENCE_SECONDS = 600.0
"""Total time that a portion waits while the server is overloaded, before the document fails."""
_TAG = re.compile(r"<[^<>]*>")

Result = TypeVar("Result")


@dataclass(frozen=True)
class DocumentSpec:
    """Request for translations of a document's texts.

    units: the texts, in the order of the document.
    source_lang: language of the document; None to detect it.
    glossary_ids: ids of stored glossaries.
    model: name of the model; None for any model that offers the pair of languages.
    formality: `more` or `less` need a model with a prompt for it. Other models ignore `prefer_more` and `prefer_less`.
    """

    units: Sequence[TextUnit]
    source_lang: str | None
    target_lang: str
    glossary_ids: Sequence[str] = ()
    model: str | None = None
    formality: Formality | None = None

    @property
    def num_characters(self) -> int:
        return sum(len(unit.text) for unit in self.units)

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work for detecting the document's language. Each portion has a cost of its own."""
        return Cost(min(self.num_characters, DETECTED_CHARACTERS), 0, 0)


async def source_language(runtime: Runtime, call: Call, spec: DocumentSpec) -> str:
    """The language of a document: the stated one, or the one that is detected from its beginning.

    Also checks the rest of the request. Raises InvalidRequest for a pair of languages that is not offered, a formality
    that the model does not support, an unknown glossary, and a language that cannot be detected.
    """
    source = spec.source_lang
    if source is None:
        sample, length = [], 0
        for unit in spec.units:
            text = _TAG.sub(" ", unit.text) if unit.markup is not None else unit.text
            sample.append(text)
            length += len(text)
            if length >= DETECTED_CHARACTERS:
                break
        text = "\n".join(sample)[:DETECTED_CHARACTERS]
        ((*found,),) = await detect_language(runtime, call, DetectLanguageSpec([text], spec.target_lang, spec.model))
        source = found[0].language if found else spec.target_lang
    path = choose_path(runtime, spec.model, GenerationOptions(source_lang=source, target_lang=spec.target_lang))
    check_wishes(path, None, spec.formality)
    if spec.glossary_ids:
        runtime.glossaries.terms(call.cache_salt, spec.glossary_ids, source, spec.target_lang)
    return source


async def translate_document(
    runtime: Runtime,
    new_call: Callable[[], Call],
    spec: DocumentSpec,
    source_lang: str,
    on_progress: Callable[[int], None],
) -> list[str]:
    """Translate a document's texts, and return the translations in order. Equal texts are translated once.

    new_call: creates the call of one portion.
    on_progress: called after each portion with the number of characters that it adds to the translated ones.
    While the server is overloaded or a worker is replaced, portions wait up to `PATIENCE_SECONDS`.
    Raises the errors of `translate` and of its sequences.
    """
    # In a thread: it takes a second for 200,000 texts.
    plan = await _patiently(lambda: runtime.pools.tokenize.run(lambda: _plan(spec.units)))
    found = [""] * len(plan.texts)
    portions = iter(plan.portions)

    async def work() -> None:
        for portion in portions:
            units = [plan.texts[place] for place in portion]
            texts = await _patiently(partial(_translated, runtime, new_call, spec, source_lang, units))
            for place, text in zip(portion, texts, strict=True):
                found[place] = text
            on_progress(sum(plan.characters[place] for place in portion))

    workers = [asyncio.ensure_future(work()) for _ in range(PORTIONS_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [found[place] for place in plan.places]


@dataclass(frozen=True)
class _Plan:
    """The different texts of a document, and the portions in which they are translated.

    texts: the different texts. places: for each text of the document, its index in `texts`.
    characters: for each of `texts`, the total characters of all equal texts of the document.
    portions: for each portion, indices in `texts`.
    """

    texts: list[TextUnit]
    places: list[int]
    characters: list[int]
    portions: list[list[int]]


def _plan(units: Sequence[TextUnit]) -> _Plan:
    known: dict[TextUnit, int] = {}
    places = [known.setdefault(unit, len(known)) for unit in units]
    texts, characters = list(known), [0] * len(known)
    for place in places:
        characters[place] += len(texts[place].text)
    return _Plan(texts, places, characters, list(_portions(texts)))


def _portions(units: Sequence[TextUnit]) -> Iterator[list[int]]:
    """Divide texts into portions, and yield the indices of the texts in each portion.

    All texts of a portion have the same markup, and either all or none have tags. Texts with tags come last: they are
    kept apart, because placing tags requires the attention of all sentences of a portion.
    The portions that begin together have different sizes, so that they do not end together: the others fill the steps
    of the engine while one ends.
    """
    portion: list[int] = []
    size = size_with_tags = num_portions = 0
    for place in sorted(range(len(units)), key=lambda place: _has_tags(units[place])):
        unit, visible = units[place], _visible_characters(units[place])
        share = min(1.0, (num_portions + 1) / PORTIONS_AT_ONCE)
        is_full = (
            len(portion) >= share * PORTION_UNITS
            or size + visible > share * PORTION_CHARACTERS
            or size_with_tags + len(unit.text) > share * PORTION_CHARACTERS_WITH_TAGS
        )
        kind = (unit.markup, _has_tags(unit))
        if portion and (is_full or (units[portion[0]].markup, _has_tags(units[portion[0]])) != kind):
            yield portion
            portion, size, size_with_tags, num_portions = [], 0, 0, num_portions + 1
        portion.append(place)
        size += visible
        size_with_tags += len(unit.text)
    if portion:
        yield portion


def _has_tags(unit: TextUnit) -> bool:
    return unit.markup is not None and "<" in unit.text


def _visible_characters(unit: TextUnit) -> int:
    """Number of characters of a text without its tags."""
    return len(_TAG.sub("", unit.text)) if _has_tags(unit) else len(unit.text)


async def _translated(
    runtime: Runtime, new_call: Callable[[], Call], spec: DocumentSpec, source_lang: str, portion: Sequence[TextUnit]
) -> list[str]:
    options = GenerationOptions(source_lang=source_lang, target_lang=spec.target_lang)
    texts = [unit.text for unit in portion]
    asked = TranslateSpec(
        texts,
        options,
        model=spec.model,
        markup=portion[0].markup,
        glossary_ids=spec.glossary_ids,
        formality=spec.formality,
    )
    with new_call() as call:
        await runtime.prepare(call, "translate", asked)
        result = await complete_result(await translate(runtime, call, asked))
    return [translation.text for translation in result.translations]


async def _patiently(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Run `attempt` until it succeeds, and return its result.

    It is repeated while the server is overloaded or a worker is replaced. After `PATIENCE_SECONDS` of pauses, the last
    error, Overloaded or NotReady, is raised.
    """
    waited, pause = 0.0, FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except (Overloaded, NotReady):
            if waited >= PATIENCE_SECONDS:
                raise
        await asyncio.sleep(pause)
        waited += pause
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
