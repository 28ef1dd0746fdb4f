"""One transformer for all three families: an encoder stack, a decoder stack, or both, and a head.

Parameter names, the targets of a family's weight rules (`N` counts layers from 0; a bias exists where the
configuration asks for one; linear weights are `[out, in]` as torch stores them):

| name                                                        | shape                                           |
|-------------------------------------------------------------|-------------------------------------------------|
| `encoder.embedding.tokens.weight`                           | [vocab, hidden]                                 |
| `encoder.embedding.positions.weight`                        | [num_positions, hidden], learned positions only |
| `encoder.embedding.token_types.weight`                      | [num_token_types, hidden]                       |
| `encoder.embedding.{norm,token_norm}.{weight,bias}`         | [hidden]                                        |
| `encoder.embedding.projection.{weight,bias}`                | [hidden, width], tables and norm then [width]   |
| `encoder.embedding.tokens.projection.weight`                | [hidden, token width], `tokens` then that wide  |
| `encoder.embedding.convolution_{1,2}.{weight,bias}`         | [hidden, num_mels or hidden, 3], sound only     |
| `encoder.layers.N.attention.query.{weight,bias}`            | [heads * head_dim, hidden]                      |
| `encoder.layers.N.attention.{key,value}.{weight,bias}`      | [kv_heads * head_dim, hidden]                   |
| `encoder.layers.N.attention.output.{weight,bias}`           | [hidden, heads * head_dim]                      |
| `encoder.layers.N.attention.{query,key}_norm.{weight,bias}` | [head_dim], or as long as the projection        |
| `encoder.layers.N.attention.{query,key}_norm.heads.H.weight` | [head_dim], where each head has its own        |
| `encoder.layers.N.attention.global_{query,key,value}.{weight,bias}` | as without `global_`, Longformer only   |
| `encoder.layers.N.attention.summary_norm.weight`            | [hidden], LongT5 only                           |
| `encoder.layers.N.attention.summary_bias.weight`            | [num_buckets, heads], LongT5 only               |
| `encoder.layers.N.attention_norms.{input,output,residual}.{weight,bias}` | [hidden]                           |
| `encoder.layers.N.feed_forward.{up,gate}.{weight,bias}`     | [intermediate, hidden], gate only when gated    |
| `encoder.layers.N.feed_forward.down.{weight,bias}`          | [hidden, intermediate]                          |
| `encoder.layers.N.feed_forward.router.weight`                | [experts, hidden], mixture of experts, which    |
| `encoder.layers.N.feed_forward.experts.E.{up,gate,down}.weight` | has an `up`, `gate` and `down` for each; and |
| `encoder.layers.N.feed_forward.shared.{up,gate,down}.weight`, `.shared_gate.weight` | [1, hidden], where shared |
| `encoder.layers.N.feed_forward_norms.{input,output,residual}.{weight,bias}` | [hidden]                        |
| `encoder.score_bias.weight`                                 | [num_buckets, heads]                            |
| `encoder.score_bias.layers.N.weight`                        | the same, where each layer has its own          |
| `encoder.final_norm.{weight,bias}`                          | [hidden]                                        |
| `encoder.output_projection.weight`                          | [output width, hidden]; heads are as wide then  |
| `encoder.distances.weight`                                  | [2 * span, hidden], disentangled attention only |
| `encoder.distances.norm.{weight,bias}`                      | [hidden]                                        |
| `encoder.layers.N.attention.position_{key,query}.{weight,bias}` | like `key` and `query`, disentangled only   |
| `encoder.layers.N.convolution.{weight,bias}`                | [hidden, hidden / groups, kernel], and [hidden] |
| `encoder.layers.N.convolution_norm.{weight,bias}`           | [hidden]                                        |
| `decoder....`                                               | the same, and in each layer `cross_attention.*` |
|                                                             | and `cross_attention_norms.*`                   |
| `head.weight`                                               | [vocab, hidden], language model head, untied    |
| `head.bias`                                                 | [vocab], language model and masked head         |
| `head.{dense,norm}.{weight,bias}`                           | masked language model head: dense, then norm    |
| `head.{feed_forward.{up,down},norms.residual,output}.{weight,bias}` | BigBird's span head                     |
| `head.{dense,norm,output}.{weight,bias}`                    | classes of a text (BERT's pooler is `dense`) or |
|                                                             | of a token; dense and norm optional             |

A tied tensor is one parameter and is expected once, under its first name: `encoder.embedding.tokens.weight` where the
stacks share their embeddings, and no `head.weight` where the head is tied; layers that share weights have the names of
the first of them. Sinusoidal positions have no parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.adapters import Adapters
from models.alignment import AligningStep
from models.attention import Attention
from models.attention_plan import KeyBias
from models.batch import DecoderBatch, EncoderBatch, SoundBatch
from models.config import (
    AlibiConfig,
    AttentionConfig,
    BucketBiasConfig,
    ClassificationHead,
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    KeyAlibiConfig,
    ModelConfig,
    QuestionTypesEmbeddingConfig,
    RopeConfig,
    SpanHead,
    StackConfig,
)
from models.convolved_layer import make_layer
from models.disentangled import DistanceTable
from models.embeddings import Embedding, Table
from models.heads import Classification, LanguageModel, MaskedLanguageModel, TokenClassification, make_head
from models.kv_cache import KVCache
from models.layer import Layer
from models.linear import Linear, Packer
from models.norms import make_norm
from models.positions import Alibi, BucketBias, KeyAlibi, LayerBucketBias, Rotary, Rotation
from models.question_types import QuestionTypesEmbedding
from models.recorded import Recorded
from models.sound_embedding import ConvolutionalEmbedding
from models.steps import PackedStep, PagedStep, Step


class Stack(nn.Module):
    """An encoder or a decoder: embedding, layers, final norm, and where there is one a matrix to another width.

    tokens: a token table to share, or None. forward: token_ids, positions, token_type_ids: [tokens], int64
    -> [tokens, hidden or output width], model dtype.
    """

    def __init__(self, config: StackConfig, hidden_size: int, tokens: Table | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = _make_embedding(config.embedding, hidden_size, tokens)
        layers: list[Layer] = []
        for index, layer in enumerate(config.layers):
            owner = config.sharing[index] if config.sharing else index
            layers.append(make_layer(layer, hidden_size, index) if owner == index else layers[owner].again(index))
        self.layers = nn.ModuleList(layers)
        self.final_norm = make_norm(config.final_norm, hidden_size)
        width = config.output_width
        self.output_projection = None if width is None else Linear(hidden_size, width, bias=False)
        self.score_bias: BucketBias | LayerBucketBias | Alibi | KeyAlibi | None = None
        heads = config.layers[0].attention.num_heads
        match config.score_bias:
            case BucketBiasConfig(per_layer=True) as buckets:
                self.score_bias = LayerBucketBias(buckets, heads, len(config.layers))
            case BucketBiasConfig() as buckets:
                self.score_bias = BucketBias(buckets, heads)
            case AlibiConfig() as lines:
                self.score_bias = Alibi(lines)
            case KeyAlibiConfig() as lines:
                self.score_bias = KeyAlibi(lines)
        self.distances = None if config.distances is None else DistanceTable(config.distances, hidden_size)
        ropes = {layer.attention.rope for layer in config.layers}
        self._rotaries = [Rotary(rope) for rope in ropes if rope is not None]
        self._recorded = Recorded(self)
        self.rotates_by_length = any(rotary.config.depends_on_length for rotary in self._rotaries)

    @property
    def tokens(self) -> Table:
        """The token table."""
        assert isinstance(self.embedding, Embedding), "sound has no token table"
        return self.embedding.tokens

    def rotations(
        self, positions: Tensor, length: int, rope_lengths: Tensor | None = None
    ) -> dict[RopeConfig, Rotation]:
        """The angles of a step's positions, all below `length`, for each kind of rotary positions in the stack."""
        return {rotary.config: rotary(positions, length, rope_lengths) for rotary in self._rotaries}

    def bias(self, length: int) -> Tensor | KeyBias | None:
        """The score bias of every distance below `length`, or None: see `BucketBias` and `LayerBucketBias`."""
        if isinstance(self.score_bias, Alibi | KeyAlibi):
            weight = self.tokens.weight
            return self.score_bias(length, weight.dtype, weight.device)
        return None if self.score_bias is None else self.score_bias(length)

    def forward(self, token_ids: Tensor, positions: Tensor, step: Step, token_type_ids: Tensor | None = None) -> Tensor:
        return self._recorded(self.embedding(token_ids, positions, token_type_ids), step)

    def read(self, batch: EncoderBatch | SoundBatch, step: Step) -> Tensor:
        """Texts or recordings, whole, as the embedding takes them: [tokens, hidden], model dtype."""
        return self._recorded(self.embedding.read(batch), step)  # type: ignore[arg-type]

    def layers_of(self, x: Tensor, step: Step) -> Tensor:
        """What all layers make of the embedded tokens: [tokens, hidden] -> [n, hidden or output width], of those that
        the step wants."""
        for layer in self.layers:
            x = layer(x, step)
        x = x if self.final_norm is None else self.final_norm(x)
        return x if self.output_projection is None else self.output_projection(x)


