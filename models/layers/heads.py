"""What stands on top of the hidden states: logits over words or classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.batch import EncoderBatch
from models.config import (
    ClassificationHead,
    FeedForwardSpanHead,
    HeadConfig,
    LanguageModelHead,
    MaskedLanguageModelHead,
    NormSlots,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.layers.activations import ACTIVATIONS
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, Packer, parameter
from models.layers.norms import SublayerNorms, make_norm
from models.layers.pooling import pool


class LanguageModel(nn.Module):
    """Logits over the vocabulary. forward: [n, hidden], and the token table [vocab, hidden] -> [n, vocab], float32.

    out: memory for them, see `Transformer.logits`. Packed, they are the sums of the products, in bfloat16 too; a plain
    head of such a model rounds them before they are made wide.
    """

    def __init__(self, config: LanguageModelHead, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.scale, self.cap = config.scale, config.cap
        self.weight = None if config.tied else parameter(vocab_size, hidden_size)
        self.bias = parameter(vocab_size) if config.bias else None
        self.packed: ops.PackedWeight | None = None

    def forward(self, hidden: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.packed is not None:
            logits = self.packed(hidden, out=out)
        else:
            logits = _wide(ops.linear(hidden, tokens if self.weight is None else self.weight, self.bias), out)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def pack(self, packer: Packer, tokens: Tensor | None) -> ops.PackedWeight:
        """Put the weight into its fastest layout, of which float32 comes. tokens: a tied head's table, else None."""
        weight = tokens if self.weight is None else self.weight
        assert weight is not None
        self.packed = packer(weight, self.bias)
        self.weight = None
        return self.packed


class MaskedLanguageModel(nn.Module):
    """Dense, activation, norm, tied logits with a bias (Devlin et al. 2018, arXiv:1810.04805).

    token_width: of the token table. forward: [n, hidden], and the token table [vocab, token_width] -> [n, vocab],
    float32. out: as above.
    """

    def __init__(self, config: MaskedLanguageModelHead, hidden_size: int, vocab_size: int, token_width: int) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, token_width, config.dense_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config.norm, token_width)
        self.bias = parameter(vocab_size) if config.bias else None

    def forward(self, hidden: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        assert self.norm is not None
        return _wide(ops.linear(self.norm(self.activation(self.dense(hidden))), tokens, self.bias), out)


def _wide(logits: Tensor, out: Tensor | None) -> Tensor:
    """In float32, in `out` if that is given."""
    return logits.float() if out is None else out[: len(logits)].copy_(logits)


class _Labels(nn.Module):
    """`output(norm(activation(dense(x))))`, all but the output optional. [n, hidden] -> [n, num_labels], float32."""

    def __init__(
        self, config: ClassificationHead | TokenClassificationHead | SpanHead, num_labels: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.dense: Linear | None = None
        if config.dense is not None:
            self.dense = Linear(hidden_size, hidden_size, config.dense_bias)
            self.activation = ACTIVATIONS[config.dense]
            self.norm = make_norm(config.norm, hidden_size)
        bias = config.bias if isinstance(config, ClassificationHead) else True
        self.output = Linear(hidden_size, num_labels, bias)

    def labels(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.activation(self.dense(x))
            x = x if self.norm is None else self.norm(x)
        logits: Tensor = self.output(x)
        return logits.float()


class Classification(_Labels):
    """Class logits of one token of each sequence, or of the mean. forward: what `encode` makes of the batch ->
    [batch, num_labels], float32."""

    def __init__(self, config: ClassificationHead, hidden_size: int) -> None:
        super().__init__(config, config.num_labels, hidden_size)
        self.config = config

    def forward(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        positions = batch.output_positions or self.output_positions(batch)
        if positions is None:
            return self.labels(pool(hidden, batch, "mean").to(hidden.dtype))
        return self.labels(batch.one_of_each(hidden, positions))

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """The one token of each text that is read, or None for the mean. A text that has no such token gives its
        first."""
        match self.config.pool:
            case "mean":
                return None
            case "first":
                return (0,) * len(batch.lengths)
            case "last":
                return tuple(length - 1 for length in batch.lengths)
            case "end":
                wanted = batch.token_ids == self.config.end_token_id
            case _:
                wanted = batch.token_ids != self.config.pad_token_id
        return tuple(int(part.max()) for part in torch.split((batch.positions * wanted).cpu(), list(batch.lengths)))


class TokenClassification(_Labels):
    """Logits of each token. forward: [tokens, hidden] -> [tokens, num_labels], float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.labels(hidden)


class FeedForwardTokenClassification(TokenClassification):
    """The same of `norm(x + feed_forward(x))`. forward: [tokens, hidden] -> [tokens, 2], float32."""

    def __init__(self, config: FeedForwardSpanHead, hidden_size: int) -> None:
        super().__init__(config, 2, hidden_size)
        self.feed_forward = FeedForward(config.feed_forward, hidden_size)
        self.norms = SublayerNorms(NormSlots(residual=config.sum_norm), hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(self.norms.after(hidden, self.feed_forward(hidden)))


def make_head(
    config: HeadConfig, hidden_size: int, vocab_size: int, token_width: int
) -> LanguageModel | MaskedLanguageModel | Classification | TokenClassification | None:
    """The head that a configuration asks for; None for pooling, which has no weights.

    token_width: of the token table, where a head is tied to it.
    """
    match config:
        case LanguageModelHead():
            return LanguageModel(config, hidden_size, vocab_size)
        case MaskedLanguageModelHead():
            return MaskedLanguageModel(config, hidden_size, vocab_size, token_width)
        case ClassificationHead():
            return Classification(config, hidden_size)
        case TokenClassificationHead():
            return TokenClassification(config, config.num_labels, hidden_size)
        case FeedForwardSpanHead():
            return FeedForwardTokenClassification(config, hidden_size)
        case SpanHead():
            return TokenClassification(config, 2, hidden_size)
        case PoolingHead():
            return None
