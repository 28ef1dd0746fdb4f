"""Find translations that repeat the same words (loops), and translate their sentences again without repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from server.errors import ClientGone, RequestError
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Generate
from server.ipc.wire.params import GenerationParams
from server.operations.generating.generated_text import GeneratedText
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_run import TextRun, TokenUsage
from server.system.loop_iterations import next_iteration

MIN_REPEATS = 4
"""Minimum number of consecutive repetitions of the same tokens for a loop."""
MIN_LOOP_TOKENS = 12
"""Minimum total tokens of all repetitions of a loop. Fewer may be an exclamation, such as "very, very, very good"."""
MAX_PERIOD = 32
"""Maximum number of tokens in the repeated part of a loop."""
ROWS_AT_ONCE = 64
"""Number of rows that are searched for loops in one iteration of the event loop."""
RETRY_NGRAM_SIZE = 3
"""`no_repeat_ngram_size` of a second attempt: no sequence of this many tokens occurs twice."""


def loops(token_ids: Sequence[int]) -> bool:
    """Whether a text has a loop: the same tokens `MIN_REPEATS` times or more, one directly after the other."""
    if len(token_ids) - len(set(token_ids)) < MIN_LOOP_TOKENS * (MIN_REPEATS - 1) // MIN_REPEATS:
        return False  # all but the first of the repetitions are tokens that occurred before
    ids = np.array(token_ids)
    for period in range(1, min(MAX_PERIOD, len(ids) // MIN_REPEATS) + 1):
        same = np.flatnonzero(np.append(ids[period:] != ids[:-period], True))
        run = int(np.diff(same, prepend=-1).max()) - 1
        if run + period >= max(MIN_REPEATS * period, MIN_LOOP_TOKENS):
            return True
    return False


def is_loop(answer: GeneratedText, source_ids: Sequence[int]) -> bool:
    """Whether a translation has a loop, and its source has none."""
    return loops(answer.token_ids) and not loops(source_ids)


def sets_repetitions(options: GenerationOptions) -> bool:
    """Whether a request says itself which repetitions are allowed: `no_repeat_ngram_size` 0 allows all."""
    return options.no_repeat_ngram_size is not None


def may_retry(params: GenerationParams) -> bool:
    """Whether a second attempt is allowed: not if the request sets `no_repeat_ngram_size`, or a grammar or schema."""
    return not (params.no_repeat_ngram_size or params.sections)


async def second_attempt(
    call: Call, message: Generate, run: TextRun, new_answers: Callable[[int, int], list[GeneratedText]]
) -> list[int]:
    """Generate again, without repetitions, the rows of an ended message whose best answers are loops.

    A row keeps its first answers if its second attempt fails or is a loop again.

    message: the ended message of the first attempt.
    run: results of the first attempt. Accepted answers are replaced in it, and its usage counts both attempts.
    new_answers: creates empty answers of a row, from its index in the first message and its index in the new message.
    Returns the indices of rows with new answers. Raises ClientGone.
    """
    sources = [message.prompts[row.prompt] for row in message.rows]
    if run.timed_out:
        return []
    rows = []
    for place, texts in enumerate(run.texts):
        if place % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await next_iteration()
        failed = run.failure_of(place) is not None
        if not failed and may_retry(message.params_of(message.rows[place])) and is_loop(texts[0], sources[place]):
            rows.append(place)
    if not rows:
        return []

    def limited(params: GenerationParams | None) -> GenerationParams | None:
        return params and msgspec.structs.replace(params, no_repeat_ngram_size=RETRY_NGRAM_SIZE, stream=False)

    own_params = limited(message.params)
    assert own_params is not None, "a message has parameters"
    answers = [new_answers(row, place) for place, row in enumerate(rows)]
    again = msgspec.structs.replace(
        message,
        params=own_params,
        term_params=limited(message.term_params),
        prompts=[sources[row] for row in rows],
        rows=[
            msgspec.structs.replace(message.rows[row], sequence_id=call.next_id(), prompt=place)
            for place, row in enumerate(rows)
        ],
    )
    new = TextRun(call, answers, items=range(len(rows)))
    is_complete = False
    try:
        call.submit(again)
        run.further_usage += TokenUsage(again.num_tokens, 0, 0)
        await new.complete()
        is_complete = not new.timed_out
    except ClientGone:
        raise
    except RequestError:  # The first attempt stays: a translation with a flag is better than none.
        pass
    replaced = [
        (row, texts)
        for place, (row, texts) in enumerate(zip(rows, answers, strict=True))
        if is_complete and new.failure_of(place) is None and not is_loop(texts[0], sources[row])
    ]
    computed = run.completion_tokens() + new.completion_tokens()
    for row, texts in replaced:
        run.texts[row] = texts
    run.further_usage += TokenUsage(0, computed - run.completion_tokens(), new.cached_prompt_tokens())
    return [row for row, _ in replaced]
