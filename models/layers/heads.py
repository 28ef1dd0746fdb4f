"""Output heads: logits over the vocabulary or over classes, computed from hidden states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.linear_weights import DenseWeight, LinearPacker, LinearWeight
from models.backends.torch.activations import ACTIVATIONS
from models.config import (
    ClassificationHead,
    CtcHead,
    FeedForwardSpanHead,
    HeadConfig,
    LanguageModelHead,
    MaskedLanguageModelHead,
    NormSlots,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, parameter
from models.layers.norms import SublayerNorms, make_norm
from models.layers.pooling import pool
from models.steps.batch import EncoderBatch
from weights.quantized_matrix import QuantizedMatrix


class LanguageModel(nn.Module):
    """Language model head: logits of the next token over the vocabulary.

    A packed head of a bfloat16 model returns the float32 sums of its product. A dense head rounds them to bfloat16
    first.

    dense, activation, second, norm: layers between the hidden states and the logits, or None.
    weight: [vocab, hidden], model dtype; None for a head that is tied to the token table. Until it is packed, it may be
        a quantised matrix.
    bias: [vocab], model dtype, or None.
    """

    unadaptable = ("dense", "second")

    def __init__(self, config: LanguageModelHead, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.scale, self.cap, transform = config.scale, config.cap, config.transform
        width = None if transform is None else transform.width
        self.dense = None if transform is None else Linear(hidden_size, width or hidden_size, transform.bias)
        self.second = None if transform is None or width is None else Linear(width, hidden_size, transform.bias)
        self.activation = None if transform is None else transform.activation
        self.norm = None if transform is None else make_norm(transform.norm, hidden_size)
        self.weight: nn.Parameter | QuantizedMatrix | None = None if config.tied else parameter(vocab_size, hidden_size)
        self.bias = parameter(vocab_size) if config.bias else None
        self.packed: LinearWeight | None = None

    def forward(self, hidden: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute logits.

        hidden: [n, hidden], model dtype.
        tokens: [vocab, hidden], model dtype, the token table.
        out: [n or more, vocab], float32, memory for the result; or None to allocate it.
        Returns [n, vocab], float32.
        """
        if self.dense is not None:
            hidden = self.dense(hidden, self.activation)
            hidden = hidden if self.second is None else self.second(hidden, self.activation)
            hidden = hidden if self.norm is None else self.norm(hidden)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        weight = self.packed
        if weight is None:
            assert not isinstance(self.weight, QuantizedMatrix), "a quantised matrix must be packed first"
            weight = DenseWeight(tokens if self.weight is None else self.weight, self.bias)
        logits = _float32_product(weight, hidden, out)
        return logits if self.cap is None else backend(logits).soft_cap(logits, self.cap)

    def pack(self, packer: LinearPacker, tokens: Tensor | QuantizedMatrix | None) -> LinearWeight:
        """Replace the weight by a packed weight that gives float32 logits. Returns the packed weight.

        tokens: [vocab, hidden], the token table if the head is tied to it; else None.
        """
        weight = tokens if self.weight is None else self.weight
        assert weight is not None
        self.packed = packer(weight, self.bias)
        self.weight = None
        return self.packed


