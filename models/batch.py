"""The ragged step: what one forward pass works on. Flat tokens and, beside them, who owns which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class EncoderBatch:
    """Whole sequences for a bidirectional stack, packed one after the other.

    token_ids: [tokens], int64.
    lengths: tokens of each sequence, `batch` integers that add up to `tokens`.
    token_type_ids: [tokens], int64, or None for all zero.
    adapters: the name of each sequence's adapter, empty for none; no names where no sequence has one.
    output_positions: of the one token of each sequence whose hidden state is wanted; None for all tokens.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    token_type_ids: Tensor | None = None
    adapters: tuple[str, ...] = ()
    output_positions: tuple[int, ...] | None = None

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each sequence starts, and at the end `tokens`: `batch + 1` integers."""
        return (0, *accumulate(self.lengths))

    @cached_property
    def wanted(self) -> Tensor | None:
        """[batch], int64: the tokens whose hidden states are wanted; None for all."""
        return None if self.output_positions is None else self._tokens_at(self.output_positions)

    def one_of_each(self, hidden: Tensor, positions: Sequence[int]) -> Tensor:
        """The hidden state of one token of each sequence: [batch, hidden].

        hidden: what `encode` made of the batch: of all tokens, or of these alone where they are what is wanted.
        """
        return hidden if self.output_positions is not None else hidden[self._tokens_at(positions)]

    def _tokens_at(self, positions: Sequence[int]) -> Tensor:
        tokens = [start + position for start, position in zip(self.offsets, positions, strict=False)]
        return torch.tensor(tokens, device=self.token_ids.device)

    @cached_property
    def positions(self) -> Tensor:
        """[tokens], int64: 0, 1, 2... within each sequence."""
        positions = np.concatenate([np.arange(length, dtype=np.int64) for length in self.lengths])
        return torch.from_numpy(positions).to(self.token_ids.device)

    @cached_property
    def rope_lengths(self) -> Tensor:
        """[tokens], int64: the length of each token's sequence."""
        lengths = torch.tensor(self.lengths)
        return lengths.repeat_interleave(lengths).to(self.token_ids.device)


@dataclass(frozen=True)
class AudioBatch:
    """Whole recordings for a bidirectional stack, packed one after the other.

    frames: [frames, num_mels], float32: log-mel power, 100 frames a second.
    frame_lengths: frames of each recording, `batch` integers that add up to `frames`. Two frames become one token.
    adapters: as in `EncoderBatch`.
    """

    frames: Tensor
    frame_lengths: tuple[int, ...]
    adapters: tuple[str, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each recording."""
        return tuple(-(-length // 2) for length in self.frame_lengths)

    @cached_property
    def positions(self) -> Tensor:
        """[tokens], int64: 0, 1, 2... within each recording."""
        return torch.cat([torch.arange(length) for length in self.lengths]).to(self.frames.device)


@dataclass(frozen=True)
class DecoderBatch:
    """Some next tokens of each row for a causal stack whose earlier keys and values lie in a paged cache.

    Row i brings `query_lens[i]` tokens; after they are written it has `key_lens[i]` keys, so that its first token here
    stands at position `key_lens[i] - query_lens[i]`.

    token_ids: [tokens], int64.
    positions: [tokens], int64, within each row's own sequence.
    slot_mapping: [tokens], int64: the cache slot (`block * block_size + offset`) each token's key and value go to.
    block_tables: [rows, blocks], int64: the blocks of each row in order, padded with any valid block.
    source_lens, source_block_tables: the same for the read-only cross-attention cache; empty and None where there is
    no encoder.
    adapters: the name of each row's adapter, empty for none; no names where no row has one.
    rope_lengths: [tokens], int64, the length of the text that each token is rotated in: the prompt's, and for later
    tokens as far as they reach themselves; a function of request and position, however steps cut the tokens. None for
    a model whose rotation does not depend on it.
    output_lens: of how many of each row's tokens, its last ones, the hidden states are wanted; None for all.
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

    @cached_property
    def wanted(self) -> Tensor | None:
        """[n], int64: the tokens whose hidden states are wanted; None for all."""
        if self.output_lens is None:
            return None
        spans = [range(end - count, end) for end, count in zip(self.offsets[1:], self.output_lens, strict=True)]
        return torch.tensor([*chain.from_iterable(spans)], dtype=torch.int64, device=self.token_ids.device)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each row's tokens start, and at the end `tokens`: `rows + 1` integers."""
        return (0, *accumulate(self.query_lens))
