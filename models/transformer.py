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

from models.alignment import AligningStep
from models.batch import AudioBatch, DecoderBatch, EncoderBatch
from models.config import AttentionConfig, ClassificationHead, ModelConfig, SpanHead
from models.kv_cache import KVCache
from models.layers.attention import Attention
from models.layers.heads import Classification, LanguageModel, MaskedLanguageModel, TokenClassification, make_head
from models.layers.layer import Layer
from models.layers.linear import Packer
from models.lora.adapters import AdapterSet
from models.scoring import Scoring
from models.stack import Stack
from models.step_inputs import PackedStep, PagedStep, Source


class Transformer(nn.Module):
    """The whole model. Holds weights and no state between calls; keys and values live in the caches it is given.

    Built on torch's meta device and filled by `models.loader`. For inference only.

    attention_dtype: of queries, keys and values, and so of caches; `pack_weights` settles it.
    """

    attention_dtype: torch.dtype

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
        self.adapters = AdapterSet()

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(self, batch: EncoderBatch | AudioBatch) -> Tensor:
        """The hidden states of whole inputs, of the encoder or else of the decoder: [tokens, hidden], model dtype; or
        [batch, hidden], where one token of each is wanted."""
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        with self.adapters.used(batch.adapters, batch.lengths):
            return stack.read(batch, self._packed_step(stack, batch))

    def write_cross(
        self,
        encoder_hidden: Tensor,
        slot_mapping: Tensor,
        cross_cache: KVCache,
        sources: EncoderBatch | AudioBatch | None = None,
    ) -> None:
        """Keep the keys and values that each decoder layer's cross-attention will look at.

        encoder_hidden: [source tokens, hidden], model dtype. slot_mapping: [source tokens], int64, slots of the cache.
        sources: what was encoded, for its adapters; None for no adapters.
        """
        names, counts = ((), ()) if sources is None else (sources.adapters, sources.lengths)
        with self.adapters.used(names, counts):
            for index, attention in enumerate(self._cross_attentions()):
                cross_cache.write(index, slot_mapping, *attention.keys_values(encoder_hidden, {}))

    def decode(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None = None,
        scoring: Scoring | None = None,
    ) -> Tensor:
        """The decoder's hidden states of the batch's tokens, or of those that are wanted: [n, hidden], model dtype.

        Writes their keys and values to the cache; `cross_cache` is read only, and None without an encoder. scoring: to
        be done with these tokens as well, its head this model's `logits`.
        """
        assert self.decoder is not None, "the model has no decoder"
        encodings = self.decoder.encodings(batch.positions, max(batch.key_lens), batch.rope_lengths)
        step = PagedStep(batch, cache, cross_cache, encodings)
        with self.adapters.used(batch.adapters, batch.query_lens):
            return self.decoder(batch.token_ids, batch.positions, step, scoring)  # type: ignore[no-any-return]

    def align(self, source: EncoderBatch, target: EncoderBatch) -> Tensor:
        """What each token of a text looks at in its source, in the last layer: [tokens, source tokens], float32.

        source, target: one text each; the target with what the decoder starts from, and without its last token, which
        has looked at nothing yet.
        """
        assert self.decoder is not None, "the model has no decoder"
        encodings = self.decoder.encodings(target.positions, max(target.lengths))
        looked_at = Source(self.encode(source), source.lengths)
        step = AligningStep(target, encodings, len(self.decoder.layers), self.dtype, looked_at)
        # One text, so that all rows are of its adapter, those of the source as well.
        with self.adapters.used(target.adapters, target.lengths):
            self.decoder(target.token_ids, target.positions, step)
        return step.weights

    @property
    def keys_depend_on_length(self) -> bool:
        """See `ModelConfig.keys_depend_on_length`."""
        return self.config.keys_depend_on_length

    @property
    def num_logits(self) -> int:
        """Of each token, where there is a language model head."""
        return self.config.vocab_size

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

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """Of the one token of each text that `classify` reads; None if it reads more."""
        assert isinstance(self.head, Classification), "the model has no classification head"
        return None if self.config.is_encoder_decoder else self.head.output_positions(batch)

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

    def _packed_step(self, stack: Stack, batch: EncoderBatch | AudioBatch, source: Source | None = None) -> PackedStep:
        rope_lengths = batch.rope_lengths if stack.rotates_by_length and isinstance(batch, EncoderBatch) else None
        encodings = stack.encodings(batch.positions, max(batch.lengths), rope_lengths)
        return PackedStep(batch, encodings, len(stack.layers), self.dtype, source)

    def _reread(self, source: Tensor, batch: EncoderBatch) -> Tensor:
        assert self.decoder is not None and isinstance(self.config.head, ClassificationHead | SpanHead)
        starts = torch.tensor(batch.offsets[:-1], device=batch.token_ids.device)
        token_ids, start = batch.token_ids.roll(1), self.config.head.start_token_id
        if start is None:
            ends = torch.tensor(batch.offsets[1:], device=batch.token_ids.device) - 1
            token_ids = token_ids.index_copy(0, starts, batch.token_ids[ends])
        else:
            token_ids = token_ids.index_fill(0, starts, start)
        step = self._packed_step(self.decoder, batch, Source(source, batch.lengths))
        return self.decoder(token_ids, batch.positions, step)  # type: ignore[no-any-return]
