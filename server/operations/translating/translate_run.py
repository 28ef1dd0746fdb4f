"""A translation that was sent to a worker: deltas in the order of each text's sentences, and finally the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from server.errors import RequestError
from server.operations.generating.generated_text import AttentionMatrix, ScoredToken, TextDelta
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_run import PhaseSeconds, TextRun, TokenUsage
from server.operations.translating.segments import Flag, Segment, SegmentDelta, SegmentedText
from server.operations.translating.translation_models import TranslationPath


@dataclass(frozen=True)
class TranslatedSentence:
    """A translated segment, without its markup.

    source: text of the segment. text: its translation.
    score: mean log-probability of the translation's tokens, before temperature and penalties; None without tokens.
    flags: signs of mistakes in the translation.
    is_second_attempt: the text comes from a second attempt, because the first one repeated itself in a loop.
    """

    source: str
    text: str
    score: float | None
    flags: Sequence[Flag]
    is_second_attempt: bool


@dataclass(frozen=True)
class TranslatedText:
    """The translation of one input.

    text: the best translation; for a failed one, the part that was released before the failure.
    source_lang, target_lang: the checkpoint's codes of the languages, or those of the request if it has none.
    score: sum of the log-probabilities of the segments; None without beam search.
    alternatives: (text, score) of further translations, best first.
    token_ids: tokens of all translated segments, in order.
    logprobs: log-probabilities of these tokens; None if not requested.
    alignments: attention matrix of each translated segment; None if not requested.
    pivot: code of the language between two models; None for a translation with one model.
    flags: signs of mistakes in the translation, such as `numbers` that differ from the source.
    sentences: the translated segments with their scores; None if not requested.
    error: the error of a failed translation, otherwise None.
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
    pivot: str | None = None
    flags: Sequence[Flag] = ()
    error: RequestError | None = None
    sentences: list[TranslatedSentence] | None = None


@dataclass(frozen=True)
class TranslateResult:
    """The translations of a request, in the order of the inputs.

    usage: number of tokens, over both models of a translation through a pivot language.
    """

    model: str
    translations: list[TranslatedText]
    usage: TokenUsage
    seed: int
    timings: PhaseSeconds


@dataclass
class TranslateRun:
    """A translation that was sent to a worker.

    run: the sequences of the last model, which writes the translations.
    path: the models of the translation.
    options: options of the request.
    seed: the seed of sampling.
    inputs: the segments of each input.
    places: (input, index of the segment) for each sequence of `run`.
    first: the ended sequences of the first of two models; None for a translation with one model.
    again: generates rows again whose answers repeat themselves in a loop, and returns the indices of rows with new
        answers. Not used for streams, whose text has been sent.
    check: sets `has_wrong_language` of segments; None if the request does not ask for it.
    """

    run: TextRun
    path: TranslationPath
    options: GenerationOptions
    seed: int
    inputs: list[SegmentedText]
    places: list[tuple[SegmentedText, int]]
    first: TextRun | None = None
    again: Callable[[TextRun], Awaitable[list[int]]] | None = None
    check: Callable[[Sequence[Segment]], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        for item in self.failures:
            self.inputs[item].failed = True

    @property
    def model_name(self) -> str:
        return self.path.last.model.name

    @property
    def answer_size(self) -> int:
        return self.run.answer_size

    @property
    def failures(self) -> dict[int, RequestError]:
        """Index of each failed input to its error, from either model."""
        return self.run.failures if self.first is None else self.first.failures | self.run.failures

    async def begin(self) -> list[SegmentDelta]:
        return self._in_order(await self.run.begin())

    async def forward(self, sink: Callable[[list[SegmentDelta]], bool]) -> bool:
        is_stopped = await self.run.forward(lambda deltas: sink(self._in_order(deltas)))
        if not is_stopped:
            await self._check_languages()
        return is_stopped

    async def complete(self) -> None:
        await self.run.complete()
        if self.again is not None:
            for row in await self.again(self.run):
                text, place = self.places[row]
                segment = text.segments[place]
                segment.answers = self.run.texts[row]
                segment.is_second_attempt = True
        await self._check_languages()

    async def _check_languages(self) -> None:
        if self.check is not None:
            await self.check([segment for text in self.inputs for segment in text.segments])

    @property
    def timed_out(self) -> bool:
        return self.run.timed_out

    def result(self) -> TranslateResult:
        runs = [run for run in (self.first, self.run) if run is not None]
        read = [len(segment.source_ids) for text in self.inputs for segment in text.segments]
        read += [
            len(segment.pivot.ids) for text in self.inputs for segment in text.segments if segment.pivot is not None
        ]
        usage = TokenUsage(
            sum(read),
            sum(run.completion_tokens() for run in runs),
            sum(run.cached_prompt_tokens() for run in runs),
        )
        usage = sum((run.further_usage for run in runs), usage)
        timings = [run.timings() for run in runs]
        return TranslateResult(
            self.model_name,
            [self._translation(text) for text in self.inputs],
            usage,
            self.seed,
            timings[0] if len(timings) == 1 else timings[0].then(timings[1]),
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
        options, parts = self.options, text.translated()
        source_lang = self.path.first.prompt.source_lang or options.source_lang
        target_lang = self.path.last.prompt.target_lang or options.target_lang
        error = self.failures.get(text.index)
        if error is not None:
            reason = text.finish_reason()
            return TranslatedText(
                text.released, source_lang, target_lang, None, [], reason, [], None, None, error=error
            )
        best = [part.answers[0] for part in parts]
        return TranslatedText(
            text.text(0),
            source_lang,
            target_lang,
            text.score(0),
            [(text.text(rank), text.score(rank)) for rank in range(1, text.ranks)],
            text.finish_reason(),
            [token_id for best_text in best for token_id in best_text.token_ids],
            [entry for best_text in best for entry in best_text.scored_tokens()] if options.logprobs else None,
            [part.alignment(part.answers[0]) for part in parts] if options.return_attention else None,
            self.path.pivot,
            text.flags(),
            sentences=[_sentence(part) for part in parts] if self.check is not None else None,
        )


def _sentence(segment: Segment) -> TranslatedSentence:
    best = segment.answers[0]
    score = best.mean_logprob() if best.logprobs else None
    return TranslatedSentence(segment.text, segment.answer(0), score, segment.flags, segment.is_second_attempt)
