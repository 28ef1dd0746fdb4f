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
    bias: whether the dense layer has a bias.
    width: width of the dense layer, if a second dense layer with the same activation projects back to the hidden size
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

    tied: whether the weight is the table of token embeddings.
    scale: factor by which the hidden states are multiplied.
    cap: logits become `cap * tanh(logit / cap)`. None for no cap.
    transform: layers between the hidden states and the logits; None for no such layers.
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

    The output of the dense layer is as wide as a row of the table that gives the logits.
    dense_bias, bias: whether the dense layer and the logits have biases.
    table_width: width of a separate output table, so that the logits are not tied (RemBERT). None: they are tied.
    further_width: width of a second table. Each output row is a row of the token table followed by a row of the second
        table (MobileBERT). 0 for no second table.
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
    pool: what is classified: the first token, the last token, the last token with `end_token_id` (`end`), the last
        token without `pad_token_id` (`unpadded`), the mean of all tokens, or the mean of the logits of all tokens
        (`late`).
    bias, dense_bias: whether the output layer and the dense layer have biases.
    start_token_id: for an encoder-decoder: id of the first decoder input, which precedes the text. None: the last token
        of the text is moved to the front.
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

    Computed like the logits of `TokenClassificationHead`: `out(norm(act(dense(hidden))))`.
    start_token_id: for an encoder-decoder: id of the first decoder input, which precedes the text. None: the last token
        of the text is moved to the front.
    """

    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    start_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpanHead(SpanHead):
    """A span head with an additional feed-forward sublayer before its start and end logits (BigBird).

    sum_norm: norm after the sublayer's result is added to its input.
    """

    feed_forward: FeedForwardConfig
    sum_norm: NormConfig


@dataclass(frozen=True)
class CtcHead:
    """Logits over the labels of a speech recogniser, for each hidden state of a recording. One label is the blank.

    Source: Graves et al. 2006, connectionist temporal classification.
    num_labels: number of labels, including the blank.
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
