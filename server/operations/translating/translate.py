"""Translate the texts of a request: divide them into sentences, send these to a worker, and join the translations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import msgspec

from server.errors import InvalidRequest, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Generate
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.generating import grammar, prompts
from server.operations.generating.generate import generation_cost, text_options
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import resolve
from server.operations.generating.generation_run import TextRun
from server.operations.generating.logprob_memory import logprob_memory
from server.operations.generating.sequence_tries import allowed_trie
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.translating import segments
from server.operations.translating.glossary import (
    SentenceTerms,
    check_glossary,
    find_terms,
    glossary_characters,
    options_with_terms,
)
from server.operations.translating.instructed import Formality, longest_frame, segment_tokens, with_frames
from server.operations.translating.loops import second_attempt, sets_repetitions
from server.operations.translating.marked_segments import MarkedSegment, fit_attention, split_markup
from server.operations.translating.pivot_step import ROWS_AT_ONCE, read_segments, to_pivot
from server.operations.translating.segment_rows import SegmentRows, SegmentSettings
from server.operations.translating.segments import Segment, SegmentedText
from server.operations.translating.translate_run import TranslateRun
from server.operations.translating.translation_models import (
    TranslationPath,
    choose_path,
    language_prompt_of,
    longest_answer,
)
from server.operations.translating.wrong_language import mark_wrong_languages
from server.system.loop_iterations import next_iteration
from server.text.languages.language_codes import parse_language
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.protected import Protection
from server.text.markup.shown_tags import TAG_CHARACTERS, can_be_shown

COSTS_AT_ONCE, COST_CHARACTERS = 64, 1 << 16
"""Maximum number of texts, and of characters of all texts, that are read on the event loop. More are read in a
thread."""
MAX_SEGMENTS = 1 << 13
"""Maximum number of segments of one request that a model translates."""

ReadT = TypeVar("ReadT")


@dataclass(frozen=True)
class TranslateSpec:
    """Request for translations of texts. The languages are in `options`.

    num_alternatives: number of further translations of each text, from beam search.
    split_sentences: translate sentence by sentence. With None, texts are split unless an option describes the whole
        answer, such as `text_format`.
    split_at_newlines: a line break ends a sentence. For markup, `markup.split_at_newlines` is used instead.
    model: name of the model; None for the first model that offers the pair of languages.
    markup: how to read texts that are HTML or XML; None for plain text.
    glossary: translations by term. The translation of a sentence with a term contains the term's translation.
    context: text around the inputs, which the model reads but does not translate. Needs a model with a prompt for it.
    formality: `more` or `less` need a model with a prompt for it. Other models ignore `prefer_more` and `prefer_less`.
    quality: report each sentence with its score, and flag translations that are not in the target language.
    glossary_ids: ids of stored glossaries of the request's API key, which replace `glossary`.
    protect: parts of the texts that are not translated. With None, these are parts that match known patterns, such as
        addresses, unless an option excludes protected parts.
    fails_alone: a failed text is reported in its place of the answer, unless all texts fail. Otherwise one failure
        fails the request.
    """

    inputs: Sequence[str]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    num_alternatives: int = 0
    split_sentences: bool | None = None
    model: str | None = None
    split_at_newlines: bool = True
    markup: MarkupOptions | None = None
    glossary: Mapping[str, str] = field(default_factory=dict)
    fails_alone: bool = False
    protect: Protection | None = None
    glossary_ids: Sequence[str] = ()
    context: str | None = None
    formality: Formality | None = None
    quality: bool = False

    @property
    def protection(self) -> Protection:
        """Parts of the texts that are not translated: `protect`, or its default."""
        if self.protect is not None:
            return self.protect
        return Protection(patterns=self._whole_text_option() is None)

    def _whole_text_option(self) -> str | None:
        """Name of an option in the request that excludes protected parts; None if there is none.

        Such options act on a translation while it is generated. Protected parts are inserted afterwards.
        """
        options = self.options
        given = {
            "stop": options.stop,
            "decoder_prefix": options.decoder_prefix,
            "response_format": options.text_format,
            "allowed_sequences": options.allowed_sequences,
        }
        return next((name for name, value in given.items() if value), None)

    @property
    def splits(self) -> bool:
        return self.split_sentences is not False and self.shaping_option is None

    @property
    def shaping_option(self) -> str | None:
        """Name of an option in the request that describes the whole answer, so that texts are not split; None if there
        is none.
        """
        given = {"response_format": self.options.text_format, "allowed_sequences": self.options.allowed_sequences}
        return next((name for name, value in given.items() if value), None)

    @property
    def has_tags(self) -> bool:
        """Whether some text may have inline tags: the texts are markup, and one of them has a `<`."""
        return self.markup is not None and any("<" in text for text in self.inputs)

    @property
    def stream(self) -> bool:
        return self.options.stream

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. model: the model of one step of the translation.

        A segment is tokenized up to twice: to see whether it fits the model, and to translate it. A segment with inline
        tags is tokenized once more, to locate its tokens. The translations of glossary terms are tokenized four times.
        Raises InvalidRequest if the model does not offer the pair of languages.
        """
        language_prompt = language_prompt_of(self.options, model)
        if language_prompt.copies:
            return Cost(characters_of(self.inputs), 0, 0)
        model = model.for_task(language_prompt.task)
        prefix, limit = language_prompt.prefix, model.max_input_tokens
        is_instructed = model.instruction is not None
        if is_instructed:
            prefix, limit = longest_frame(model, self.context or ""), segment_tokens(model)
        repeats_tags = model.instruction is not None and self.has_tags and bool(model.instruction.with_tags)
        places = self.has_tags or any(map(self.protection.may_apply, self.inputs))
        by_parts = self.splits or self.markup is not None or places
        counts = [
            segments.max_segments(text, limit, self.markup is not None or places) if by_parts else 1
            for text in self.inputs
        ]
        around = most_tokens(model.tokenizer, prefix)
        tokens: list[int] = []
        for text, count in zip(self.inputs, counts, strict=True):
            shown_tags = TAG_CHARACTERS * text.count("<") if repeats_tags else 0
            mean = -(-(model.tokenizer.token_bound(text) + shown_tags) // count)
            tokens += [min(mean + around, model.max_input_tokens)] * count
        characters = characters_of(self.inputs) + sum(counts) * len(prefix)
        characters += glossary_characters(self.glossary, sum(counts))
        options = self.options
        if self.glossary:
            options = options_with_terms(options, model.info, 1 + self.num_alternatives)
        aligned = places and not is_instructed
        options = replace(
            options,
            num_return_sequences=1 + self.num_alternatives,
            return_attention=options.return_attention or aligned,
        )
        if is_instructed and options.max_new_tokens is None:
            options = replace(options, max_new_tokens=longest_answer(max(tokens, default=around) - around))
        work = (3 if places else 2) * characters
        cost = generation_cost(options, model, work, tokens, candidates=1, max_sequences=None)
        return replace(cost, placed_tokens=sum(map(model.tokenizer.token_bound, self.inputs)) if aligned else 0)


async def translate(runtime: Runtime, call: Call, spec: TranslateSpec) -> TranslateRun:
    """Start to translate texts: check the request, split texts into segments, tokenize them, and send them to a worker.

    With a pivot language, this waits until the first model has translated all segments into it.
    Raises InvalidRequest, which names the wrong option; RequestTooLarge, Overloaded, and the errors of the first model.
    """
    path = choose_path(runtime, spec.model, spec.options)
    step = path.last
    model, options = step.model, step.options
    spec = _with_stored_terms(runtime, call, spec)
    _check(spec)
    for path_step in path.steps:
        cost = await _cost(runtime, call, replace(spec, options=path_step.options), path_step.model)
        runtime.admission.admit(call, path_step.model, cost)
    path = await with_frames(runtime, call, path, spec.context, spec.formality, spec.has_tags)
    step, options = path.last, path.last.generation_options
    continues = step.frame is not None or options.decoder_prefix is not None
    sections, token_bytes = await grammar.prepare(runtime, call, model, options.text_format, continues=continues)
    ranks = spec.num_alternatives + 1
    inputs = [SegmentedText(i, parts) for i, parts in enumerate(await _split(runtime, call, path, spec))]
    places = [
        (text, index)
        for text in ([] if step.prompt.copies else inputs)
        for index, segment in enumerate(text.segments)
        if segment.needs_model
    ]
    sequences = await allowed_trie(runtime, call, model, options)
    resolved = resolve(options, model, step.prompt, min_beams=ranks, sections=sections, sequences=sequences)
    if resolved.params.num_beams < ranks:
        raise InvalidRequest(
            f"`num_alternatives` {spec.num_alternatives} requires `num_beams` of at least {ranks}", "num_alternatives"
        )
    if len(places) > MAX_SEGMENTS:
        raise RequestTooLarge(
            f"`inputs` has {len(places):,} sentences or other segments; the limit of one request is {MAX_SEGMENTS:,}",
            "inputs",
        )
    translated = [text.segments[index] for text, index in places]
    tagged = [segment for segment in translated if isinstance(segment, MarkedSegment) and segment.has_tags]
    is_aligned = options.return_attention or (bool(tagged) and not path.is_instructed)
    scored = {"num_return_sequences": ranks, "attention": is_aligned, "logprobs": options.logprobs or spec.quality}
    params = msgspec.structs.replace(resolved.params, **scored)
    for segment in translated:
        segment.is_aligned = is_aligned and (options.return_attention or segment.has_tags)
    if params.stop_texts and token_bytes is None:
        token_bytes = await grammar.token_bytes_for_stops(runtime, call, model)
    items = [text.index for text, _ in places] if spec.fails_alone else None
    fit = None if options.return_attention else partial(fit_attention, has_markup=spec.markup is not None)
    await read_segments(runtime, call, path.first, translated)
    first: TextRun | None = None
    if path.pivot is not None and translated:
        first = await to_pivot(runtime, call, path, translated, items, resolved.seed, is_aligned, fit)
        places = [(text, index) for text, index in places if text.index not in first.failures]
        translated = [text.segments[index] for text, index in places]
        items = [text.index for text, _ in places] if spec.fails_alone else None
    terms, term_params = SentenceTerms([[] for _ in translated]), params
    if spec.glossary:
        terms = await find_terms(runtime, call, model, spec.glossary, [sentence.text for sentence in translated])
        own = resolve(options_with_terms(options, model.info, ranks), model, step.prompt)
        term_params = msgspec.structs.replace(own.params, **scored)
    shown = text_options(options, token_bytes)
    with_terms = SegmentSettings(term_params, replace(shown, token_bytes=terms.token_bytes))
    rows = SegmentRows(call, step, resolved, SegmentSettings(params, shown), with_terms)
    for (text, _), segment, required in zip(places, translated, terms.by_sentence, strict=True):
        if len(rows.rows) % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await next_iteration()
        rows.add(text.index, segment, required)
    message = Generate(model.name, params, rows.sources, rows.rows, cache_salt=call.cache_salt)
    if any(terms.by_sentence):
        message = msgspec.structs.replace(message, terms=terms.terms, term_params=term_params)
    if fit is not None:
        message = fit(message, options.max_new_tokens is None)
    prompts.check_attention_size(message, "" if options.return_attention else "aligning the inline tags of `inputs`")
    memory = logprob_memory(runtime.admission, call, replace(options, logprobs=params.logprobs))

    def check(translated: Sequence[Segment]) -> Awaitable[None]:
        languages = path.first.prompt.source_lang, step.prompt.target_lang or spec.options.target_lang
        return mark_wrong_languages(runtime, call, translated, *languages)

    await next_iteration()
    call.submit(message)
    run = TextRun(call, rows.answers, items=items, logprob_memory=memory)
    again = None if sets_repetitions(options) else partial(second_attempt, call, message, new_answers=rows.new_answers)
    return TranslateRun(
        run, path, spec.options, resolved.seed, inputs, places, first, again, check if spec.quality else None
    )


async def _cost(runtime: Runtime, call: Call, spec: TranslateSpec, model: ServedModel) -> Cost:
    """Compute the cost of a request with a model."""
    return await _read_texts(runtime, call, spec, partial(spec.cost, model))


async def _read_texts(runtime: Runtime, call: Call, spec: TranslateSpec, read: Callable[[], ReadT]) -> ReadT:
    """Call a function that reads all texts of a request. This takes 50 microseconds per text, so many get a thread."""
    if len(spec.inputs) <= COSTS_AT_ONCE and characters_of(spec.inputs) <= COST_CHARACTERS:
        return read()
    return await runtime.pools.parse.run(read, call)


def _with_stored_terms(runtime: Runtime, call: Call, spec: TranslateSpec) -> TranslateSpec:
    """Return the request with the terms of the stored glossaries that it names, or unchanged if it names none.

    Raises InvalidRequest for an unknown glossary, and for one without terms for the pair of languages.
    """
    if not spec.glossary_ids:
        return spec
    source, target = spec.options.source_lang or "", spec.options.target_lang or ""
    return replace(spec, glossary=runtime.glossaries.terms(call.cache_salt, spec.glossary_ids, source, target))


def _check(spec: TranslateSpec) -> None:
    """Raise InvalidRequest for options that translations do not support, or that cannot be combined."""
    options = spec.options
    check_glossary(spec.glossary, options, is_stored=bool(spec.glossary_ids))
    shaping = spec.shaping_option
    if spec.markup is not None:
        for name in ("stream", "stop", "decoder_prefix"):
            if getattr(options, name):
                raise InvalidRequest(f"`{name}` cannot be combined with markup, whose tags are placed at the end", name)
        if shaping is not None:
            raise InvalidRequest(f"`{shaping}` applies to whole texts, so it cannot be combined with markup", shaping)
    excluded = spec._whole_text_option()
    if spec.protect is not None and spec.protect != Protection() and excluded is not None:
        raise InvalidRequest(f"`protect` cannot be combined with `{excluded}`", "protect")
    if options.n != 1:
        raise InvalidRequest("`n` is not supported for translations; use `num_alternatives`", "n")
    if spec.split_sentences and shaping is not None:
        raise InvalidRequest(
            f"`split_sentences` cannot be combined with `{shaping}`, which applies to the whole text", "split_sentences"
        )
    if spec.glossary and options.allowed_sequences:
        raise InvalidRequest("`glossary` cannot be combined with `allowed_sequences`", "glossary")
    if options.best_of not in (None, 1):
        raise InvalidRequest("`best_of` is not supported for translations; use `num_beams`", "best_of")
    if options.num_return_sequences != 1:
        raise InvalidRequest(
            "`num_return_sequences` is not supported for translations; use `num_alternatives`", "num_return_sequences"
        )


async def _split(runtime: Runtime, call: Call, path: TranslationPath, spec: TranslateSpec) -> list[list[Segment]]:
    """Split each input into segments that are short enough for the first model.

    Raises InvalidRequest for markup that cannot be read, and for a too long text.
    """
    model, language_prompt = path.first.model, path.first.prompt
    if language_prompt.copies:
        return [[Segment(text, "")] for text in spec.inputs]
    protection = spec.protection
    marked = await _read_texts(
        runtime, call, spec, lambda: [spec.markup is not None or protection.may_apply(text) for text in spec.inputs]
    )
    if not spec.splits and not any(marked):
        return [
            [replace(segment, is_instructed=path.is_instructed) for segment in segments.whole(text)]
            for text in spec.inputs
        ]
    runtime.check_characters(spec.inputs, "inputs")
    runtime.check_tokens(model.tokenizer, spec.inputs, "inputs")
    is_instructed = path.first.frame is not None
    limit = segment_tokens(model) if is_instructed else model.info.source_tokens

    def fits(text: str) -> bool:
        if not limit or most_tokens(model.tokenizer, language_prompt.prefix + text) <= limit:
            return True
        own_specials = language_prompt.trailing_source_ids is None and not is_instructed
        encoded = model.tokenizer.encode(
            [language_prompt.prefix + text], add_special_tokens=own_specials, offsets=False
        )[0]
        return len(prompts.with_language_tokens(encoded, language_prompt).ids) <= limit

    source = language_prompt.source_lang or spec.options.source_lang
    target = path.last.prompt.target_lang or spec.options.target_lang

    def split(text: str) -> list[Segment]:
        if not spec.splits:
            return segments.whole(text)
        return segments.split(text, target, fits, spec.split_at_newlines, source)

    markup = spec.markup or MarkupOptions("text", split_at_newlines=spec.split_at_newlines or not spec.splits)
    read = parse_language(source or "")

    def split_one(text: str, is_marked: bool) -> list[Segment]:
        own = replace(markup, protection=protection.in_text(text, read.language if read else None))
        found = split_markup(text, own, split, fits) if is_marked else split(text)
        for segment in found:
            segment.is_instructed = path.is_instructed
            if isinstance(segment, MarkedSegment):
                segment.repeats_parts = all(step.frame is not None for step in path.steps)
                segment.shows_tags = path.first.tag_frame is not None and can_be_shown(*segment.with_parts)
        return found

    pieces = [partial(split_one, text, is_marked) for text, is_marked in zip(spec.inputs, marked, strict=True)]
    return await runtime.pools.tokenize.run_pieces(pieces, call)
