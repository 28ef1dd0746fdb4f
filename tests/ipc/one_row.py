"""Build a `Generate` message with one prompt and one row."""

from __future__ import annotations

from collections.abc import Sequence

from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams, RequiredTerm


def one_row(
    sequence_id: int,
    model: str,
    token_ids: Sequence[int],
    decoder_token_ids: Sequence[int] = (),
    *,
    max_new_tokens: int,
    seed: int = 0,
    prompt_logprobs: bool = False,
    text_drops_space: bool = False,
    deadline: float | None = None,
    start_deadline: float | None = None,
    frames: bytes = b"",
    recorded_tokens: int = 0,
    cache_salt: str = "",
    terms: Sequence[RequiredTerm] = (),
    **params: object,
) -> Generate:
    """A `Generate` message with a single row. params: fields of `GenerationParams`.

    Other arguments as in `Generate`.
    """
    start = [*decoder_token_ids]
    shown = seed, prompt_logprobs, text_drops_space, recorded_tokens
    row = GenerateRow(sequence_id, max_new_tokens, 0, start, *shown, terms=[*range(len(terms))])
    prompts = [] if frames and not token_ids else [[*token_ids]]
    found = GenerationParams(**params)
    sources = [frames] if frames else []
    more = {"terms": [*terms], "term_params": found} if terms else {}
    more["start_deadline"] = start_deadline
    return Generate(model, found, prompts, [row], deadline, sources, cache_salt, **more)


def id_of(message: Generate) -> int:
    """Sequence id of the only row."""
    (row,) = message.rows
    return row.sequence_id
