"""What stands on top of the hidden states: logits over words or classes, or one vector per sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import ops
from models.activations import ACTIVATIONS
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
from models.feed_forward import FeedForward
from models.linear import Linear, Packer, parameter
from models.norms import SublayerNorms, make_norm
from models.sentence_config import Pooling


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
        self.packed: ops.PackedTable | None = None

    def forward(self, hidden: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.packed is not None:
            logits = self.packed(hidden, out=out)
        else:
            logits = _wide(ops.linear(hidden, tokens if self.weight is None else self.weight, self.bias), out)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def pack(self, packer: Packer, tokens: Tensor | None) -> ops.PackedTable:
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
    """Class logits of one token of each sequence, or of the mean. forward: [tokens, hidden], or of these tokens alone
    [batch, hidden] -> [batch, num_labels], float32."""

    def __init__(self, config: ClassificationHead, hidden_size: int) -> None:
        super().__init__(config, config.num_labels, hidden_size)
        self.config = config

    def forward(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        if batch.places is not None:
            return self.labels(hidden)
        places = self.places(batch)
        if places is None:
            return self.labels(pool(hidden, batch, "mean").to(hidden.dtype))
        return self.labels(hidden[batch.tokens_at(places)])

    def places(self, batch: EncoderBatch) -> list[int] | None:
        """Each text's one token, counted within it, or None for the mean. A text that has no such token gives its
        first."""
        match self.config.pool:
            case "mean":
                return None
            case "first":
                return [0] * len(batch.lengths)
            case "last":
                return [length - 1 for length in batch.lengths]
            case "end":
                wanted = batch.token_ids == self.config.end_token_id
            case _:
                wanted = batch.token_ids != self.config.pad_token_id
        return [int(part.max()) for part in torch.split((batch.positions * wanted).cpu(), list(batch.lengths))]


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


def pool(hidden: Tensor, batch: EncoderBatch, mode: Pooling, skipped: Sequence[int] | None = None) -> Tensor:
    """One vector per sequence. hidden: [tokens, hidden], or of their `place` alone [batch, hidden] -> [batch, hidden],
    float32.

    `cls` takes the first token. `mean_sqrt` divides the sum by the square root of the length, `weighted_mean` gives the
    token at position i the weight i + 1 (Muennighoff 2022, arXiv:2202.08904). Each sequence is reduced on its own, so
    that its batch-mates change nothing. skipped: tokens at the beginning of each that do not count; one always does.
    """
    if batch.places is not None:
        return hidden.float()
    starts = [min(n, length - 1) for n, length in zip(skipped or [0] * len(batch.lengths), batch.lengths, strict=True)]
    offsets = batch.offsets
    spans = [(first + start, end) for first, end, start in zip(offsets, offsets[1:], starts, strict=False)]
    if mode == "mean":
        return ops.means_of_spans(hidden, spans)
    parts = [hidden[first:end].float() for first, end in spans]
    return torch.stack([_pool_one(part, start, mode) for part, start in zip(parts, starts, strict=True)])


def place(mode: Pooling, length: int, skipped: int) -> int | None:
    """The one token of a text that `pool` takes, or None where it takes more."""
    match mode:
        case "cls":
            return min(skipped, length - 1)
        case "last":
            return length - 1
        case _:
            return None


def _pool_one(part: Tensor, start: int, mode: Literal["cls", "last", "max", "mean_sqrt", "weighted_mean"]) -> Tensor:
    match mode:
        case "cls":
            return part[0]
        case "last":
            return part[-1]
        case "max":
            return part.amax(0)
        case "mean_sqrt":
            return part.sum(0) / math.sqrt(len(part))
        case "weighted_mean":
            weights = torch.arange(start + 1, start + len(part) + 1, device=part.device, dtype=part.dtype)
            return (weights[:, None] * part).sum(0) / weights.sum()


def normalize(vectors: Tensor) -> Tensor:
    """Unit length; a zero vector stays zero. [batch, hidden] -> [batch, hidden]."""
    return F.normalize(vectors, dim=-1)