class MaskedLanguageModel(nn.Module):
    """Masked language model head: dense layer, activation, norm, then logits from the token table or a separate table.

    token_width: width of the token table.
    weight: [vocab, table_width], model dtype; None for a head that is tied to the token table.
    further: [vocab, further_width], model dtype: further columns of the output weight, after the columns of the token
        table; None if the weight has no further columns.
    Source: Devlin et al. 2018, arXiv:1810.04805.
    """

    def __init__(self, config: MaskedLanguageModelHead, hidden_size: int, vocab_size: int, token_width: int) -> None:
        super().__init__()
        width = config.table_width or token_width + config.further_width
        self.dense = Linear(hidden_size, width, config.dense_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config.norm, width)
        self.weight = None if config.table_width is None else parameter(vocab_size, width)
        self.further = parameter(vocab_size, config.further_width) if config.further_width else None
        self.bias = parameter(vocab_size) if config.bias else None

    def forward(self, hidden: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute logits. tokens: [vocab, token_width], the token table.

        hidden: [n, hidden], model dtype.
        out: [n or more, vocab], float32, memory for the result; or None to allocate it.
        Returns [n, vocab], float32.
        """
        assert self.norm is not None
        hidden = self.norm(self.activation(self.dense(hidden)))
        table = DenseWeight(tokens if self.weight is None else self.weight, self.bias)
        if self.further is None:
            return _float32_product(table, hidden, out)
        first, rest = (part.contiguous() for part in torch.split(hidden, [tokens.shape[1], self.further.shape[1]], 1))
        return _float32_product(table, first, out).add_(_float32_product(DenseWeight(self.further, None), rest, None))


def _float32_product(weight: LinearWeight, hidden: Tensor, out: Tensor | None) -> Tensor:
    """`hidden W^T + b` as float32. A product in half precision is converted.

    out: float32 memory for the result, or None.
    """
    logits = weight.multiply(hidden, out=out)
    return logits if logits.dtype == torch.float32 else logits.float()


class _LabelHead(nn.Module):
    """Base class of the heads over classes: `output(norm(activation(dense(x))))`.

    Dense layer, activation and norm are optional.
    """

    def __init__(
        self,
        config: ClassificationHead | TokenClassificationHead | SpanHead | CtcHead,
        num_labels: int,
        hidden_size: int,
    ) -> None:
        super().__init__()
        self.dense: Linear | None = None
        if not isinstance(config, CtcHead) and config.dense is not None:
            self.dense = Linear(hidden_size, hidden_size, config.dense_bias)
            self.activation = ACTIVATIONS[config.dense]
            self.norm = make_norm(config.norm, hidden_size)
        bias = config.bias if isinstance(config, ClassificationHead) else True
        self.output = Linear(hidden_size, num_labels, bias)

    def label_logits(self, x: Tensor) -> Tensor:
        """Compute the class logits of each row: [n, hidden], model dtype -> [n, num_labels], float32."""
        if self.dense is not None:
            x = self.activation(self.dense(x))
            x = x if self.norm is None else self.norm(x)
        logits: Tensor = self.output(x)
        return logits.float()


class Classification(_LabelHead):
    """Sequence classification head: class logits of one vector per sequence.

    The vector is the hidden state of one token, or the mean of all hidden states. A configuration may instead ask for
    the class logits of all tokens, and average these.
    """

    def __init__(self, config: ClassificationHead, hidden_size: int) -> None:
        super().__init__(config, config.num_labels, hidden_size)
        self.config = config

    def forward(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        """Compute the class logits of each sequence.

        hidden: [tokens, hidden], model dtype; or [batch, hidden], if the batch has `output_positions`.
        Returns [batch, num_labels], float32.
        """
        if self.averages_logits:
            return pool(self.label_logits(hidden), batch, "mean")
        positions = batch.output_positions or self.output_positions(batch)
        if positions is None:
            return self.label_logits(pool(hidden, batch, "mean").to(hidden.dtype))
        return self.label_logits(batch.one_of_each(hidden, positions))

    @property
    def averages_logits(self) -> bool:
        """Whether logits of all tokens are computed and then averaged, instead of averaging hidden states."""
        return self.config.pool == "late"

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """Position of the token by which each sequence is classified; None if all tokens are used.

        If the token that the configuration asks for is absent, the first token of the sequence is used.
        """
        match self.config.pool:
            case "mean" | "late":
                return None
            case "first":
                return (0,) * len(batch.lengths)
            case "last":
                return tuple(length - 1 for length in batch.lengths)
            case "end":
                candidates = batch.token_ids == self.config.end_token_id
            case _:
                candidates = batch.token_ids != self.config.pad_token_id
        last = torch.split((batch.positions * candidates).cpu(), list(batch.lengths))
        return tuple(int(positions.max()) for positions in last)


class TokenClassification(_LabelHead):
    """Token classification head: class logits of each token.

    forward: [tokens, hidden] -> [tokens, num_labels], float32.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        return self.label_logits(hidden)


class FeedForwardTokenClassification(TokenClassification):
    """Span head of BigBird: start and end logits of each token, computed from `norm(x + feed_forward(x))`.

    forward: [tokens, hidden] -> [tokens, 2], float32.
    """

    def __init__(self, config: FeedForwardSpanHead, hidden_size: int) -> None:
        super().__init__(config, 2, hidden_size)
        self.feed_forward = FeedForward(config.feed_forward, hidden_size)
        self.norms = SublayerNorms(NormSlots(residual=config.sum_norm), hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(self.norms.add_residual(hidden, self.feed_forward(hidden)))


def make_head(
    config: HeadConfig, hidden_size: int, vocab_size: int, token_width: int
) -> LanguageModel | MaskedLanguageModel | Classification | TokenClassification | None:
    """Build the head of a configuration; None for a pooling head, which has no weights.

    token_width: width of the token table.
    """
    match config:
        case LanguageModelHead():
            return LanguageModel(config, hidden_size, vocab_size)
        case MaskedLanguageModelHead():
            return MaskedLanguageModel(config, hidden_size, vocab_size, token_width)
        case ClassificationHead():
            return Classification(config, hidden_size)
        case TokenClassificationHead() | CtcHead():
            return TokenClassification(config, config.num_labels, hidden_size)
        case FeedForwardSpanHead():
            return FeedForwardTokenClassification(config, hidden_size)
        case SpanHead():
            return TokenClassification(config, 2, hidden_size)
        case PoolingHead():
            return None