def _make_embedding(
    config: EmbeddingConfig | ConvolutionalEmbeddingConfig, hidden_size: int, tokens: Table | None
) -> Embedding | ConvolutionalEmbedding:
    if isinstance(config, ConvolutionalEmbeddingConfig):
        return ConvolutionalEmbedding(config, hidden_size)
    if isinstance(config, QuestionTypesEmbeddingConfig):
        return QuestionTypesEmbedding(config, hidden_size, tokens)
    return Embedding(config, hidden_size, tokens)


class Transformer(nn.Module):
    """The whole model. Holds weights and no state between calls; keys and values live in the caches it is given.

    Built on torch's meta device and filled by `models.loader`. For inference only.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = None if config.encoder is None else Stack(config.encoder, config.hidden_size)
        shared = self.encoder.tokens if self.encoder is not None and config.shared_embeddings else None
        self.decoder = None if config.decoder is None else Stack(config.decoder, config.hidden_size, shared)
        stack = config.encoder or config.decoder
        assert stack is not None
        token_width = stack.embedding.width or config.hidden_size
        self.head = make_head(config.head, config.output_size, config.vocab_size, token_width)
        self.adapters = Adapters()
        self._attention_dtype: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        """Of queries, keys and values, and so of caches: see `pack_weights`."""
        return self._attention_dtype or self.dtype

    @attention_dtype.setter
    def attention_dtype(self, dtype: torch.dtype) -> None:
        self._attention_dtype = dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(self, batch: EncoderBatch | SoundBatch) -> Tensor:
        """The hidden states of whole inputs, of the encoder or else of the decoder: [tokens, hidden], model dtype; or
        [batch, hidden], where one token of each is wanted."""
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        wanted = batch.wanted if isinstance(batch, EncoderBatch) else None
        step = self._packed_step(stack, batch)
        with self.adapters.used(batch.adapters, batch.lengths):
            hidden = stack.read(batch, step)
        return hidden if wanted is None or step.rows is not None else hidden[wanted]

    def write_cross(
        self,
        encoder_hidden: Tensor,
        slot_mapping: Tensor,
        cross_cache: KVCache,
        sources: EncoderBatch | SoundBatch | None = None,
    ) -> None:
        """Keep the keys and values that each decoder layer's cross-attention will look at.

        encoder_hidden: [source tokens, hidden], model dtype. slot_mapping: [source tokens], int64, slots of the cache.
        sources: what was encoded, for its adapters; None for no adapters.
        """
        names, counts = ((), ()) if sources is None else (sources.adapters, sources.lengths)
        with self.adapters.used(names, counts):
            for index, attention in enumerate(self._cross_attentions()):
                cross_cache.write(index, slot_mapping, *attention.keys_values(encoder_hidden, {}))

    def decode(self, batch: DecoderBatch, cache: KVCache, cross_cache: KVCache | None = None) -> Tensor:
        """The decoder's hidden states of the batch's tokens, or of those that are wanted: [n, hidden], model dtype.

        Writes their keys and values to the cache; `cross_cache` is read only, and None without an encoder.
        """
        assert self.decoder is not None, "the model has no decoder"
        length = max(batch.key_lens)
        rotations, bias = self.decoder.rotations(batch.positions, length, batch.rope_lengths), self.decoder.bias(length)
        step = PagedStep(batch, cache, cross_cache, rotations, bias)
        with self.adapters.used(batch.adapters, batch.query_lens):
            hidden: Tensor = self.decoder(batch.token_ids, batch.positions, step)
        return hidden if batch.wanted is None or step.rows is not None else hidden[batch.wanted]

    def align(self, source: EncoderBatch, target: EncoderBatch) -> Tensor:
        """What each token of a text looks at in its source, in the last layer: [tokens, source tokens], float32.

        source, target: one text each; the target with what the decoder starts from, and without its last token, which
        has looked at nothing yet.
        """
        assert self.decoder is not None, "the model has no decoder"
        (length,) = target.lengths
        rotations, bias = self.decoder.rotations(target.positions, length), self.decoder.bias(length)
        step = AligningStep(length, self.encode(source), rotations, bias)
        # One text, so that all rows are of its adapter, those of the source as well.
        with self.adapters.used(target.adapters, target.lengths):
            self.decoder(target.token_ids, target.positions, step)
        return step.weights

    def logits(self, hidden: Tensor, adapters: Sequence[str] = (), out: Tensor | None = None) -> Tensor:
        """Scores over the vocabulary: [n, hidden], model dtype -> [n, vocab], float32.

        adapters: the name of each row's, for a head over masked words; no names for no adapters. out: [n or more,
        vocab], float32: memory whose first rows they are written to; None for memory of their own.
        """
        assert isinstance(self.head, LanguageModel | MaskedLanguageModel), "the model has no language model head"
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        with self.adapters.used(adapters, [1] * len(adapters)):
            return self.head(hidden, stack.tokens.weight, out)  # type: ignore[no-any-return]

    def places_of_classes(self, batch: EncoderBatch) -> list[int] | None:
        """The one token of each text that `classify` reads; None if it reads more."""
        assert isinstance(self.head, Classification), "the model has no classification head"
        return None if self.config.is_encoder_decoder else self.head.places(batch)

    def classify(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        """Class logits from what `encode` gives: [n, hidden], model dtype -> [batch, num_labels], float32.

        With an encoder and a decoder (BART) the text goes through the decoder, one place to the right behind its start
        token.
        """
        assert isinstance(self.head, Classification), "the model has no classification head"
        if self.config.is_encoder_decoder:
            with self.adapters.used(batch.adapters, batch.lengths):
                hidden = self._reread(hidden, batch)
        with self.adapters.used(batch.adapters, [1] * len(batch.lengths)):
            return self.head(hidden, batch)  # type: ignore[no-any-return]

    def classify_tokens(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        """Logits of each token: [tokens, hidden], model dtype -> [tokens, num_labels], float32; two to mark a span.

        With an encoder and a decoder the text goes through the decoder as in `classify`.
        """
        assert isinstance(self.head, TokenClassification), "the model has no head for tokens"
        with self.adapters.used(batch.adapters, batch.lengths):
            if self.config.is_encoder_decoder:
                hidden = self._reread(hidden, batch)
            return self.head(hidden)  # type: ignore[no-any-return]

    def pack_head(self, packer: Packer) -> None:
        """Put the weight of a language model head into its fastest layout. A table that it is tied to is read from
        there."""
        if isinstance(self.head, LanguageModel) and self.decoder is not None:
            tied = self.decoder.tokens if self.head.weight is None else None
            packed = self.head.pack(packer, None if tied is None else tied.weight)
            if tied is not None:
                tied.share(packed)

    def self_attention_layers(self) -> tuple[AttentionConfig, ...]:
        """What the decoder's self-attention cache has to hold, layer by layer; empty without a decoder."""
        return () if self.config.decoder is None else tuple(layer.attention for layer in self.config.decoder.layers)

    def cross_attention_layers(self) -> tuple[AttentionConfig, ...]:
        """What the cross-attention cache has to hold, layer by layer; empty where nothing attends to an encoder."""
        return tuple(attention.config for attention in self._cross_attentions())

    def _cross_attentions(self) -> list[Attention]:
        modules = [] if self.decoder is None else self.decoder.modules()
        layers = [module for module in modules if isinstance(module, Layer)]
        return [layer.cross_attention for layer in layers if layer.cross_attention is not None]

    def _packed_step(self, stack: Stack, batch: EncoderBatch | SoundBatch, source: Tensor | None = None) -> PackedStep:
        texts = batch if isinstance(batch, EncoderBatch) else None
        rope_lengths = texts.rope_lengths if stack.rotates_by_length and texts is not None else None
        length = max(batch.lengths)
        rotations, bias = stack.rotations(batch.positions, length, rope_lengths), stack.bias(length)
        distances = None if stack.distances is None else stack.distances(length)
        last = stack.layers[-1]
        # Adapters, convolutions, sparse and disentangled attention work on whole texts.
        parts = type(last) is Layer and type(last.attention) is Attention and not batch.adapters
        chosen = texts if parts else None
        step = PackedStep(
            batch.lengths,
            self.dtype,
            self.device,
            rotations,
            bias,
            source,
            batch.lengths,
            distances,
            None if texts is None else texts.token_ids,
            None if chosen is None else chosen.wanted,
            None if chosen is None else chosen.places,
            len(stack.layers) - 1,
        )
        step.recorded_as = None if batch.adapters else "packed"
        return step

    def _reread(self, source: Tensor, batch: EncoderBatch) -> Tensor:
        assert self.decoder is not None and isinstance(self.config.head, ClassificationHead | SpanHead)
        starts = torch.tensor(batch.offsets[:-1], device=batch.token_ids.device)
        token_ids, start = batch.token_ids.roll(1), self.config.head.start_token_id
        if start is None:
            ends = torch.tensor(batch.offsets[1:], device=batch.token_ids.device) - 1
            token_ids = token_ids.index_copy(0, starts, batch.token_ids[ends])
        else:
            token_ids = token_ids.index_fill(0, starts, start)
        step = self._packed_step(self.decoder, batch, source)
        return self.decoder(token_ids, batch.positions, step)  # type: ignore[no-any-return]
