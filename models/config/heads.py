"""What stands on top of the hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require
from models.config.layers import Activation, FeedForwardConfig
from models.config.norms import NormConfig


@dataclass(frozen=True)
class LanguageModelHead:
    """Logits over the vocabulary, of hidden states times `scale`. `tied` reuses the decoder's token embeddings.

    cap: logits stay below it, `cap * tanh(logit / cap)`.
    """

    tied: bool
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        require(self.cap is None or self.cap > 0, f"logit cap must be positive, got {self.cap}")


@dataclass(frozen=True)
class MaskedLanguageModelHead:
    """Dense, activation, norm, then tied logits with a bias (BERT's `cls.predictions`).

    The dense layer leads to the width of the encoder's token table.
    """

    activation: Activation
    norm: NormConfig
    dense_bias: bool = True
    bias: bool = True


@dataclass(frozen=True)
class PoolingHead:
    """No weights of its own: one vector per sequence from the hidden states."""


@dataclass(frozen=True)
class ClassificationHead:
    """One vector per sequence, then labels: `out(norm(act(dense(pooled))))`, the dense step and its norm optional.

    `pool` takes the first token of an encoder, the last of a sequence (BART's end-of-sentence token), the last that is
    `end_token_id`, the last that is not `pad_token_id`, or the mean. start_token_id: with an encoder and a decoder,
    what the decoder reads before the text; None for the text's own last token.
    """

    num_labels: int
    dense: Activation | None
    pool: Literal["first", "last", "end", "unpadded", "mean"] = "first"
    bias: bool = True
    start_token_id: int | None = 0
    dense_bias: bool = True
    norm: NormConfig | None = None
    end_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")
        require((self.pool == "end") == (self.end_token_id is not None), "an end token goes with pool `end`")


@dataclass(frozen=True)
class TokenClassificationHead:
    """Class logits of each token: `out(norm(act(dense(hidden))))`, the dense step and its norm optional."""

    num_labels: int
    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")


@dataclass(frozen=True)
class SpanHead:
    """Two logits of each token: to begin an answer, and to end one (Devlin et al. 2019, arXiv:1810.04805, 4.2).

    They come from the hidden state like the classes of a token: `out(norm(act(dense(hidden))))`.
    start_token_id: with an encoder and a decoder, as in `ClassificationHead`.
    """

    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    start_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpanHead(SpanHead):
    """The same after a feed-forward sublayer of its own, whose sum is normed (BigBird)."""

    feed_forward: FeedForwardConfig
    sum_norm: NormConfig


HeadConfig = (
    LanguageModelHead | MaskedLanguageModelHead | PoolingHead | ClassificationHead | TokenClassificationHead | SpanHead
)
