"""Layers of an encoder in which each text has global vectors in addition to its tokens (Pegasus-X)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.config import GlobalVectorsLayerConfig
from models.layers.layer import Layer
from models.layers.norms import make_norm
from models.steps.step_inputs.base import StepInputs


class GlobalVectorsLayer(Layer):
    """A layer in which tokens attend to their block and to the global vectors of their text.

    Global vectors attend to the whole text. `step.global_vectors` passes them from layer to layer. The inputs of
    projections and feed-forward are the global vectors of all texts, then the tokens. Adapters cannot change these
    linears, because an adapter selects rows by the index of a token.

    global_norm: norm of the global vectors before attention.
    not_captured: why a step with this layer cannot be captured as a CUDA graph.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype. The step must contain whole texts.
    Source: Phang et al. 2022, arXiv:2208.04347, section 3.
    """

    unadaptable = ("attention", "feed_forward")
    not_captured = "global vectors of each text"

    def __init__(self, config: GlobalVectorsLayerConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.block_size, self.shift = config.block_size, config.shift
        self.global_norm = make_norm(config.attention_norms.input, hidden_size)

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert self.attention is not None and self.feed_forward is not None and self.global_norm is not None
        lengths, vectors, norms = step.lengths, step.global_vectors, self.feed_forward_norms
        assert vectors is not None
        hidden = torch.cat([self.global_norm(vectors), self.attention_norms.norm_input(x)])
        metadata, rows = _blocks(lengths, len(vectors) // len(lengths), self.block_size, self.shift)
        query, key, value = self.attention.queries_keys_values(hidden, {})
        index = torch.tensor(rows, device=x.device)
        attended = backend(query).ragged_attention(
            query, key[index], value[index], metadata, self.attention.config.scale
        )
        both = self.attention_norms.add_residual(torch.cat([vectors, x]), self.attention.project_output(attended))
        both = norms.add_residual(both, self.feed_forward(norms.norm_input(both)))
        step.global_vectors, x = torch.split(both, [len(vectors), len(x)])
        return step.select_rows(self.index, x)


def _blocks(
    lengths: tuple[int, ...], num_vectors: int, block_size: int, shift: int
) -> tuple[AttentionMetadata, list[int]]:
    """Returns the attention metadata for global vectors and blocks of tokens, and the row of each key.

    The global vectors of a text are one sequence of queries, and each block is another. The global vectors attend to
    each other and to all tokens of their text; a block attends to the global vectors and to itself.
    Rows are the global vectors of all texts, then the tokens of all texts. Queries are in the order of the rows.

    lengths: number of tokens of each text. num_vectors: number of global vectors per text.
    block_size: number of tokens of a block. shift: number of tokens by which the first block is shorter.
    """
    query_lens, key_lens, rows = [num_vectors] * len(lengths), list[int](), list[int]()
    blocks: list[tuple[int, range]] = []
    start = num_vectors * len(lengths)
    for text, length in enumerate(lengths):
        own = range(text * num_vectors, (text + 1) * num_vectors)
        rows += [*own, *range(start, start + length)]
        key_lens.append(num_vectors + length)
        edges = [0, *range(block_size - shift, length, block_size), length]
        blocks += [(text, range(start + first, start + end)) for first, end in pairwise(edges)]
        start += length
    for text, block in blocks:
        rows += [*range(text * num_vectors, (text + 1) * num_vectors), *block]
        query_lens.append(len(block))
        key_lens.append(num_vectors + len(block))
    return AttentionMetadata(tuple(query_lens), tuple(key_lens)), rows
