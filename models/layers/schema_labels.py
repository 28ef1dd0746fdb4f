"""Heads for the labels of a schema: vectors to compare spans with, and logits of classes (GLiNER2).

All computations are in float32, because the parts are small.

Source: Zaratiana et al. 2025, arXiv:2507.18546, and the published code, https://github.com/fastino-ai/GLiNER2.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from models.layers.linear import Linear, parameter

_MAX_COUNT = 20
"""Number of learned vectors for instances of a structure. Entities use the vector of the first instance."""
_INNER_WIDTH, _INNER_HEADS, _INNER_LAYERS = 128, 4, 2


class SchemaLabels(nn.Module):
    """Computes the vectors of labels, with which spans of words are compared, from the hidden states of the labels."""

    def __init__(self, width: int, kind: Literal["projection", "transformer"]) -> None:
        super().__init__()
        # No `nn.Embedding`: on the meta device, its random numbers import the compiler of torch.
        self.instances = parameter(_MAX_COUNT, width)
        self.recurrent = nn.GRU(width, width)
        inner = 2 * width if kind == "projection" else width + _INNER_WIDTH
        middle = (4 * width,) if kind == "projection" else (width, width)
        widths = (inner, *middle, width)
        self.projection = nn.ModuleList(Linear(inputs, outputs, bias=True) for inputs, outputs in pairwise(widths))
        self.narrow, self.transformer = None, None
        if kind == "transformer":
            self.narrow = Linear(width, _INNER_WIDTH, bias=True)
            layer = nn.TransformerEncoderLayer(_INNER_WIDTH, _INNER_HEADS, 2 * _INNER_WIDTH, batch_first=True)
            self.transformer = nn.TransformerEncoder(layer, _INNER_LAYERS, enable_nested_tensor=False)
        self.requires_grad_(False)

    def forward(self, labels: Tensor) -> Tensor:
        """Compute the vectors of labels. labels: [labels, width], float32. Returns a tensor like it."""
        first = self.instances[:1].expand(len(labels), -1)
        stepped = self.recurrent(first[None].contiguous(), labels[None].contiguous())[0][0]
        if self.transformer is None or self.narrow is None:
            x = torch.cat([stepped, labels], dim=1)
        else:
            summed = stepped + labels
            x = torch.cat([self.transformer(self.narrow(summed)[None])[0], summed], dim=1)
        *inner, last = self.projection
        for layer in inner:
            x = layer(x, "relu")
        projected: Tensor = last(x)
        return projected


class SchemaClasses(nn.Module):
    """Computes the logit of each label of a text classification from the hidden state of the label."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = Linear(width, 2 * width, bias=True), Linear(2 * width, 1, bias=True)

    def forward(self, labels: Tensor) -> Tensor:
        """Compute the logits of labels. labels: [labels, width], float32. Returns [labels], float32."""
        logits: Tensor = self.down(self.up(labels, "relu"))
        return logits[:, 0]
