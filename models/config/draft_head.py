"""Configuration of a draft head: a small decoder that predicts tokens from hidden states of a larger model."""

from __future__ import annotations

from dataclasses import dataclass

from models.config.attention import AttentionConfig
from models.config.embeddings import EmbeddingConfig
from models.config.errors import require
from models.config.layers import LayerConfig
from models.config.model import StackConfig
from models.config.norms import NormConfig


@dataclass(frozen=True)
class DraftHeadConfig:
    """A draft head of a decoder, its target. The subclasses say how its layers read hidden states of the target.

    To predict the token at position p + 2, the head reads the target's hidden state at position p and the token at
    position p + 1. For each further prediction, it reads its own last hidden state in place of one of the target.

    vocab_size: number of rows of the table of token vectors; at least the number of tokens of the target.
    hidden_size: width of the head's hidden states.
    layer: the only layer of the head.
    norm: configuration of the norms of token vectors, of hidden states and of the output.
    """

    vocab_size: int
    hidden_size: int
    layer: LayerConfig
    norm: NormConfig

    def __post_init__(self) -> None:
        attention = self.layer.attention
        require(attention is not None and attention.causal, "the layer of a draft head needs causal attention")
        require(self.layer.mixer is None and self.layer.cross_attention is None, "a draft head has attention only")

    @property
    def attention_layers(self) -> tuple[AttentionConfig, ...]:
        """Attention of each layer, for a KV cache."""
        assert self.layer.attention is not None
        return (self.layer.attention,)

    @property
    def target_layers(self) -> tuple[int, ...]:
        """Indices of the target's layers whose inputs the head reads. Empty: it reads the target's final states."""
        return ()

    @property
    def stack(self) -> StackConfig:
        """The layers of the head as a stack."""
        return StackConfig(EmbeddingConfig(self.vocab_size), (self.layer,), self.output_norm)

    @property
    def output_norm(self) -> NormConfig | None:
        """Norm of the hidden states that the head reads again for further predictions; None for no norm."""
        return self.norm


@dataclass(frozen=True)
class PredictionHeadConfig(DraftHeadConfig):
    """A head for multi-token prediction, which is trained and stored with its target.

    Token vectors and final hidden states of the target are normed, projected and added. The head has the token table
    and the output head of the target.
    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2.
    """


@dataclass(frozen=True)
class EagleHeadConfig(DraftHeadConfig):
    """An EAGLE-3 head, which is trained for a finished target and stored as a separate checkpoint.

    A matrix projects the inputs of several layers of the target to one hidden state. The projections of queries, keys
    and values read the concatenation of the normed token vector and the normed hidden state.

    logits_size: number of tokens that the head can predict; at most `vocab_size`.
    layers: indices of the layers of the target whose inputs the head reads.
    target_size: width of the target's hidden states.
    target_tokens: whether the head uses the token table of the target; otherwise it has a separate table.
    normed_residual: whether the normed hidden state is the residual of the attention, instead of the hidden state.
    input_bias: whether the projection of the layer inputs has a bias.
    Source: Li et al. 2025, arXiv:2503.01840, section 3.
    """

    logits_size: int
    layers: tuple[int, ...]
    target_size: int
    target_tokens: bool
    normed_residual: bool = False
    input_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(type(self.layer.attention) is AttentionConfig, "an EAGLE-3 head needs plain attention")
        require(not self.layer.parallel, "an EAGLE-3 head has no parallel sublayers")
        require(
            0 < self.logits_size <= self.vocab_size,
            f"an EAGLE-3 head predicts up to {self.vocab_size:,} tokens, not {self.logits_size:,}",
        )
        require(len(self.layers) > 0 and min(self.layers) >= 0, f"an EAGLE-3 head cannot read layers {self.layers}")
        require(len(set(self.layers)) == len(self.layers), f"an EAGLE-3 head reads a layer twice: {self.layers}")
        require(
            not self.target_tokens or self.target_size == self.hidden_size,
            f"an EAGLE-3 head of width {self.hidden_size:,} needs a token table of its own, because the model has "
            f"width {self.target_size:,}",
        )

    @property
    def target_layers(self) -> tuple[int, ...]:
        return self.layers

    @property
    def output_norm(self) -> NormConfig | None:
        # Further predictions read the states before the norm, as in training.
        return None
