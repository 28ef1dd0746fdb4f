"""How a draft head combines token vectors with hidden states of its target.

Each class takes the place of a stack's embedding. `table` is the token table of the target, whose parameters do not
become parameters of the head.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.config import NormConfig
from models.layers.embeddings import EmbeddingTable
from models.layers.linear import Linear
from models.layers.norms import make_norm
from models.steps.step_inputs.base import StepInputs


class DraftInputs(nn.Module):
    """Base class of the inputs of a draft head: token vectors from a table, and hidden states of the target.

    table: token table of the target.
    forward: [tokens], int64 -> [tokens, hidden], the hidden states that enter the first layer.
    """

    def __init__(self, norm: NormConfig, hidden_size: int, table: EmbeddingTable) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.token_norm = make_norm(norm, hidden_size)
        self._table = (table,)  # A tuple, so that its parameters are not registered here.

    @property
    def tokens(self) -> EmbeddingTable:
        """The table of token vectors."""
        return self._table[0]

    def _token_vectors(self, token_ids: Tensor) -> Tensor:
        """Normed vectors of tokens: [tokens, hidden]."""
        assert self.token_norm is not None
        vectors: Tensor = self.token_norm(self.tokens(token_ids))
        return vectors

    def _states(self, step: StepInputs) -> Tensor:
        """The hidden states that the head reads: of its target, or, for further predictions, of the head itself.

        Returns [tokens, hidden], before their norm.
        """
        return step.read_draft_states(self.tokens.weight.dtype, self.hidden_size)


class AddedInputs(DraftInputs):
    """The sum of a projection of the normed token vectors and a projection of the normed hidden states.

    This equals a single projection of their concatenation. Source: DeepSeek-AI 2024, arXiv:2412.19437, equation 21.
    """

    def __init__(self, norm: NormConfig, hidden_size: int, table: EmbeddingTable) -> None:
        super().__init__(norm, hidden_size, table)
        self.state_norm = make_norm(norm, hidden_size)
        self.token_projection = Linear(hidden_size, hidden_size, bias=False)
        self.state_projection = Linear(hidden_size, hidden_size, bias=False)

    def forward(self, token_ids: Tensor, step: StepInputs) -> Tensor:
        assert self.state_norm is not None
        vectors, states = self._token_vectors(token_ids), self.state_norm(self._states(step))
        projected: Tensor = self.state_projection(states)
        projected = projected + self.token_projection(vectors)
        return projected


class SeparateInputs(DraftInputs):
    """The hidden states alone enter the first layer, which reads the token vectors from `StepInputs.token_vectors`.

    own_rows: number of rows of the head's own token table; None if the head uses the table of its target.
    """

    def __init__(self, norm: NormConfig, hidden_size: int, table: EmbeddingTable, own_rows: int | None) -> None:
        super().__init__(norm, hidden_size, table)
        self.own_tokens = None if own_rows is None else EmbeddingTable(own_rows, hidden_size)

    @property
    def tokens(self) -> EmbeddingTable:
        return super().tokens if self.own_tokens is None else self.own_tokens

    def forward(self, token_ids: Tensor, step: StepInputs) -> Tensor:
        step.token_vectors = self._token_vectors(token_ids)
        return self._states(step)
