"""Embedding of text: turns token ids into the hidden states that enter the first layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.linear_weights import DenseWeight, LinearWeight
from models.config import EmbeddingConfig, FairseqSinusoidalPositions, LearnedPositions, SinusoidalPositions
from models.layers.linear import Linear, parameter
from models.layers.norms import make_norm
from models.layers.positions import fairseq_sinusoids, sinusoids
from models.steps.batch import EncoderBatch
from weights.quantized_matrix import QuantizedMatrix


class EmbeddingTable(nn.Module):
    """Lookup table: a learned vector for each token id, position or other index.

    weight: [rows, hidden], model dtype. Empty after `share`. A quantised matrix may take its place while a model is
        loaded.
    packed: after `share`, the table in a kernel's layout, which an output head may share; else None.
    forward: [tokens], int64 -> [tokens, hidden], model dtype.
    """

    def __init__(self, rows: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = parameter(rows, hidden_size)
        self.packed: LinearWeight | None = None

    def forward(self, index: Tensor) -> Tensor:
        assert self.matrix is None, "a quantised matrix must be packed first"
        return (self.packed or DenseWeight(self.weight, None)).rows(index)

    @property
    def matrix(self) -> QuantizedMatrix | None:
        """The quantised table as the checkpoint stores it; None for a float table, and after `share`."""
        weight: object = self.weight
        return weight if isinstance(weight, QuantizedMatrix) else None

    def share(self, packed: LinearWeight, dtype: torch.dtype) -> None:
        """Free `weight`, and read rows from a packed weight instead.

        dtype: dtype of the empty table that takes the place of `weight`.
        """
        like = self.weight if self.matrix is None else self.matrix.codes
        del self.weight
        self.weight = nn.Parameter(like.new_empty((0, like.shape[1]), dtype=dtype), requires_grad=False)
        self.packed = packed


class ProjectedEmbeddingTable(EmbeddingTable):
    """Lookup table of vectors that are narrower than the hidden size, with a linear layer that widens them.

    weight: [rows, width], model dtype.
    forward: [tokens], int64 -> [tokens, hidden], model dtype.
    """

    def __init__(self, rows: int, width: int, hidden_size: int) -> None:
        super().__init__(rows, width)
        self.projection = Linear(width, hidden_size, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        output: Tensor = self.projection(super().forward(index))
        return output


class SinusoidalTable(nn.Module):
    """Table of computed position embeddings. It is not a parameter, because it is not read from the checkpoint.

    table: [rows, hidden], float32 until `table_like` converts it.
    first: index of the row in a published table that is equal to row 0 of this table.
    """

    def __init__(self, table: Tensor, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self._table = table

    @property
    def table(self) -> Tensor:
        return self._table

    def table_like(self, other: Tensor) -> Tensor:
        """The table, [rows, hidden], on the device and in the dtype of another tensor."""
        if self._table.device != other.device or self._table.dtype != other.dtype:
            self._table = self._table.to(other.device, other.dtype)
        return self._table


class Embedding(nn.Module):
    """Sum of token vectors times `scale`, positions and token types; then a norm and a projection to the hidden size.

    Positions, token types, norm and projection are optional.

    tokens: token table to share with another stack, or None to create one.
    sum_width: width of the sum, before the projection.
    updates: function that adds the updates of adapters to the sum; None without adapters.
    """

    updates: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None

    def __init__(self, config: EmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None) -> None:
        super().__init__()
        self.scale = config.scale
        self.sum_width = width = config.width or hidden_size
        self.tokens = self._make_tokens(config, hidden_size) if tokens is None else tokens
        self.positions: EmbeddingTable | SinusoidalTable | None = None
        match config.positions:
            case LearnedPositions(num_positions=rows):
                self.positions = EmbeddingTable(rows, width)
            case SinusoidalPositions(num_positions=rows, pairing=pairing):
                self.positions = SinusoidalTable(sinusoids(rows, width, pairing))
            case FairseqSinusoidalPositions(num_positions=rows, first=first):
                self.positions = SinusoidalTable(fairseq_sinusoids(rows, width, first), first)
        self.token_types = EmbeddingTable(config.num_token_types, width) if config.num_token_types else None
        self.task_types = EmbeddingTable(config.num_task_types, width) if config.num_task_types else None
        self.norm = make_norm(config.norm, width)
        self.token_norm = make_norm(config.token_norm, width)
        self.projection = None if config.width is None else Linear(width, hidden_size, bias=True)

    @property
    def _reads_rows(self) -> bool:
        """Whether the token vectors are rows of the token table, unchanged except for `scale`."""
        return type(self.tokens) is EmbeddingTable and self.token_norm is None

    def _token_vectors(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """The scaled vectors of the tokens, before positions and token types are added.

        token_ids, positions: [tokens], int64. Returns [tokens, width], model dtype.
        """
        x: Tensor = self.tokens(token_ids) if self.scale == 1.0 else self.tokens(token_ids) * self.scale
        return x if self.token_norm is None else self.token_norm(x)

    def _make_tokens(self, config: EmbeddingConfig, hidden_size: int) -> EmbeddingTable:
        if config.token_width is not None:
            return ProjectedEmbeddingTable(config.vocab_size, config.token_width, hidden_size)
        return EmbeddingTable(config.vocab_size, config.width or hidden_size)

    def embed(self, batch: EncoderBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        output: Tensor = self(batch.token_ids, batch.positions, batch.token_type_ids)
        return output

    def forward(self, token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Embed tokens.

        token_ids, positions: [tokens], int64.
        token_type_ids: [tokens], int64, or None for all 0. Ignored by a model with a single token type.
        Returns [tokens, hidden], model dtype.
        """
        parts: list[tuple[Tensor | None, Tensor]] = []
        x: Tensor | None = None
        if self._reads_rows and self.tokens.packed is None:
            parts.append((token_ids, self.tokens.weight))
        else:
            x = self._token_vectors(token_ids, positions)
        if isinstance(self.positions, SinusoidalTable):
            parts.append((positions, self.positions.table_like(self.tokens.weight)))
        elif self.positions is not None:
            parts.append((positions, self.positions.weight))
        if self.token_types is not None:
            single_type = token_type_ids is None or len(self.token_types.weight) == 1
            parts.append((None if single_type else token_type_ids, self.token_types.weight))
        if parts:
            x = backend(parts[0][1] if x is None else x).sum_of_rows(parts, self.scale, x)
        assert x is not None
        if self.task_types is not None:
            x = x + self.task_types.weight[0]
        if self.updates is not None:
            x = self.updates(x, token_ids, token_type_ids)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.projection is None else self.projection(x)
