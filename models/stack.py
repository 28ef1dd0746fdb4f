"""A stack of layers, an encoder or a decoder, from its embedding to its final norm."""

from __future__ import annotations

from torch import Tensor, nn

from models.backends.attention_metadata import KeyBias
from models.config import (
    AlibiConfig,
    AlternatingLayerConfig,
    BottleneckLayerConfig,
    BucketBiasConfig,
    ConformerLayerConfig,
    ConvolutionalEmbeddingConfig,
    ConvolutionLayerConfig,
    EmbeddingConfig,
    FramedWaveformEmbeddingConfig,
    GlobalVectorsLayerConfig,
    KeyAlibiConfig,
    LayerConfig,
    LayerInputConfig,
    LogMelSubsamplingConfig,
    NeighbourEmbeddingConfig,
    NormedWaveformEmbeddingConfig,
    OwnVectorEmbeddingConfig,
    QueryScale,
    QuestionTypesEmbeddingConfig,
    SamplesEmbeddingConfig,
    StackConfig,
    WaveformEmbeddingConfig,
)
from models.layers.alternating_layer import AlternatingLayer, Streams
from models.layers.audio_embedding import ConvolutionalEmbedding
from models.layers.bottleneck_layer import BottleneckLayer
from models.layers.capacity_layer import CapacityLayer
from models.layers.conformer_layer import ConformerLayer
from models.layers.convolution_layer import ConvolutionLayer
from models.layers.disentangled_attention import DistanceTable
from models.layers.embeddings import Embedding, EmbeddingTable
from models.layers.framed_waveform_embedding import FramedWaveformEmbedding
from models.layers.global_vectors import GlobalVectorsLayer
from models.layers.layer import Layer
from models.layers.layer_input import LayerWithInput, PerLayerEmbedding
from models.layers.linear import Linear, parameter
from models.layers.log_mel_subsampling import LogMelSubsampling
from models.layers.neighbour_embedding import NeighbourEmbedding
from models.layers.normed_waveform_embedding import NormedWaveformEmbedding
from models.layers.norms import make_norm
from models.layers.own_vector_embedding import OwnVectorEmbedding
from models.layers.positions import (
    Alibi,
    BucketBias,
    KeyAlibi,
    LayerBucketBias,
    PositionEncodings,
    Rotary,
    query_scale,
)
from models.layers.question_types import QuestionTypesEmbedding
from models.layers.waveform_embedding import WaveformEmbedding
from models.steps.step_inputs.base import StepInputs

SamplesEmbedding = WaveformEmbedding | NormedWaveformEmbedding | FramedWaveformEmbedding | LogMelSubsampling


