"""Configuration of a whole model, and of each stack of layers in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from models.config.attention import AttentionConfig, DisentangledConfig, DistanceConfig, QueryScale
from models.config.embeddings import (
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    PerLayerEmbeddingConfig,
    StaticEmbeddingConfig,
)
from models.config.errors import require
from models.config.heads import HeadConfig
from models.config.layers import LayerConfig
from models.config.norms import NormConfig
from models.config.positions import (
    AlibiConfig,
    BucketBiasConfig,
    DynamicScaling,
    KeyAlibiConfig,
    LearnedPositions,
    LongScaling,
    RopeConfig,
)
from models.config.samples import SamplesEmbeddingConfig
from models.config.sparse_attention import BandedAttentionConfig
from models.config.special_layers import AlternatingLayerConfig, GlobalVectorsLayerConfig, LayerInputConfig
from models.config.state import MixerConfig


@dataclass(frozen=True)
class StreamsConfig:
    """Number of streams: hidden states that a stack keeps in parallel from embedding to final norm (Gemma 3n).

    `AlternatingLayerConfig` describes how layers read and write them.
    """

    count: int

    def __post_init__(self) -> None:
        require(self.count > 1, f"a stack needs at least two streams, got {self.count}")


@dataclass(frozen=True)
class StackConfig:
    """An encoder or a decoder: embeddings, layers and an optional final norm.

    score_bias: bias of the attention scores by relative position, shared by all layers unless it is `per_layer`.
    sharing: for each layer, the index of the layer whose weights it uses: itself or an earlier layer (Lan et al. 2020,
        arXiv:1909.11942, section 3.1). Empty: every layer has separate weights.
    distances: vectors of distances, for layers with disentangled attention; None without such layers.
    output_width: width to which a matrix projects the final hidden states (OPT-350m). None for no such matrix.
    output_bias: whether this projection has a bias.
    per_layer: vectors per token and layer, for layers with an `input_width`. None without such layers.
    streams: several streams of hidden states, for `AlternatingLayerConfig`. None for a single stream.
    final_positions: table of vectors by position, which are added to the final hidden states before they are projected
        to the output width. None for no such table.
    global_vectors: number of global vectors of each text, for `GlobalVectorsLayerConfig`; 0 without such layers.
    """

    embedding: EmbeddingConfig | ConvolutionalEmbeddingConfig | SamplesEmbeddingConfig
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    score_bias: BucketBiasConfig | AlibiConfig | KeyAlibiConfig | None = None
    sharing: tuple[int, ...] = ()
    distances: DistanceConfig | None = None
    output_width: int | None = None
    output_bias: bool = False
    per_layer: PerLayerEmbeddingConfig | None = None
    streams: StreamsConfig | None = None
    global_vectors: int = 0
    final_positions: LearnedPositions | None = None

    def __post_init__(self) -> None:
        require(self.output_width is None or self.output_width > 0, "the output width must be positive")
        has_output = len(self.layers) > 0 or isinstance(self.embedding, StaticEmbeddingConfig)
        require(has_output, "a stack needs at least one layer")
        require(
            not self.sharing or len(self.sharing) == len(self.layers),
            f"sharing names {len(self.sharing)} layers for {len(self.layers)}",
        )
        for index, owner in enumerate(self.sharing):
            require(
                0 <= owner <= index and self.sharing[owner] == owner,
                f"layer {index} cannot use the weights of layer {owner}",
            )
            require(
                self.layers[owner] == self.layers[index],
                f"layers {owner} and {index} share weights, but are configured differently",
            )
        if isinstance(self.score_bias, AlibiConfig | KeyAlibiConfig):
            slopes, heads = len(self.score_bias.slopes), self.first_attention.num_heads
            require(slopes == heads, f"{slopes} ALiBi slopes for {heads} heads")
        disentangled = any(isinstance(layer.attention, DisentangledConfig) for layer in self.layers)
        require(disentangled == (self.distances is not None), "disentangled attention and distances require each other")
        # Programs have no positions of the final states. This attention runs outside of programs.
        banded = all(isinstance(layer.attention, BandedAttentionConfig) for layer in self.layers)
        require(self.final_positions is None or banded, "positions of the final states need banded attention")
        self._check_shared_keys()
        self._check_layer_inputs()
        has_global_vectors = {isinstance(layer, GlobalVectorsLayerConfig) for layer in self.layers}
        require(has_global_vectors <= {self.global_vectors > 0}, "global vectors need layers for them, and vice versa")

    @property
    def needs_all_rows(self) -> bool:
        """Whether the last layer must compute all tokens even if few outputs are needed.

        All tokens are needed if the last layer's experts have a capacity, because every token of a text counts.
        """
        return bool(self.layers) and self.layers[-1].has_capacity

    @property
    def key_value_layers(self) -> frozenset[int]:
        """Indices of the layers whose keys and values later layers read."""
        found = (layer.attention.key_value_layer for layer in self.layers if layer.attention is not None)
        return frozenset(index for index in found if index is not None)

    def _check_shared_keys(self) -> None:
        for index, layer in enumerate(self.layers):
            owner = None if layer.attention is None else layer.attention.key_value_layer
            if owner is None:
                continue
            require(not self.mixers, "layers of a stack with mixers cannot share keys and values")
            require(0 <= owner < index, f"layer {index} cannot read the keys and values of layer {owner}")
            assert layer.attention is not None
            shared, own = self.layers[owner].attention, layer.attention
            require(
                shared is not None
                and shared.key_value_layer is None
                and (shared.num_kv_heads, shared.head_dim) == (own.num_kv_heads, own.head_dim),
                f"layer {owner} has no keys and values for layer {index}",
            )

    def _check_layer_inputs(self) -> None:
        widths = {layer.input_width for layer in self.layers if isinstance(layer, LayerInputConfig)} - {None}
        expected = set() if self.per_layer is None else {self.per_layer.width}
        require(widths == expected, "per-layer embeddings and the layers that read them require each other")
        counts = {layer.streams if isinstance(layer, AlternatingLayerConfig) else 1 for layer in self.layers}
        count = 1 if self.streams is None else self.streams.count
        require(counts in (set(), {count}), f"all layers must have the {count} streams of the stack")

    @cached_property
    def cache_layers(self) -> tuple[int, ...]:
        """For each layer, the index under which a cache stores its keys and values.

        A cache has no entry for layers without self-attention, whose index here has no meaning.
        """
        has_attention = [layer.attention is not None for layer in self.layers]
        return tuple(accumulate(has_attention[:-1], initial=0))

    @cached_property
    def mixers(self) -> Mapping[int, MixerConfig]:
        """Mixers by the index of their layer; empty without mixers."""
        return {index: layer.mixer for index, layer in enumerate(self.layers) if layer.mixer is not None}

    @cached_property
    def ropes(self) -> frozenset[RopeConfig]:
        """The different configurations of rotary positions in the layers."""
        attentions = (layer.attention for layer in self.layers if layer.attention is not None)
        return frozenset(attention.rope for attention in attentions if attention.rope is not None)

    @cached_property
    def query_scales(self) -> frozenset[QueryScale]:
        """The different configurations of query factors in the layers."""
        attentions = (layer.attention for layer in self.layers if layer.attention is not None)
        return frozenset(attention.query_scale for attention in attentions if attention.query_scale is not None)

    @property
    def first_attention(self) -> AttentionConfig:
        """Configuration of the self-attention in the first layer that has self-attention.

        Raises ConfigError if no layer has it.
        """
        found = next((layer.attention for layer in self.layers if layer.attention is not None), None)
        require(found is not None, "the stack has no layer with self-attention")
        assert found is not None
        return found


@dataclass(frozen=True)
class ModelConfig:
    """A whole model: an encoder, a decoder, or both.

    vocab_size: vocabulary of the logits and of the decoder. Without `shared_embeddings`, the encoder of an
        encoder-decoder may have another vocabulary.
    shared_embeddings: whether both stacks use one table of token embeddings.
    max_positions: largest number of tokens of a sequence; None for no limit (T5).
    max_source_positions: largest number of source tokens of an encoder-decoder; None for the limit of the decoder.
    source_size: in an encoder-decoder, the hidden size of the encoder if it is not `hidden_size`; else None.
    """

    hidden_size: int
    vocab_size: int
    head: HeadConfig
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    shared_embeddings: bool = False
    max_positions: int | None = None
    max_source_positions: int | None = None
    source_size: int | None = None

    def __post_init__(self) -> None:
        require(self.encoder is not None or self.decoder is not None, "a model needs an encoder or a decoder")
        own_source = self.is_encoder_decoder and not self.shared_embeddings
        for label, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            reads_tokens = stack is not None and isinstance(stack.embedding, EmbeddingConfig)
            if stack is not None and reads_tokens and not (label == "encoder" and own_source):
                require(
                    stack.embedding.vocab_size == self.vocab_size,
                    f"{label} vocabulary {stack.embedding.vocab_size} differs from the model's {self.vocab_size}",
                )
        crosses = self.decoder is not None and any(layer.reads_source for layer in self.decoder.layers)
        require(crosses == (self.encoder is not None and self.decoder is not None), "cross-attention needs an encoder")
        self._check_source_size()

    def _check_source_size(self) -> None:
        size, layers = self.source_size, () if self.decoder is None else self.decoder.layers
        require(size is None or self.is_encoder_decoder, "only the encoder of an encoder-decoder has its own width")
        require(size is None or not self.shared_embeddings, "stacks of different widths cannot share embeddings")
        widths = {layer.cross_attention.key_value_width for layer in layers if layer.cross_attention is not None}
        projected = None if self.encoder is None or self.decoder is None else self.encoder.output_width
        require(projected in (None, self.hidden_size), "the encoder of an encoder-decoder projects to the hidden size")
        require(
            widths <= {size if projected is None else None},
            "cross-attention must read hidden states of the width of the encoder",
        )

    @property
    def output_size(self) -> int:
        """Width of the hidden states that the head reads."""
        last = self.decoder or self.encoder
        assert last is not None
        return last.output_width or self.hidden_size

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder is not None and self.decoder is not None

    @property
    def keys_depend_on_length(self) -> bool:
        """Whether the keys of a prefix depend on the length of the whole prompt, through its rotary positions."""
        return any(rope.depends_on_length for rope in self._ropes())

    def key_variant(self, length: int) -> str:
        """A text that identifies the variant of keys that a prompt of `length` tokens has.

        Prompts with equal variants have equal keys for a common beginning, so that they can share them.

        The result is empty for models in which keys do not depend on the length. It is also empty up to the original
        length of all rotary embeddings. Beyond that length, `LongScaling` has one other variant, and `DynamicScaling`
        one variant per length.
        """
        scalings = [rope.scaling for rope in self._ropes() if rope.depends_on_length]
        variants = set()
        for scaling in scalings:
            assert isinstance(scaling, DynamicScaling | LongScaling)
            if length > scaling.original_max_positions:
                variants.add(length if isinstance(scaling, DynamicScaling) else -scaling.original_max_positions)
        return ",".join(map(str, sorted(variants)))

    @property
    def restart_tokens(self) -> int | None:
        """Number of tokens at which a growing text must be recomputed from its start; None for no such length.

        Only a model with a `LongScaling` with `restarts` has such a length.
        """
        scalings = [rope.scaling for rope in self._ropes() if isinstance(rope.scaling, LongScaling)]
        return min((scaling.original_max_positions for scaling in scalings if scaling.restarts), default=None)

    def _ropes(self) -> frozenset[RopeConfig]:
        return frozenset() if self.decoder is None else self.decoder.ropes
