"""A layer whose sublayers are narrower than its input (MobileBERT)."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import BottleneckLayerConfig
from models.layers.bottleneck_attention import BottleneckAttention
from models.layers.layer import Layer
from models.layers.linear import Linear
from models.layers.moe import make_feed_forward
from models.layers.norms import SublayerNorms, make_norm
from models.steps.step_inputs.base import StepInputs


class BottleneckLayer(Layer):
    """A layer whose sublayers are narrower than its input: `norm(x + up(sublayers(norm(down(x)))))`.

    stacked, stacked_norms: all feed-forwards except the last, and their norms. The last feed-forward is `feed_forward`.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    Source: Sun et al. 2020, arXiv:2004.02984, sections 3.1 and 3.2.
    """

    def __init__(self, config: BottleneckLayerConfig, hidden_size: int, index: int) -> None:
        assert config.feed_forward is not None
        super().__init__(config, config.width, index)
        self.down = Linear(hidden_size, config.width, bias=True)
        self.down_norm = make_norm(config.norm, config.width)
        self.up = Linear(config.width, hidden_size, bias=True)
        self.up_norm = make_norm(config.norm, hidden_size)
        others = range(config.feed_forwards - 1)
        self.stacked = nn.ModuleList(make_feed_forward(config.feed_forward, config.width) for _ in others)
        self.stacked_norms = nn.ModuleList(SublayerNorms(config.feed_forward_norms, config.width) for _ in others)

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert self.attention is not None and self.feed_forward is not None
        assert self.down_norm is not None and self.up_norm is not None
        narrow = self.down_norm(self.down(x))
        reads_input = isinstance(self.attention, BottleneckAttention)
        attended = step.self_attention(self.index, self.attention, x if reads_input else narrow)
        x, narrow = (step.select_rows(self.index, tensor) for tensor in (x, narrow))
        narrow = self.attention_norms.add_residual(narrow, attended)
        feed_forwards = zip(
            (*self.stacked, self.feed_forward), (*self.stacked_norms, self.feed_forward_norms), strict=True
        )
        for feed_forward, norms in feed_forwards:
            narrow = norms.add_residual(narrow, feed_forward(narrow))
        return self.up_norm.add(x, self.up(narrow))[1]
