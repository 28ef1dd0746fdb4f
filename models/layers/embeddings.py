"""From token ids to the first hidden states."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from models.backends import interface as ops
from models.batch import EncoderBatch
from models.config import EmbeddingConfig, FairseqSinusoidalPositions, LearnedPositions, SinusoidalPositions
from models.layers.linear import Linear, parameter
from models.layers.norms import make_norm
from models.layers.positions import fairseq_sinusoids, sinusoids


class EmbeddingTable(nn.Module):
    """A row per index. weight: [rows, hidden], model dtype. forward: [tokens], int64 -> [tokens, hidden].

    `share` lets the weight go, all but its dtype and device: afterwards rows are read from the packed one of an output
    head that is tied to them.
    """

    def __init__(self, rows: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = parameter(rows, hidden_size)
        self.packed: ops.PackedWeight | None = None

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight) if self.packed is None else self.packed.rows(index)

    def share(self, packed: ops.PackedWeight) -> None:
        self.packed = packed
        self.weight = nn.Parameter(self.weight[:0].clone(), requires_grad=False)


class ProjectedTable(EmbeddingTable):
    """A narrow table whose rows a matrix brings to the hidden size. weight: [rows, width]. forward: as above."""

    def __init__(self, rows: int, width: int, hidden_size: int) -> None:
        super().__init__(rows, width)
        self.projection = Linear(width, hidden_size, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        output: Tensor = self.projection(super().forward(index))
        return output


class SinusoidalTable(nn.Module):
    """A table of positions that is computed: no parameter. It follows the device and dtype it is used in."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self._table = table

    def table(self, like: Tensor) -> Tensor:
        """[rows, hidden], on the device and in the dtype of another table."""
        if self._table.device != like.device or self._table.dtype != like.dtype:
            self._table = self._table.to(like.device, like.dtype)
        return self._table


class Embedding(nn.Module):
    """Token vectors times `scale`, plus positions and token types where there are some, then a norm, and a linear layer
    where the tables are not of the hidden size.

    tokens: a table that another stack owns too, or None for one of its own.
    """

    def __init__(self, config: EmbeddingConfig, hidden_size: int, tokens: EmbeddingTable | None = None) -> None:
        super().__init__()
        self.scale = config.scale
        width = config.width or hidden_size
        if tokens is None and config.token_width is not None:
            tokens = ProjectedTable(config.vocab_size, config.token_width, hidden_size)
        self.tokens = EmbeddingTable(config.vocab_size, width) if tokens is None else tokens
        self.positions: EmbeddingTable | SinusoidalTable | None = None
        match config.positions:
            case LearnedPositions(num_positions=rows):
                self.positions = EmbeddingTable(rows, width)
            case SinusoidalPositions(num_positions=rows, pairing=pairing):
                self.positions = SinusoidalTable(sinusoids(rows, width, pairing))
            case FairseqSinusoidalPositions(num_positions=rows, first=first):
                self.positions = SinusoidalTable(fairseq_sinusoids(rows, width, first))
        self.token_types = EmbeddingTable(config.num_token_types, width) if config.num_token_types else None
        self.norm = make_norm(config.norm, width)
        self.token_norm = make_norm(config.token_norm, width)
        self.projection = None if config.width is None else Linear(width, hidden_size, bias=True)

    def read(self, batch: EncoderBatch) -> Tensor:
        """The first hidden states of a batch of texts: [tokens, hidden], model dtype."""
        output: Tensor = self(batch.token_ids, batch.positions, batch.token_type_ids)
        return output

    def forward(self, token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """token_ids, positions, token_type_ids: [tokens], int64 -> [tokens, hidden], model dtype.

        Where there is one type only, every token is of it, whatever its text's place in a pair.
        """
        parts: list[tuple[Tensor | None, Tensor]] = []
        x: Tensor | None = None
        if type(self.tokens) is EmbeddingTable and self.tokens.packed is None and self.token_norm is None:
            parts.append((token_ids, self.tokens.weight))
        else:
            x = self.tokens(token_ids) if self.scale == 1.0 else self.tokens(token_ids) * self.scale
            x = x if self.token_norm is None else self.token_norm(x)
        if isinstance(self.positions, SinusoidalTable):
            parts.append((positions, self.positions.table(self.tokens.weight)))
        elif self.positions is not None:
            parts.append((positions, self.positions.weight))
        if self.token_types is not None:
            one_type = token_type_ids is None or len(self.token_types.weight) == 1
            parts.append((None if one_type else token_type_ids, self.token_types.weight))
        if parts:
            x = ops.sum_of_rows(parts, self.scale, x)
        assert x is not None
        if self.norm is not None:
            x = self.norm(x)
        return x if self.projection is None else self.projection(x)
