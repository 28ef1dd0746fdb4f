"""Configuration of a model: frozen, nested dataclasses that validate themselves.

A family file builds a `ModelConfig` from a checkpoint's `config.json`; `models.transformer` builds the modules from it.
Imports no torch, so that listing families and checking a configuration takes milliseconds.
"""

from models.config.attention import AttentionConfig, DisentangledConfig, DistanceConfig
from models.config.embeddings import ConvolutionalEmbeddingConfig, EmbeddingConfig, QuestionTypesEmbeddingConfig
from models.config.errors import ConfigError
from models.config.heads import (
    ClassificationHead,
    FeedForwardSpanHead,
    HeadConfig,
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

__all__ = [
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
    "HeadConfig",
    "KeyAlibiConfig",
    "LanguageModelHead",
    "LayerConfig",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongScaling",
    "MaskedLanguageModelHead",
    "MixtureOfExpertsConfig",
    "ModelConfig",
    "NormConfig",
    "NormSlots",
    "PoolingHead",
    "QueryKeyNorm",
    "QuestionTypesEmbeddingConfig",
    "RopeConfig",
    "RouterConfig",
    "Scaling",
    "SinusoidalPositions",
    "SpanHead",
    "StackConfig",
    "TokenClassificationHead",
    "XieluFeedForwardConfig",
    "YarnScaling",
]
