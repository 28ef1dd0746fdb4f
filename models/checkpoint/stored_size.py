"""Compare the sizes in a configuration with the files of a checkpoint, before modules or rules are built.

A configuration of a few bytes can describe a model of any size. Building the modules of such a model, and the rules for
its tensors, would take minutes. A true configuration cannot describe more tensors and parameters than the files have.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.config import (
    AttentionConfig,
    BottleneckLayerConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    StackConfig,
    XieluFeedForwardConfig,
)
from weights.stored import Stored

PARAMETERS_PER_BYTE = 4
"""Largest number of parameters in a byte: the narrowest format has 2 bits per parameter."""
TENSORS_PER_PARAMETER = 16
SPARE_TENSORS = 1 << 14
"""Number of tensors that a checkpoint may have in addition: parts of quantised matrices, and towers that are not
served."""


def check_size(config: ModelConfig, stored: Mapping[str, Stored]) -> None:
    """Raise ConfigError if a model has more layers than the files have tensors, or more parameters than fit the files.

    Counts only parameters of large matrices, so the number of parameters is a lower bound.

    stored: tensors of the checkpoint by name.
    """
    stacks = [stack for stack in (config.encoder, config.decoder) if stack is not None]
    layers = sum(len(set(stack.sharing)) if stack.sharing else len(stack.layers) for stack in stacks)
    if layers > len(stored):
        raise ConfigError(f"the configuration has {layers:,} layers, but the files have only {len(stored):,} tensors")
    source_size = config.source_size or config.hidden_size
    parameters = sum(
        _parameters(stack, source_size if stack is config.encoder else config.hidden_size) for stack in stacks
    )
    stored_bytes = sum(tensor.nbytes for tensor in stored.values())
    if parameters > stored_bytes * PARAMETERS_PER_BYTE:
        raise ConfigError(
            f"the configuration describes {parameters:,} parameters or more, but the tensors of the files have only "
            f"{stored_bytes:,} bytes"
        )


def check_count(num_stored: int, num_parameters: int) -> None:
    """Raise ConfigError if a checkpoint has far more tensors than the model has parameters.

    It would take long to match them.
    """
    if num_stored > TENSORS_PER_PARAMETER * num_parameters + SPARE_TENSORS:
        raise ConfigError(f"the files have {num_stored:,} tensors, but the model needs only {num_parameters:,}")


def _parameters(stack: StackConfig, hidden_size: int) -> int:
    """Lower bound of the parameters of a stack: the token table, and large matrices of the layers.

    Layers that share weights are counted once.
    """
    found, embedding = 0, stack.embedding
    if isinstance(embedding, EmbeddingConfig):
        found += embedding.vocab_size * (embedding.width or embedding.token_width or hidden_size)
    of_layer: dict[int, int] = {}
    for index in set(stack.sharing) if stack.sharing else range(len(stack.layers)):
        layer = stack.layers[index]
        if id(layer) not in of_layer:
            of_layer[id(layer)] = _of_layer(layer, hidden_size)
        found += of_layer[id(layer)]
    return found


def _of_layer(layer: LayerConfig, hidden_size: int) -> int:
    """Lower bound of the parameters of a layer: one matrix of its attention, and one of its feed-forward network."""
    if isinstance(layer, BottleneckLayerConfig):
        return layer.width * hidden_size
    found = 0
    if type(layer.attention) is AttentionConfig:
        found += layer.attention.num_heads * layer.attention.head_dim * hidden_size
    if isinstance(layer.feed_forward, MixtureOfExpertsConfig):
        width = layer.feed_forward.latent_size or hidden_size
        found += layer.feed_forward.num_experts * layer.feed_forward.expert.intermediate_size * width
    elif isinstance(layer.feed_forward, FeedForwardConfig | XieluFeedForwardConfig):
        found += layer.feed_forward.intermediate_size * hidden_size
    return found
