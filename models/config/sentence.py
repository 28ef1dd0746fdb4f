"""Configuration of sentence embeddings, as in sentence-transformers (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.layers import Activation

Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


@dataclass(frozen=True)
class DenseConfig:
    """A linear layer for the vector of a text or token, with an optional activation: `activation(W x + b)`.

    folder: folder of its weights inside the checkpoint directory; empty for the directory itself.
    file: file of its weights; empty for the usual names of weight files.
    residual: whether the input is added to the result; if the widths differ, a second matrix first projects the input.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation | None
    file: str = ""
    residual: bool = False


@dataclass(frozen=True)
class VectorNormConfig:
    """A layer norm for the vector of a text, with the default epsilon of torch's LayerNorm.

    folder: folder of its weights inside the checkpoint directory.
    out_features: width of the vector.
    """

    folder: str
    out_features: int


@dataclass(frozen=True)
class SentenceConfig:
    """How the hidden states of a text become one vector.

    pooling: pooling methods; the vectors that they give are concatenated in this order.
    include_prompt: whether the pooling includes the tokens of a prompt.
    dense: linear layers and norms after the pooling, in order.
    normalize: whether the result is scaled to unit length.
    max_tokens: number of tokens after which a text is cut; None for no limit.
    dimensions: number of leading dimensions of the result that are kept (Kusupati et al. 2022, arXiv:2205.13147); None
        for all.
    """

    pooling: tuple[Pooling, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[DenseConfig | VectorNormConfig, ...] = ()
    normalize: bool = True
    max_tokens: int | None = None
    dimensions: int | None = None

    def width(self, hidden_size: int) -> int:
        """Number of values in the vector of a text."""
        if self.dimensions is not None:
            return self.dimensions
        return self.dense[-1].out_features if self.dense else len(self.pooling) * hidden_size


@dataclass(frozen=True)
class VocabularyWeights:
    """How the logits of a masked language model become one weight per vocabulary entry of a text (SPLADE).

    pooling: how values are combined over the tokens of the text: their maximum or their sum.
    logarithms: how often `log(1 + x)` is applied to the positive logits.
    Sources: Formal et al. 2021, arXiv:2107.05720 and arXiv:2109.10086; Shen et al. 2025, arXiv:2504.14839 (two
    logarithms).
    """

    pooling: Literal["max", "sum"] = "max"
    logarithms: Literal[1, 2] = 1


@dataclass(frozen=True)
class AnswerLogits:
    """How a language model scores a text as a reranker: by the logits of one or two possible next tokens.

    The score is the logit of the positive token minus the logit of the negative token.
    positive, negative: ids of the tokens, for example of `yes` and `no`. Without a negative token, the score is the
        positive logit.
    adds_generation_prompt: whether the chat template also writes the beginning of the answer.
    """

    positive: int
    negative: int | None = None
    adds_generation_prompt: bool = False
