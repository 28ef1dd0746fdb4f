"""Configuration of a model: frozen, nested dataclasses that validate themselves.

A family file builds a `ModelConfig` from a checkpoint's `config.json`; `models.transformer` builds the modules from it.
Imports no torch, so that listing families and checking a configuration takes milliseconds.
"""

from models.config.attention import (
    AttentionConfig,
    DisentangledConfig,
    DistanceConfig,
    LatentAttentionConfig,
    QueryScale,
)
from models.config.embeddings import (
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    PerLayerEmbeddingConfig,
    QuestionTypesEmbeddingConfig,
)
from models.config.errors import ConfigError
from models.config.heads import (
    ClassificationHead,
    FeedForwardSpanHead,
    HeadConfig,
    HeadTransform,
    LanguageModelHead,
    MaskedLanguageModelHead,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.config.layers import (
    Activation,
    ConvolutionLayerConfig,
    FeedForwardConfig,
    LayerConfig,
    LayerInputConfig,
    MixtureOfExpertsConfig,
    RouterConfig,
    XieluFeedForwardConfig,
)
from models.config.model import ModelConfig, StackConfig
from models.config.norms import NormConfig, NormSlots, QueryKeyNorm
from models.config.positions import (
    AlibiConfig,
    BucketBiasConfig,
    DynamicScaling,
    FairseqSinusoidalPositions,
    KeyAlibiConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    Scaling,
    SinusoidalPositions,
    YarnScaling,
)
from models.config.state import (
    CHUNK_TOKENS,
    GatedDeltaConfig,
    MixerConfig,
    ShortConvolutionConfig,
    StateSpaceConfig,
    StateSpaceMultipliers,
)

__all__ = [
    "CHUNK_TOKENS",
    "Activation",
    "AlibiConfig",
    "AttentionConfig",
    "BucketBiasConfig",
    "ClassificationHead",
    "ConfigError",
    "ConvolutionLayerConfig",
    "ConvolutionalEmbeddingConfig",
    "DisentangledConfig",
    "DistanceConfig",
    "DynamicScaling",
    "EmbeddingConfig",
    "FairseqSinusoidalPositions",
    "FeedForwardConfig",
    "FeedForwardSpanHead",
    "GatedDeltaConfig",
    "HeadConfig",
    "HeadTransform",
    "KeyAlibiConfig",
    "LanguageModelHead",
    "LatentAttentionConfig",
    "LayerConfig",
    "LayerInputConfig",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongScaling",
    "MaskedLanguageModelHead",
    "MixerConfig",
    "MixtureOfExpertsConfig",
    "ModelConfig",
    "NormConfig",
    "NormSlots",
    "PerLayerEmbeddingConfig",
    "PoolingHead",
    "QueryKeyNorm",
    "QueryScale",
    "QuestionTypesEmbeddingConfig",
    "RopeConfig",
    "RouterConfig",
    "Scaling",
    "ShortConvolutionConfig",
    "SinusoidalPositions",
    "SpanHead",
    "StackConfig",
    "StateSpaceConfig",
    "StateSpaceMultipliers",
    "TokenClassificationHead",
    "XieluFeedForwardConfig",
    "YarnScaling",
]
