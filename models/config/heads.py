"""Configuration of the heads, which compute outputs from hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require
from models.config.layers import Activation, FeedForwardConfig
from models.config.norms import NormConfig


@dataclass(frozen=True)
class HeadTransform:
    """Dense layer, activation and norm between the last hidden states and the logits.

    norm: None for no norm.
    bias: whether the dense layer has one.
    width: width of the dense layer, if a second one leads back to the hidden size, with the same activation
        (UltraBERT). None: the hidden size, without a second layer.
    """

    activation: Activation
    norm: NormConfig | None
    bias: bool = False
    width: int | None = None

    def __post_init__(self) -> None:
        require(self.width is None or self.width > 0, f"the width of a head must be positive, got {self.width}")


@dataclass(frozen=True)
class LanguageModelHead:
    """Configuration of a head that gives logits over the vocabulary.

    tied: the weight is the table of token embeddings.
    scale: factor of the hidden states.
    cap: logits become `cap * tanh(logit / cap)`. None for no cap.
    transform: layers before the logits, None for none.
    """

    tied: bool
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None
    transform: HeadTransform | None = None

    def __post_init__(self) -> None:
        require(self.cap is None or self.cap > 0, f"logit cap must be positive, got {self.cap}")


@dataclass(frozen=True)
class MaskedLanguageModelHead:
    """Dense layer, activation, norm, then logits that are tied to the token embeddings (BERT's `cls.predictions`).

    The output of the dense layer is as wide as the table of the logits.
    dense_bias, bias: whether the dense layer and the logits have biases.
    table_width: width of a separate output table, so that the logits are not tied (RemBERT). None: they are tied.
    further_width: width of a second table. Each output row is a row of the token table followed by a row of the second
        table (MobileBERT). 0 for none.
    """

    activation: Activation
    norm: NormConfig
    dense_bias: bool = True
    bias: bool = True
    table_width: int | None = None
    further_width: int = 0

    def __post_init__(self) -> None:
        require(self.further_width >= 0, f"further_width must not be negative, got {self.further_width}")
        require(self.table_width is None or self.further_width == 0, "logits of their own have one table")


@dataclass(frozen=True)
class PoolingHead:
    """One vector per sequence, pooled from the hidden states. Has no weights."""


@dataclass(frozen=True)
class ClassificationHead:
    """Class logits of a sequence: `out(norm(act(dense(pooled))))`.

    dense: activation of the dense layer, None for no dense layer.
    pool: the first token, the last token, the last token with `end_token_id` (`end`), the last token without
        `pad_token_id` (`unpadded`), the mean of all tokens, or the mean of the logits of all tokens (`late`).
    bias, dense_bias: whether the output layer and the dense layer have biases.
    start_token_id: for an encoder-decoder: token before the text in the decoder input; None for the last token of the
        text.
    norm: norm after the dense layer, None for no norm.
    """

    num_labels: int
    dense: Activation | None
    pool: Literal["first", "last", "end", "unpadded", "mean", "late"] = "first"
    bias: bool = True
    start_token_id: int | None = 0
    dense_bias: bool = True
    norm: NormConfig | None = None
    end_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")
        require((self.pool == "end") == (self.end_token_id is not None), "pool 'end' needs end_token_id and vice versa")


@dataclass(frozen=True)
class TokenClassificationHead:
    """Configuration of a head that classifies each token: `out(norm(act(dense(hidden))))`.

    dense: activation of the dense layer, None for no dense layer. norm: norm after it, None for no norm.
    """

    num_labels: int
    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")


@dataclass(frozen=True)
class SpanHead:
    """Start and end logits of an answer, for each token (Devlin et al. 2019, arXiv:1810.04805, 4.2).

    Computed like the logits of `TokenClassificationHead`. start_token_id: see `ClassificationHead`.
    """

    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    start_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpanHead(SpanHead):
    """A span head that runs a feed-forward sublayer of its own before its start and end logits (BigBird).

    sum_norm: norm of the sum of the sublayer and its input.
    """

    feed_forward: FeedForwardConfig
    sum_norm: NormConfig


@dataclass(frozen=True)
class CtcHead:
    """Logits of a label for each hidden state of a recording: entries of the vocabulary, one of which is the blank.

    Source: Graves et al. 2006, connectionist temporal classification. num_labels: size of the vocabulary.
    """

    num_labels: int

    def __post_init__(self) -> None:
        require(self.num_labels > 1, f"a vocabulary with a blank has at least two entries, got {self.num_labels}")


HeadConfig = (
    LanguageModelHead
    | MaskedLanguageModelHead
    | PoolingHead
    | ClassificationHead
    | TokenClassificationHead
    | SpanHead
    | CtcHead
)
