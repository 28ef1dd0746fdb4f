"""Translation with an encoder-decoder, sentence by sentence unless the request says otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from server.errors import InvalidRequest, RequestError, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.messages import Generate, GenerateRow
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.generating import grammar, prompts
from server.operations.generating.generate import generation_cost, hypotheses, text_options
from server.operations.generating.generated_text import AttentionMatrix, GeneratedText, ScoredToken, TextDelta
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import resolve
from server.operations.generating.generation_run import PhaseSeconds, TextRun, TokenUsage
from server.operations.generating.logprob_memory import logprob_memory
from server.operations.runtime import Runtime, ServedModel
from server.operations.translating import segments
from server.operations.translating.glossary import SentenceTerms, check_glossary, find_terms, options_with_terms
from server.operations.translating.marked_segments import MarkedSegment, fit_attention, locate_tokens, split_markup
from server.operations.translating.segments import Segment, SegmentDelta, SegmentedText
from server.operations.translating.translation_models import choose_model, language_prompt_of
from server.text.languages.languages import TranslationPrompt
from server.text.markup.markup import MarkupOptions
from server.text.markup.protected import Protection

MAX_SEGMENTS = 1 << 13
"""Sentences of all texts of one request."""
_ROWS_AT_ONCE = 64
"""Rows that are prepared between two turns of the event loop. Each one takes 20 microseconds for each alternative."""


@dataclass(frozen=True)
class TranslateSpec:
    """Ask for translations of texts. The languages are in `options`.

    num_alternatives: further translations per text, from beam search.
    split_sentences: translate sentence by sentence. None: yes, unless `text_format` is set.
    split_at_newlines: a line break ends a sentence. For markup, the field of `markup` is used instead.
    model: name of the model, or None for the first one that offers the pair of languages.
    markup: the texts are HTML or XML, whose tags stay in place; None for plain text.
    glossary: translations of terms. A sentence with a term is translated with the term's translation.
    protect: parts of the texts that stay as they are. None: all known patterns, where the options allow it.
    fails_alone: a failed text is reported at its place in the answer, unless all texts fail. Otherwise one failure
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

    @property
    def protection(self) -> Protection:
        """Parts of the texts that stay as they are: none with options for the whole text."""
        if self.protect is not None:
            return self.protect
        return Protection(patterns=self._whole_text_option() is None)

    def _whole_text_option(self) -> str | None:
        """An option that excludes protected parts, which are placed at the end of a segment."""
        options = self.options
        given = {"stop": options.stop, "decoder_prefix": options.decoder_prefix, "response_format": options.text_format}
        return next((name for name, value in given.items() if value), None)

    @property
    def splits(self) -> bool:
        return self.split_sentences is not False and self.options.text_format is None

    @property
    def stream(self) -> bool:
        return self.options.stream

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`.

        A segment is encoded up to twice: once to see whether it fits the model, once to translate it. One with inline
        tags is encoded once more, to see where its tokens are. Any sentence may have terms of the glossary, whose
        translations are encoded four times.
        """
        language_prompt = language_prompt_of(self.options, model)
        if language_prompt.copies:
            return Cost(characters_of(self.inputs), 0, 0)
        model = model.for_task(language_prompt.task)
        prefix, limit = language_prompt.prefix, model.max_input_tokens
        places = self.markup is not None or any(map(self.protection.may_apply, self.inputs))
        by_parts = self.splits or places
        counts = [segments.max_segments(text, limit, places) if by_parts else 1 for text in self.inputs]
        around = most_tokens(model.tokenizer, prefix)
        tokens: list[int] = []
        for text, count in zip(self.inputs, counts, strict=True):
            mean = -(-model.tokenizer.token_bound(text) // count)
            tokens += [min(mean + around, limit)] * count
        characters = characters_of(self.inputs) + sum(counts) * len(prefix)
        characters += 4 * characters_of(self.glossary.values())
        options = self.options
        if self.glossary:
            options = options_with_terms(options, model.info, 1 + self.num_alternatives)
        options = replace(
            options,
            num_return_sequences=1 + self.num_alternatives,
            return_attention=options.return_attention or places,
        )
        work = (3 if places else 2) * characters
        cost = generation_cost(options, model, work, tokens, candidates=1, max_sequences=None)
        return replace(cost, placed_tokens=sum(map(model.tokenizer.token_bound, self.inputs)) if places else 0)


@dataclass(frozen=True)
class TranslatedText:
    """The translation of one input.

    source_lang, target_lang: as the checkpoint names them, else as the request does.
    score: sum of the segments' scores, with beam search.
    alternatives: (text, score) of further translations, by descending score.
    alignments: one per translated segment, if requested.
    flags: what a reader should check: `numbers` if a sentence and its translation have other numbers.
    error: why the translation failed, or None. The text is then the part that was streamed before the failure.
    """

    text: str
    source_lang: str | None
    target_lang: str | None
    score: float | None
    alternatives: list[tuple[str, float | None]]
    finish_reason: str
    token_ids: list[int]
    logprobs: Sequence[ScoredToken] | None
    alignments: list[AttentionMatrix] | None
    flags: Sequence[str] = ()
    error: RequestError | None = None


@dataclass(frozen=True)
class TranslateResult:
    """Translations in the order of the inputs."""

    model: str
    translations: list[TranslatedText]
    usage: TokenUsage
    seed: int
    timings: PhaseSeconds


@dataclass
class TranslateRun:
    """A submitted `TranslateSpec`.

    inputs: the segments of each input.
    places: (input, segment) of each sequence.
    sources: source token ids of each sequence.
    """

    run: TextRun
    spec: TranslateSpec
    model: ServedModel
    language_prompt: TranslationPrompt
    seed: int
    inputs: list[SegmentedText]
    places: list[tuple[SegmentedText, int]]
    sources: list[list[int]]

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def answer_size(self) -> int:
        return self.run.answer_size

    async def begin(self) -> list[SegmentDelta]:
        return self._in_order(await self.run.begin())

    async def forward(self, sink: Callable[[list[SegmentDelta]], bool]) -> bool:
        return await self.run.forward(lambda deltas: sink(self._in_order(deltas)))

    async def complete(self) -> None:
        await self.run.complete()

    @property
    def timed_out(self) -> bool:
        return self.run.timed_out

    def result(self) -> TranslateResult:
        return TranslateResult(
            self.model.name,
            [self._translation(one) for one in self.inputs],
            TokenUsage(sum(map(len, self.sources)), self.run.completion_tokens(), self.run.cached_prompt_tokens()),
            self.seed,
            self.run.timings(),
        )

    def _in_order(self, deltas: list[TextDelta]) -> list[SegmentDelta]:
        for item in self.run.failures:
            self.inputs[item].failed = True
        for delta in deltas:
            if delta.answer.rank == 0:
                text, segment = self.places[delta.answer.row]
                text.hold(segment, delta)
        return [released for text in self.inputs for released in text.release()]

    def _translation(self, text: SegmentedText) -> TranslatedText:
        options, parts = self.spec.options, text.best()
        source_lang = self.language_prompt.source_lang or options.source_lang
        target_lang = self.language_prompt.target_lang or options.target_lang
        error = self.run.failures.get(text.index)
        if error is not None:
            reason = text.finish_reason()
            return TranslatedText(
                text.released, source_lang, target_lang, None, [], reason, [], None, None, error=error
            )
        return TranslatedText(
            text.text(0),
            source_lang,
            target_lang,
            text.score(0),
            [(text.text(rank), text.score(rank)) for rank in range(1, text.ranks)],
            text.finish_reason(),
            [token_id for part in parts for token_id in part.token_ids],
            [entry for part in parts for entry in part.scored_tokens()] if options.logprobs else None,
            [part.alignment(self.sources[part.row]) for part in parts] if options.return_attention else None,
            ["numbers"] if text.has_other_numbers() else [],
        )


async def translate(runtime: Runtime, call: Call, spec: TranslateSpec) -> TranslateRun:
    """Start to translate texts: check the request, split texts into segments, tokenize them, and send them to a worker.

    Raises InvalidRequest that names the option at fault.
    """
    model, language_prompt = choose_model(runtime, spec.model, spec.options)
    model = model.for_task(language_prompt.task)
    options = spec.options
    _check(spec)
    runtime.admission.admit(call, model, spec.cost(model))
    sections, token_bytes = await grammar.prepare(
        runtime, call, model, options.text_format, continues=options.decoder_prefix is not None
    )
    ranks = spec.num_alternatives + 1
    inputs = [
        SegmentedText(i, parts) for i, parts in enumerate(await _split(runtime, call, model, spec, language_prompt))
    ]
    places = [
        (text, index)
        for text in ([] if language_prompt.copies else inputs)
        for index, segment in enumerate(text.segments)
        if segment.needs_model
    ]
    translated = [text.segments[index] for text, index in places]
    tagged = [one for one in translated if isinstance(one, MarkedSegment) and one.sentence.tags]
    is_aligned = options.return_attention or bool(tagged)
    resolved = resolve(options, model, language_prompt, min_beams=ranks, sections=sections)
    params = resolved.params
    if params.num_beams < ranks:
        raise InvalidRequest(
            f"`num_alternatives` {spec.num_alternatives} requires `num_beams` of at least {ranks}", "num_alternatives"
        )
    params = msgspec.structs.replace(params, num_return_sequences=ranks, attention=is_aligned)
    if params.stop_texts and token_bytes is None:
        token_bytes = await grammar.token_bytes_for_stops(runtime, call, model)
    if len(places) > MAX_SEGMENTS:
        raise RequestTooLarge(
            f"`inputs` has {len(places):,} sentences or other segments; the limit of one request is {MAX_SEGMENTS:,}",
            "inputs",
        )
    texts = [one.text for one in translated]
    sources: list[list[int]] = []
    if texts:
        sources = await prompts.encode_texts(runtime, call, model, texts, language_prompt, options, "inputs")
    await locate_tokens(runtime, call, model, tagged, language_prompt)
    terms, term_params = SentenceTerms([[] for _ in texts]), params
    if spec.glossary:
        terms = await find_terms(runtime, call, model, spec.glossary, texts)
        own = resolve(options_with_terms(options, model.info, ranks), model, language_prompt)
        term_params = msgspec.structs.replace(own.params, num_return_sequences=ranks, attention=is_aligned)
    start = prompts.decoder_start(model, language_prompt)
    prefix = prompts.decoder_prefix(options, model)
    shown = text_options(options, token_bytes)
    term_shown = replace(shown, token_bytes=terms.token_bytes)
    rows: list[GenerateRow] = []
    answers: list[list[GeneratedText]] = []
    prefixed: set[int] = set()
    for (one, index), source, required in zip(places, sources, terms.by_sentence, strict=True):
        if len(rows) % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        segment = one.segments[index]
        if isinstance(segment, MarkedSegment):
            segment.source_ids = source
        own_prefix: list[int] = []
        if one.index not in prefixed:
            prefixed.add(one.index)
            own_prefix, segment.prefix = prefix, options.decoder_prefix or ""
        room = prompts.max_new_tokens(model.info, source, start + own_prefix, "inputs")
        own_params, own_shown = (term_params, term_shown) if required else (params, shown)
        segment.answers = hypotheses(model, own_params, len(rows), own_shown, own_prefix)
        answers.append(segment.answers)
        rows.append(
            GenerateRow(
                call.next_id(),
                min(resolved.max_new_tokens, room),
                len(rows),
                start + own_prefix,
                seed=resolved.seed,
                text_drops_space=own_shown.drops_space and not own_prefix,
                terms=required,
            )
        )
    message = Generate(model.name, params, sources, rows)
    if any(terms.by_sentence):
        message = msgspec.structs.replace(message, terms=terms.terms, term_params=term_params)
    if spec.markup is None and not options.return_attention:
        message = fit_attention(message, options.max_new_tokens is None)
    prompts.check_attention_size(message, "" if options.return_attention else "aligning the inline tags of `inputs`")
    memory = logprob_memory(runtime.admission, call, options)
    call.submit(message)
    items = [one.index for one, _ in places] if spec.fails_alone else None
    run = TextRun(call, answers, items=items, logprob_memory=memory)
    return TranslateRun(run, spec, model, language_prompt, resolved.seed, inputs, places, sources)


def _check(spec: TranslateSpec) -> None:
    """Raise InvalidRequest for generation options that have no meaning for translations, or for markup."""
    options = spec.options
    check_glossary(spec.glossary, options)
    if spec.markup is not None:
        for name in ("stream", "stop", "decoder_prefix"):
            if getattr(options, name):
                raise InvalidRequest(f"`{name}` cannot be combined with markup, whose tags are placed at the end", name)
        if options.text_format is not None:
            raise InvalidRequest(
                "`response_format` applies to whole texts, so it cannot be combined with markup", "response_format"
            )
    excluded = spec._whole_text_option()
    if spec.protect is not None and spec.protect != Protection() and excluded is not None:
        raise InvalidRequest(f"`protect` cannot be combined with `{excluded}`", "protect")
    if options.n != 1:
        raise InvalidRequest("`n` is not supported for translations; use `num_alternatives`", "n")
    if spec.split_sentences and options.text_format is not None:
        raise InvalidRequest(
            "`split_sentences` cannot be combined with `response_format`, which applies to the whole text",
            "split_sentences",
        )
    if options.best_of not in (None, 1):
        raise InvalidRequest("`best_of` is not supported for translations; use `num_beams`", "best_of")
    if options.num_return_sequences != 1:
        raise InvalidRequest(
            "`num_return_sequences` is not supported for translations; use `num_alternatives`", "num_return_sequences"
        )


async def _split(
    runtime: Runtime, call: Call, model: ServedModel, spec: TranslateSpec, language_prompt: TranslationPrompt
) -> list[list[Segment]]:
    """The segments of each input, each short enough for the model. Raises InvalidRequest for bad markup."""
    if language_prompt.copies:
        return [[Segment(text, "")] for text in spec.inputs]
    protection = spec.protection
    marked = [spec.markup is not None or protection.may_apply(text) for text in spec.inputs]
    if not spec.splits and not any(marked):
        return [segments.whole(text) for text in spec.inputs]
    runtime.check_characters(spec.inputs, "inputs")
    runtime.check_tokens(model.tokenizer, spec.inputs, "inputs")
    limit = model.info.source_tokens

    def fits(text: str) -> bool:
        if not limit or len(text) < limit // 2:
            return True
        own_specials = language_prompt.trailing_source_ids is None
        encoded = model.tokenizer.encode(
            [language_prompt.prefix + text], add_special_tokens=own_specials, offsets=False
        )[0]
        return len(prompts.with_language_tokens(encoded, language_prompt).ids) <= limit

    source = language_prompt.source_lang or spec.options.source_lang
    target = language_prompt.target_lang or spec.options.target_lang

    def split(text: str) -> list[Segment]:
        if not spec.splits:
            return segments.whole(text)
        return segments.split(text, target, fits, spec.split_at_newlines, source)

    markup = spec.markup or MarkupOptions("text", split_at_newlines=spec.split_at_newlines or not spec.splits)
    markup = replace(markup, protection=protection)

    def split_one(text: str, is_marked: bool) -> list[Segment]:
        return split_markup(text, markup, split, fits) if is_marked else split(text)

    pieces = [partial(split_one, text, is_marked) for text, is_marked in zip(spec.inputs, marked, strict=True)]
    return await runtime.pools.tokenize.run_pieces(pieces, call)
