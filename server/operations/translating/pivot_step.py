"""Translate all segments of a request into the pivot language: the first step of a translation with two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.operations.generating import prompts
from server.operations.generating.generate import hypotheses, text_options
from server.operations.generating.generated_text import GeneratedText
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import resolve
from server.operations.generating.generation_run import TextRun, check_complete
from server.operations.runtime import Runtime
from server.operations.translating.instructed import read_instructed
from server.operations.translating.loops import second_attempt, sets_repetitions
from server.operations.translating.pivot_text import PivotText
from server.operations.translating.segments import Segment
from server.operations.translating.translation_models import TranslationPath, TranslationStep
from server.system.loop_iterations import next_iteration

ROWS_AT_ONCE = 64
"""Number of rows that are prepared in one iteration of the event loop. A row takes 20 microseconds per alternative."""


async def read_segments(runtime: Runtime, call: Call, step: TranslationStep, translated: Sequence[Segment]) -> None:
    """Tokenize the texts of segments for the model of a step, and store the tokens and their places in the segments."""
    groups: dict[tuple[bool, bool], list[Segment]] = {}
    for segment in translated:
        is_located = step.frame is None and segment.has_tags
        groups.setdefault((segment.shows_tags, is_located), []).append(segment)
    for (shows_tags, is_located), group in groups.items():
        own = replace(step, frame=step.tag_frame) if shows_tags else step
        texts = [segment.reading for segment in group]
        sources = await _read(runtime, call, own, texts, step.options, is_located)
        for segment, source in zip(group, sources, strict=True):
            segment.source_ids, segment.source_spans = source.ids, source.spans


async def _read(
    runtime: Runtime,
    call: Call,
    step: TranslationStep,
    texts: Sequence[str],
    options: GenerationOptions,
    with_spans: bool,
) -> list[prompts.SourceTokens]:
    """Tokens of texts for the model of a step, including its prompt or language tokens.

    A translation model reads plain characters for typographic ones that it does not know.

    with_spans: whether the characters of each token are needed. A language model gets none.
    """
    if step.frame is not None:
        sources = await read_instructed(runtime, call, step.model, step.frame, texts)
        return [prompts.SourceTokens(ids, [], False) for ids in sources]
    plain = step.model.text.plain_characters
    if plain:
        texts = [text if text.isascii() else text.translate(plain) for text in texts]
    return await prompts.encode_texts(runtime, call, step.model, texts, step.prompt, options, "inputs", with_spans)


async def to_pivot(
    runtime: Runtime,
    call: Call,
    path: TranslationPath,
    translated: Sequence[Segment],
    items: Sequence[int] | None,
    seed: int,
    is_aligned: bool,
    fit: Callable[[Generate, bool], Generate] | None,
) -> TextRun:
    """Translate segments into the pivot language, wait for all of them, and return the ended sequences.

    Sets `pivot` of each segment whose translation has not failed.

    items: for each segment, the index of its input, if inputs may fail separately; None if one failure fails the
        request.
    is_aligned: the attention of this step is needed.
    fit: reduces the attention of a message that exceeds the limit; None if such a request is refused.
    Raises the error of a failed sequence if it fails the request, and InvalidRequest for too much attention.
    """
    step, model, prompt, options = path.first, path.first.model, path.first.prompt, path.first.generation_options
    resolved = resolve(options, model, prompt)
    params = msgspec.structs.replace(resolved.params, num_return_sequences=1, attention=is_aligned)
    start = prompts.decoder_start(model, prompt)
    shown = text_options(options, None)
    rows: list[GenerateRow] = []
    answers = []
    for segment in translated:
        if len(rows) % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await next_iteration()
        room = prompts.max_new_tokens(model.info, segment.source_ids, start, "inputs")
        continued = segment.source_ids if step.frame is not None else []
        answers.append(hypotheses(model, params, len(rows), shown, continued))
        length = min(resolved.max_new_tokens, room, step.answer_tokens(segment.source_ids) or room)
        rows.append(GenerateRow(call.next_id(), length, len(rows), start, seed=seed, attention=segment.is_aligned))
    sources = [sentence.source_ids for sentence in translated]
    message = Generate(model.name, params, sources, rows, cache_salt=call.cache_salt)
    if fit is not None:
        message = fit(message, True)
    prompts.check_attention_size(message, "aligning the text in the pivot language")
    call.submit(message)
    run = TextRun(call, answers, items=items)
    await run.complete()
    check_complete(run)

    def new_answers(row: int, place: int) -> list[GeneratedText]:
        return hypotheses(model, params, place, shown, sources[row] if step.frame is not None else [])

    if not sets_repetitions(options):
        await second_attempt(call, message, run, new_answers)
    kept = [row for row in range(len(rows)) if run.failure_of(row) is None]
    await _read_pivots(
        runtime,
        call,
        path.last,
        [(translated[row], PivotText(answers[row][0], step.frame is not None)) for row in kept],
    )
    return run


async def _read_pivots(
    runtime: Runtime, call: Call, step: TranslationStep, pivots: Sequence[tuple[Segment, PivotText]]
) -> None:
    """Tokenize pivot texts for the second model, and set `pivot` of their segments. Too long texts lose their end."""
    texts = [translated_pivot.text for _, translated_pivot in pivots]
    limit = step.model.info.source_tokens or None
    options = replace(step.options, truncate=limit)
    sources = await _read(runtime, call, step, texts, options, with_spans=True)
    for (segment, pivot), source in zip(pivots, sources, strict=True):
        pivot.ids, pivot.spans, pivot.is_cut = source
        segment.pivot = pivot
