"""Embedding of audio: turns log-mel frames into the hidden states that enter the first layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import ConvolutionalEmbeddingConfig
from models.layers.embeddings import EmbeddingTable
from models.layers.linear import ConvolutionWeights
from models.steps.batch import AudioBatch

KERNEL_SIZE = 3


class Convolution(ConvolutionWeights):
    """Convolution with a kernel of three frames, and zero padding at both ends.

    forward: [batch, in, frames] -> [batch, out, ceil(frames / stride)], model dtype.
    """

    def __init__(self, in_size: int, out_size: int, stride: int) -> None:
        super().__init__(out_size, in_size, KERNEL_SIZE)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias, stride=self.stride, padding=KERNEL_SIZE // 2)


class ConvolutionalEmbedding(nn.Module):
    """Two convolutions with a GELU after each, then learned positions. The second convolution halves the frame count.

    num_mels: values of a frame.
    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    def __init__(self, config: ConvolutionalEmbeddingConfig, hidden_size: int) -> None:
        super().__init__()
        self.num_mels = config.num_mels
        self.convolution_1 = Convolution(config.num_mels, hidden_size, stride=1)
        self.convolution_2 = Convolution(hidden_size, hidden_size, stride=2)
        self.positions = EmbeddingTable(config.num_positions, hidden_size)

    def embed(self, batch: AudioBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        output: Tensor = self(batch.frames, batch.frame_lengths) + self.positions(batch.positions)
        return output

    def forward(self, frames: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Apply the convolutions to each recording separately, without adding positions.

        frames: [frames, num_mels], float32.
        lengths: number of frames of each recording.
        Returns [tokens, hidden], model dtype.
        """
        dtype = self.convolution_1.weight.dtype
        recordings = torch.split(frames.to(dtype), list(lengths))
        return torch.cat([self._convolve(recording) for recording in recordings])

    def _convolve(self, frames: Tensor) -> Tensor:
        x = F.gelu(self.convolution_1(frames.T[None]))
        return F.gelu(self.convolution_2(x))[0].T
