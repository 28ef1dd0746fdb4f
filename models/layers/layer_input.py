"""Vectors per token and layer, and layers that add such a vector and scale their result (Gemma 3n, Gemma 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import LayerInputConfig, PerLayerEmbeddingConfig
from models.layers.embeddings import EmbeddingTable
from models.layers.layer import Layer
from models.layers.linear import Linear, parameter
from models.layers.norms import make_norm
from models.steps.step_inputs.base import StepInputs


class PerLayerEmbedding(nn.Module):
    """Computes a small vector for each pair of a token and a layer, from a table and from the embedded token.

    tokens: table [rows, layers * width]; None to compute the vectors from the embedded tokens alone.
    rows: number of rows of the table if the vocabulary has more tokens than that, else None. Token ids beyond the table
        use the first row.
    forward: token ids, [tokens], int64, and embedded tokens x, [tokens, hidden] -> [tokens, layers, width], model
        dtype.
    """

    def __init__(self, config: PerLayerEmbeddingConfig, vocab_size: int, num_layers: int, hidden_size: int) -> None:
        super().__init__()
        self.width, self.num_layers = config.width, num_layers
        size = config.vocab_size
        self.rows = size if size is not None and size < vocab_size else None
        self.tokens = None if size is None else EmbeddingTable(size, num_layers * config.width)
        self.projection = Linear(hidden_size, num_layers * config.width, bias=False)
        self._projection_scale = hidden_size**-0.5
        self.norm = make_norm(config.norm, config.width)

    def forward(self, token_ids: Tensor, x: Tensor) -> Tensor:
        assert self.norm is not None
        if self.rows is not None:
            token_ids = torch.where(token_ids < self.rows, token_ids, 0)
        projected = (self.projection(x) * self._projection_scale).view(x.shape[0], self.num_layers, self.width)
        vectors: Tensor = self.norm(projected)
        if self.tokens is None:
            return vectors
        rows = (self.tokens(token_ids) * self.width**0.5).view(x.shape[0], self.num_layers, self.width)
        vectors = (vectors + rows) * 2**-0.5
        return vectors


class LayerWithInput(Layer):
    """A layer that ends with `scale * (x + norm(project(act(gate(x)) * input)))`.

    Here x is the result of the sublayers, and `input` is the vector of the token for this layer.

    output_scale: [1], model dtype, or None for a factor of one.
    not_captured: why a decode step with this layer cannot be captured as a CUDA graph. It was not tried yet.
    """

    not_captured = "layers with vectors of their own"

    def __init__(self, config: LayerInputConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.activation, width = config.activation, config.input_width
        self.input_gate = None if width is None else Linear(hidden_size, width, bias=False)
        self.input_projection = None if width is None else Linear(width, hidden_size, bias=False)
        self.input_norm = None if width is None else make_norm(config.input_norm, hidden_size)
        self.output_scale = parameter(1) if config.output_scale else None

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        x = super().forward(x, step)
        if self.input_gate is not None:
            x = x + self.input_result(x, step)
        return x if self.output_scale is None else x * self.output_scale

    def input_result(self, x: Tensor, step: StepInputs) -> Tensor:
        """`norm(project(act(gate(x)) * input))`, which the layer adds to x.

        x: [n, hidden]: all tokens, or the output rows in the last layer. Returns [n, hidden].
        """
        assert self.input_gate is not None and self.input_projection is not None
        assert step.layer_inputs is not None, "the stack has no per-layer embeddings"
        part = step.layer_inputs[:, self.index : self.index + 1].flatten(1)
        inputs = step.select_rows(self.index, part)
        result: Tensor = self.input_projection(self.input_gate(x, self.activation, inputs))
        return result if self.input_norm is None else self.input_norm(result)
