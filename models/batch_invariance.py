"""Which models give a request the same bits alone and in a batch on a CUDA device, with `--batch-invariant`.

Only parts that are listed here compute with Triptych's kernels or with elementwise operations. Other parts call matrix
products, convolutions or sums of torch and its libraries, which choose the order of their sums by the number of rows.
The CPU kernels need no such list.
"""

from __future__ import annotations

from torch import nn

from models.backends import choice, fixed_order
from models.layers.attention import Attention
from models.layers.capacity_layer import CapacityLayer
from models.layers.embeddings import Embedding, EmbeddingTable, ProjectedEmbeddingTable, SinusoidalTable
from models.layers.feed_forward import FeedForward
from models.layers.heads import (
    Classification,
    FeedForwardTokenClassification,
    LanguageModel,
    MaskedLanguageModel,
    TokenClassification,
)
from models.layers.latent_attention import LatentAttention
from models.layers.layer import Layer
from models.layers.linear import Linear
from models.layers.moe import FeedForwardSum, MixtureOfExperts, Router
from models.layers.norms import (
    Affine,
    LayerNorm,
    PerHeadNorm,
    RMSNorm,
    RMSNormFromOne,
    SublayerNorms,
    UnscaledLayerNorm,
    UnscaledRMSNorm,
)
from models.layers.own_vector_embedding import OwnVectorEmbedding
from models.layers.positions import BucketBias, LayerBucketBias
from models.layers.sentence_head import Dense, SentenceHead
from models.layers.token_heads import TokenHeads, TokenVectors, TokenWeights
from models.stack import Stack
from models.transformer import Transformer

_FIXED_ORDER = frozenset(
    {
        Affine,
        Attention,
        BucketBias,
        CapacityLayer,
        Classification,
        Dense,
        Embedding,
        EmbeddingTable,
        FeedForward,
        FeedForwardSum,
        FeedForwardTokenClassification,
        LanguageModel,
        LatentAttention,
        Layer,
        LayerBucketBias,
        LayerNorm,
        Linear,
        MaskedLanguageModel,
        MixtureOfExperts,
        OwnVectorEmbedding,
        PerHeadNorm,
        ProjectedEmbeddingTable,
        RMSNorm,
        RMSNormFromOne,
        Router,
        SentenceHead,
        SinusoidalTable,
        Stack,
        SublayerNorms,
        TokenClassification,
        TokenHeads,
        TokenVectors,
        TokenWeights,
        Transformer,
        UnscaledLayerNorm,
        UnscaledRMSNorm,
    }
)
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.Identity)


def check_batch_invariance(*parts: nn.Module) -> None:
    """Raise BatchInvarianceUnavailable if `--batch-invariant` is set and the bits of a part may depend on other rows.

    parts: a transformer, or the heads that are computed after it; may be on the meta device.
    """
    if not fixed_order.enabled:
        return
    for module in (module for part in parts for module in part.modules()):
        if type(module) not in _FIXED_ORDER and not isinstance(module, _CONTAINERS):
            raise choice.BatchInvarianceUnavailable(
                "--batch-invariant does not support this model: the order of sums in its layers of the class "
                f"{type(module).__name__} may depend on the other requests of a step"
            )