class Stack(nn.Module):
    """An encoder or a decoder: embedding, layers, final norm, and optionally a projection to another width.

    tokens: token table to share with another stack, or None to create one.
    `models.executor` runs a stack.

    taps: indices of the layers whose inputs a decoder step keeps (`DecoderOutput.draft_states`), because a draft head
        reads them; usually empty.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, config: StackConfig, hidden_size: int, tokens: EmbeddingTable | None = None) -> None:
        super().__init__()
        self.config, self.hidden_size = config, hidden_size
        self.embedding = _make_embedding(config.embedding, hidden_size, tokens)
        layers: list[Layer] = []
        for index, layer in enumerate(config.layers):
            owner = config.sharing[index] if config.sharing else index
            layers.append(_make_layer(layer, hidden_size, index) if owner == index else layers[owner].at_index(index))
        self.layers = nn.ModuleList(layers)
        self.final_norm = make_norm(config.final_norm, hidden_size)
        width = config.output_width
        self.output_projection = None if width is None else Linear(hidden_size, width, bias=config.output_bias)
        self.score_bias = _make_score_bias(config)
        self.distances = None if config.distances is None else DistanceTable(config.distances, hidden_size)
        self.per_layer: PerLayerEmbedding | None = None
        if config.per_layer is not None:
            self.per_layer = PerLayerEmbedding(
                config.per_layer, config.embedding.vocab_size, len(config.layers), hidden_size
            )
        table = config.final_positions
        self.final_positions = None if table is None else EmbeddingTable(table.num_positions, hidden_size)
        count = config.global_vectors
        self.global_vectors = parameter(count, hidden_size) if count else None
        self.streams = None if config.streams is None else Streams(config.streams, hidden_size)
        self._rotaries = [Rotary(rope) for rope in config.ropes]
        self._query_scales = config.query_scales
        self.rotates_by_length = any(rotary.config.depends_on_length for rotary in self._rotaries)

    @property
    def tokens(self) -> EmbeddingTable:
        """The token table. Only a stack that reads text has one."""
        assert isinstance(self.embedding, Embedding), "an audio encoder has no token table"
        return self.embedding.tokens

    def encodings(self, positions: Tensor, length: int, rope_lengths: Tensor | None = None) -> PositionEncodings:
        """Position encodings of a step's tokens.

        positions: [tokens], int64, below `length`. rope_lengths: [tokens], int64, the text length that each token's
            rotation uses; None if no rotation depends on the length.
        """
        rotations = {rotary.config: rotary(positions, length, rope_lengths) for rotary in self._rotaries}
        distances = None if self.distances is None else self.distances(length)
        return PositionEncodings(rotations, self.bias(length), distances, self.query_scales(positions))

    def query_scales(self, positions: Tensor) -> dict[QueryScale, Tensor]:
        """Factors by which the queries of some tokens are multiplied, [tokens, 1], float32, by configuration.

        positions: [tokens], int64.
        """
        return {config: query_scale(config, positions) for config in self._query_scales}

    def bias(self, length: int) -> Tensor | KeyBias | None:
        """The score bias for sequences of up to `length` tokens; None for a stack without one.

        A bias by distance is [heads, 2 * length - 1], or [layers, heads, 2 * length - 1] if each layer has another
        bias. A bias by key is a KeyBias.
        """
        if isinstance(self.score_bias, Alibi | KeyAlibi):
            weight = self.tokens.weight
            return self.score_bias(length, weight.dtype, weight.device)
        return None if self.score_bias is None else self.score_bias(length)

    def embed(self, token_ids: Tensor, positions: Tensor, step: StepInputs) -> Tensor:
        """The hidden states that enter the first layer of a decoder: [tokens, hidden], model dtype.

        token_ids, positions: [tokens], int64. step: gets the vectors per token and layer.
        """
        x: Tensor = self.embedding(token_ids, positions)
        self.set_layer_inputs(step, token_ids, x)
        return x

    def set_layer_inputs(self, step: StepInputs, token_ids: Tensor, x: Tensor) -> None:
        """Compute the vectors per token and layer, and the global vectors of texts, and store them in `step`.

        Does nothing for a stack without such vectors.

        token_ids: [tokens], int64. x: [tokens, hidden], the output of the embedding.
        """
        if self.per_layer is not None:
            step.layer_inputs = self.per_layer(token_ids, x)
        if self.global_vectors is not None:
            step.global_vectors = self.global_vectors.repeat(len(step.lengths), 1)

    def run_layers(self, x: Tensor, step: StepInputs) -> Tensor:
        """Run the layers, then final norm, positions of the final states and output projection, if the stack has them.

        x: [tokens, hidden]. Returns the output rows: [n, hidden or output width].
        """
        x = x if self.streams is None else self.streams.expanded(x)
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                step.tap(self.taps.index(index), x)
            x = layer(x, step)
        x = x if self.streams is None else self.streams.merged(x)
        x = x if self.final_norm is None else self.final_norm(x)
        x = x if step.final_positions is None else x + step.final_positions
        x = x if self.output_projection is None else self.output_projection(x)
        return step.select_rows(len(self.layers), x)


def _make_embedding(
    config: EmbeddingConfig | ConvolutionalEmbeddingConfig | SamplesEmbeddingConfig,
    hidden_size: int,
    tokens: EmbeddingTable | None,
) -> Embedding | ConvolutionalEmbedding | SamplesEmbedding:
    if isinstance(config, FramedWaveformEmbeddingConfig):
        return FramedWaveformEmbedding(config)
    if isinstance(config, LogMelSubsamplingConfig):
        return LogMelSubsampling(config, hidden_size)
    if isinstance(config, NormedWaveformEmbeddingConfig):
        return NormedWaveformEmbedding(config)
    if isinstance(config, WaveformEmbeddingConfig):
        return WaveformEmbedding(config, hidden_size)
    if isinstance(config, ConvolutionalEmbeddingConfig):
        return ConvolutionalEmbedding(config, hidden_size)
    assert isinstance(config, EmbeddingConfig), "an embedding of samples has a class of its own"
    if isinstance(config, QuestionTypesEmbeddingConfig):
        return QuestionTypesEmbedding(config, hidden_size, tokens)
    if isinstance(config, NeighbourEmbeddingConfig):
        return NeighbourEmbedding(config, hidden_size, tokens)
    if isinstance(config, OwnVectorEmbeddingConfig):
        return OwnVectorEmbedding(config, hidden_size, tokens)
    return Embedding(config, hidden_size, tokens)


def _make_score_bias(config: StackConfig) -> BucketBias | LayerBucketBias | Alibi | KeyAlibi | None:
    match config.score_bias:
        case BucketBiasConfig(per_layer=True) as buckets:
            return LayerBucketBias(buckets, config.first_attention.num_heads, len(config.layers))
        case BucketBiasConfig() as buckets:
            return BucketBias(buckets, config.first_attention.num_heads)
        case AlibiConfig() as lines:
            return Alibi(lines)
        case KeyAlibiConfig() as lines:
            return KeyAlibi(lines)
        case None:
            return None


def _make_layer(config: LayerConfig, hidden_size: int, index: int) -> Layer:
    if isinstance(config, AlternatingLayerConfig):
        return AlternatingLayer(config, hidden_size, index)
    if isinstance(config, LayerInputConfig):
        return LayerWithInput(config, hidden_size, index)
    if isinstance(config, ConformerLayerConfig):
        return ConformerLayer(config, hidden_size, index)
    if isinstance(config, ConvolutionLayerConfig):
        return ConvolutionLayer(config, hidden_size, index)
    if isinstance(config, GlobalVectorsLayerConfig):
        return GlobalVectorsLayer(config, hidden_size, index)
    if isinstance(config, BottleneckLayerConfig):
        return BottleneckLayer(config, hidden_size, index)
    if config.has_capacity:
        return CapacityLayer(config, hidden_size, index)
    return Layer(config, hidden_size, index)
