"""Batches: the tokens of one forward pass in one flat tensor, and the sequences that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class EncoderBatch:
    """A batch of whole texts, one after the other.

    token_ids: [tokens], int64.
    lengths: number of tokens of each sequence, `batch` integers that add up to `tokens`.
    token_type_ids: [tokens], int64, or None for all zero.
    adapters: name of each sequence's adapter, "" for none; empty if no sequence has an adapter.
    output_positions: position of the one token of each sequence whose hidden state is computed; None for all tokens.
    attended: for each sequence, the number of leading tokens to which its tokens attend; None if they attend to all
        tokens.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    token_type_ids: Tensor | None = None
    adapters: tuple[str, ...] = ()
    output_positions: tuple[int, ...] | None = None
    attended: tuple[int, ...] | None = None

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index of each sequence's first token, and at the end the number of tokens: `batch + 1` integers."""
        return (0, *accumulate(self.lengths))

    @cached_property
    def output_rows(self) -> Tensor | None:
        """Indices of the tokens whose hidden states are computed: [batch], int64; None for all tokens."""
        return None if self.output_positions is None else self._tokens_at(self.output_positions)

    def one_of_each(self, hidden: Tensor, positions: Sequence[int]) -> Tensor:
        """Select the hidden state of one token of each sequence: [batch, hidden].

        hidden: [tokens, hidden]; or [batch, hidden] if the batch has `output_positions`, which is returned unchanged.
        positions: position of the token in each sequence.
        """
        return hidden if self.output_positions is not None else hidden[self._tokens_at(positions)]

    def _tokens_at(self, positions: Sequence[int]) -> Tensor:
        tokens = [start + position for start, position in zip(self.offsets, positions, strict=False)]
        return torch.tensor(tokens, device=self.token_ids.device)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its sequence, from 0: [tokens], int64."""
        positions = np.concatenate([np.arange(length, dtype=np.int64) for length in self.lengths])
        return torch.from_numpy(positions).to(self.token_ids.device)

    def with_positions(self, positions: Tensor) -> EncoderBatch:
        """A copy of the batch with positions that do not follow from the lengths: [tokens], int64."""
        batch = replace(self)
        batch.__dict__["positions"] = positions
        return batch

    @cached_property
    def rope_lengths(self) -> Tensor:
        """For each token, the length of its sequence: [tokens], int64."""
        lengths = torch.tensor(self.lengths)
        return lengths.repeat_interleave(lengths).to(self.token_ids.device)


@dataclass(frozen=True)
class AudioBatch:
    """A batch of whole recordings as log-mel frames, one recording after the other.

    frames: [frames, num_mels], float32: log-mel power, 100 frames per second.
    frame_lengths: number of frames of each recording, `batch` integers that add up to `frames`. Two frames become one
        token.
    adapters: name of each recording's adapter, as in `EncoderBatch`.
    """

    frames: Tensor
    frame_lengths: tuple[int, ...]
    adapters: tuple[str, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each recording: half the number of frames, rounded up."""
        return tuple(-(-length // 2) for length in self.frame_lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its recording, from 0: [tokens], int64."""
        return torch.cat([torch.arange(length) for length in self.lengths]).to(self.frames.device)


@dataclass(frozen=True)
class WaveformBatch:
    """A batch of whole recordings as samples, one recording after the other.

    samples: [samples], float32, 16 kHz.
    sample_lengths: number of samples of each recording, `batch` integers that add up to `samples`.
    lengths: number of tokens of each recording (`SamplesEmbeddingConfig.num_tokens`), each at least 1.
    adapters: name of each recording's adapter, as in `EncoderBatch`.
    """

    samples: Tensor
    sample_lengths: tuple[int, ...]
    lengths: tuple[int, ...]
    adapters: tuple[str, ...] = ()

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index of each recording's first token, and at the end the number of tokens: `batch + 1` integers."""
        return (0, *accumulate(self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its recording, from 0: [tokens], int64."""
        return torch.cat([torch.arange(length) for length in self.lengths]).to(self.samples.device)


WholeBatch = EncoderBatch | WaveformBatch
"""A batch of whole texts, or of whole recordings as samples."""
SourceBatch = EncoderBatch | AudioBatch | WaveformBatch
"""A batch of whole texts or whole recordings, which an encoder can read."""


@dataclass(frozen=True)
class DecoderBatch:
    """The next tokens of each row, for a decoder whose earlier keys and values are in a paged cache.

    Row i has `query_lens[i]` tokens. After their keys are written it has `key_lens[i]` keys, so that its first token is
    at position `key_lens[i] - query_lens[i]`.

    token_ids: [tokens], int64.
    positions: [tokens], int64, position of each token in the sequence of its row.
    slot_mapping: [tokens], int64: cache slot (`block * block_size + offset`) of each token's key and value.
    block_tables: [rows, blocks], int64: blocks of each row in order, padded with any valid block.
    source_lens, source_block_tables: number of keys and blocks of each row in the read-only cross-attention cache;
        empty and None without an encoder.
    adapters: name of each row's adapter, "" for none; empty if no row has an adapter.
    rope_lengths: [tokens], int64: text length that each token's rotation uses. It is the length of the prompt, or the
        token's position + 1 if that is larger. It depends on request and position only, not on how a prompt is split
        into steps. None for models in which rotations do not depend on the text length.
    output_lens: for each row, number of tokens at its end for which hidden states are computed; None for all tokens.
    state_sources, state_slots: for a model with mixers, the slots of the state memory that each row reads before its
        first token and writes after its last token. The source is `ZERO_STATE` for a row that begins its text. Rows run
        in their order, so a row may read a state that an earlier row has written. No row overwrites a state that a
        later row still needs. Empty for other models.
    chunked_rows: for a model with mixers, whether each row consists of prompt tokens, which run in chunks; its first
        token is then at a multiple of `CHUNK_TOKENS`. Other rows consist of generated tokens, which run one by one.
    """

    token_ids: Tensor
    positions: Tensor
    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]
    slot_mapping: Tensor
    block_tables: Tensor
    source_lens: tuple[int, ...] = ()
    source_block_tables: Tensor | None = None
    adapters: tuple[str, ...] = ()
    rope_lengths: Tensor | None = None
    output_lens: tuple[int, ...] | None = None
    state_sources: tuple[int, ...] = ()
    state_slots: tuple[int, ...] = ()
    chunked_rows: tuple[bool, ...] = ()

    @cached_property
    def output_rows(self) -> Tensor | None:
        """Indices of the tokens whose hidden states are computed: [n], int64; None for all tokens."""
        if self.output_lens is None:
            return None
        spans = [range(end - count, end) for end, count in zip(self.offsets[1:], self.output_lens, strict=True)]
        return torch.tensor([*chain.from_iterable(spans)], dtype=torch.int64, device=self.token_ids.device)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index of each row's first token, and at the end the number of tokens: `rows + 1` integers."""
        return (0, *accumulate(self.query_lens))
