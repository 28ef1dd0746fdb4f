"""Configuration of sentence embeddings, as in sentence-transformers (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.layers import Activation

Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


@dataclass(frozen=True)
class DenseConfig:
    """A linear layer on the vector of a text or of a token, and an optional activation: `activation(W x + b)`.

    folder: folder of its weights inside the checkpoint directory; empty for the directory itself.
    file: file of its weights; empty for the usual name.
    residual: add the input, or its product with a second matrix if the widths differ.
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
    """A LayerNorm of the vector of a text, with the epsilon of torch.

    folder: folder of its weights inside the checkpoint directory.
    out_features: width of the vector.
    """

    folder: str
    out_features: int


@dataclass(frozen=True)
class SentenceConfig:
    """How the hidden states of a text become one vector.

    pooling: pooling methods; their vectors are concatenated in this order.
    include_prompt: whether the pooling includes the tokens of a prompt.
    dense: linear layers and norms after the pooling.
    normalize: scale the result to unit length.
    max_tokens: longest text, None for no limit.
    dimensions: number of first components of the result that are kept (Kusupati et al. 2022, arXiv:2205.13147); None
        for all.
    """

    pooling: tuple[Pooling, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[DenseConfig | VectorNormConfig, ...] = ()
    normalize: bool = True
    max_tokens: int | None = None
    dimensions: int | None = None

    def width(self, hidden_size: int) -> int:
        """Number of values in the vector."""
        if self.dimensions is not None:
            return self.dimensions
        return self.dense[-1].out_features if self.dense else len(self.pooling) * hidden_size


@dataclass(frozen=True)
class VocabularyWeights:
    """How the logits of a masked language model become one weight per vocabulary entry of a text (SPLADE).

    pooling: the largest value over the tokens of the text, or the sum.
    logarithms: how often `log(1 + x)` is applied to the logits above zero.
    Formal et al. 2021, arXiv:2107.05720 and arXiv:2109.10086; twice: Shen et al. 2025, arXiv:2504.14839.
    """

    pooling: Literal["max", "sum"] = "max"
    logarithms: Literal[1, 2] = 1


@dataclass(frozen=True)
class AnswerLogits:
    """The score of a language model as a reranker: the logit of one next token minus the logit of another one.

    positive, negative: ids of the tokens, for example of `yes` and `no`. None: the first logit alone is the score.
    adds_generation_prompt: the chat template writes the beginning of the answer too.
    """

    positive: int
    negative: int | None = None
    adds_generation_prompt: bool = False
