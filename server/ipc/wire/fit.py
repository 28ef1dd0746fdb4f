"""Computes the sizes of sequences in tokens, and checks that they fit into the KV pools of their model."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import RequestTooLarge
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.encode_messages import FLOAT_BYTES, Encode
from server.ipc.wire.generate_messages import Generate, GenerateRow


def sequence_sizes(message: Generate | Encode, info: ModelInfo) -> list[int]:
    """Number of input tokens of each row or item: prompt or source, and the first tokens of the decoder."""
    if isinstance(message, Encode):
        return [item.num_tokens for item in message.items]
    return [_source_size(message, row, info) + len(row.decoder_token_ids) for row in message.rows]


def _source_size(message: Generate, row: GenerateRow, info: ModelInfo) -> int:
    """Number of tokens of a row's prompt or source. Log-mel frames always have the model's full source length."""
    if not message.frames:
        return len(message.prompts[row.prompt])
    if not info.min_samples:
        return info.source_tokens
    samples = len(message.frames[row.prompt]) // FLOAT_BYTES
    return (samples - info.min_samples) // info.samples_per_token + 1


def check_rows(info: ModelInfo, message: Generate, sizes: Sequence[int]) -> None:
    """Raise RequestTooLarge if a row exceeds the KV pools. Of rows with the same needs, one is checked.

    sizes: number of input tokens of each row, from `sequence_sizes`.
    """
    checked: set[tuple[int, int, int, bool]] = set()
    for row, size in zip(message.rows, sizes, strict=True):
        needs = size, row.max_new_tokens, len(row.decoder_token_ids), bool(row.terms)
        if needs not in checked:
            checked.add(needs)
            check_fit(info, message, row)


def check_fit(info: ModelInfo, message: Generate, row: GenerateRow) -> None:
    """Raise RequestTooLarge if a row, with all its beams, exceeds the KV pools even if no other request runs."""
    if info.block_size == 0:
        return
    beams = message.params_of(row).num_beams
    prefix = len(row.decoder_token_ids) if info.is_encoder_decoder else len(message.prompts[row.prompt])
    needs = {"self": beams * -(-(prefix + row.max_new_tokens) // info.block_size)}
    if info.is_encoder_decoder:
        needs["cross"] = -(-_source_size(message, row, info) // info.block_size)
    for pool, blocks in needs.items():
        if pool in info.kv_blocks and blocks > info.kv_blocks[pool]:
            available = info.kv_blocks[pool]
            # The tokens of a source are all read, whatever the length of the answer.
            is_input = pool == "cross" or beams * -(-(prefix + 1) // info.block_size) > available
            remedy = "Lower `max_new_tokens`"
            if is_input:
                remedy = "Send a shorter input" + (" or lower `num_beams`" if beams > 1 and pool == "self" else "")
            raise RequestTooLarge(
                f"{_work(message, row, info, pool)} need {blocks:,} KV blocks, but the {pool} pool of model "
                f'"{info.name}" has {available:,} ({available * info.block_size:,} tokens). {remedy}, or start '
                "the server with a larger --kv-cache-memory.",
                None if is_input else "max_new_tokens",
            )


def _work(message: Generate, row: GenerateRow, info: ModelInfo, pool: str) -> str:
    """Describe, for an error message, the tokens of a row that need blocks of a KV pool. pool: name of the pool."""
    if pool == "cross":
        return f"{_source_size(message, row, info):,} source tokens"
    prefix = len(row.decoder_token_ids) if info.is_encoder_decoder else len(message.prompts[row.prompt])
    kind = "decoder" if info.is_encoder_decoder else "prompt"
    tokens = f"{prefix:,} {kind} token{'s' * (prefix != 1)} + {row.max_new_tokens:,} new tokens"
    beams = message.params_of(row).num_beams
    return f"{tokens} with {beams} beams" if beams > 1 else tokens


def room(info: ModelInfo) -> str | None:
    """A text for the operator: for how many tokens, and how many long sequences, a worker's KV cache has room.

    None for a model without a KV cache, and for an adapter, which uses the cache of its model.
    """
    if not info.kv_tokens or info.adapter_of:
        return None
    count = info.agent_sequences
    return f"room for {info.kv_tokens:,} tokens: {count:,} sequence{'s' * (count != 1)} of {info.agent_tokens:,}"


def shortage(info: ModelInfo) -> str | None:
    """One line for the operator if the KV cache of a model is too small for its longest sequence, else None."""
    parts = []
    if info.usable_tokens < info.context_tokens:
        beams = info.generation.num_beams or 1
        with_beams = f" with {beams} beams" if beams > 1 else ""
        parts.append(f"{info.usable_tokens:,} of {info.context_tokens:,} tokens{with_beams}")
    if info.usable_source_tokens < info.source_tokens:
        parts.append(f"{info.usable_source_tokens:,} of {info.source_tokens:,} source tokens")
    if not parts or info.adapter_of:
        return None
    return (
        f'the KV cache of model "{info.name}" holds {" and ".join(parts)}; longer requests are refused. A sequence of '
        f"full length needs {info.kv_context_bytes / 2**20:,.1f} MiB (--kv-cache-memory)"
    )
