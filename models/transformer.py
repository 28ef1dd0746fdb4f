"""One transformer for all three families: an encoder stack, a decoder stack, or both, and a head.

`docs/parameter-names.md` lists the names and shapes of its parameters, the targets of a family's weight rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.backends import choice
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import make_runner
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes, why_not_captured
from models.backends.linear_weights import LinearPacker
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.config import AttentionConfig, ClassificationHead, MixerConfig, ModelConfig, SpanHead
from models.executor import Executor, max_logits_rows
from models.layers.attention import Attention
from models.layers.audio_embedding import ConvolutionalEmbedding
from models.layers.embeddings import Embedding
from models.layers.heads import Classification, LanguageModel, MaskedLanguageModel, TokenClassification, make_head
from models.layers.layer import Layer
from models.lora.adapters import AdapterSet
from models.stack import Stack
from models.steps.alignment import AlignmentStepInputs, CachedAlignmentStepInputs, WeightsComplete
from models.steps.batch import DecoderBatch, EncoderBatch, SourceBatch, WaveformBatch
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from models.steps.step_inputs.base import PagedStepInputs, StepInputs, TapShape
from models.steps.step_inputs.ragged import RaggedStepInputs, SourceStates

if TYPE_CHECKING:
    from models.backends.cuda.graphs.encoder_graphs import EncoderGraphs
    from models.backends.cuda.graphs.graph_runner import GraphRunner
    from models.backends.cuda.graphs.graph_steps import GraphDecoder
    from models.backends.cuda.graphs.mixed_graphs import MixedGraphs
    from models.backends.cuda.graphs.recording_graphs import RecordingGraphs
    from models.backends.cuda.graphs.step_graphs import StepGraphs


class Transformer(nn.Module):
    """A whole model: its stacks of layers and its head. The caller provides the caches for keys and values.

    Built on torch's meta device and filled by `models.checkpoint.loader`. For inference only.

    attention_dtype: dtype of queries, keys and values; set by `WeightPacker`.
    """

    attention_dtype: torch.dtype

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source_size = config.source_size or config.hidden_size
        self.encoder = None if config.encoder is None else Stack(config.encoder, source_size)
        shared = self.encoder.tokens if self.encoder is not None and config.shared_embeddings else None
        self.decoder = None if config.decoder is None else Stack(config.decoder, config.hidden_size, shared)
        stack = config.encoder or config.decoder
        assert stack is not None
        token_width = stack.embedding.width or stack.embedding.token_width or config.hidden_size
        self.head = make_head(config.head, config.output_size, config.vocab_size, token_width)
        self.adapters = AdapterSet()
        self._executors = {
            stack: Executor(stack, config.vocab_size, self.logits_into)
            for stack in (self.encoder, self.decoder)
            if stack is not None
        }

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(self, batch: SourceBatch) -> Tensor:
        """Compute the hidden states of whole inputs with the encoder, or with the decoder if the model has no encoder.

        Returns [tokens, hidden], model dtype; or [batch, hidden] if the batch has `output_positions`.
        """
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        with self.adapters.used(batch.adapters, batch.lengths):
            return self._executors[stack].run_hidden(*self.layer_inputs(batch))

    def layer_inputs(self, batch: SourceBatch) -> tuple[Tensor, StepInputs]:
        """Compute the input of the encoder's first layer, [tokens, hidden], and the step inputs of all its layers.

        Uses the decoder in place of the encoder if the model has no encoder. batch: whole texts or recordings.
        """
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        hidden = stack.embedding.embed(batch)  # type: ignore[arg-type]
        step = self._ragged_step(stack, batch)
        if stack.final_positions is not None:
            step.final_positions = stack.final_positions(batch.positions)
        if isinstance(batch, EncoderBatch):
            stack.set_layer_inputs(step, batch.token_ids, hidden)
        return hidden, step

    def write_cross(
        self,
        encoder_hidden: Tensor,
        slot_mapping: Tensor,
        cross_cache: KVCache,
        sources: SourceBatch | None = None,
    ) -> None:
        """Compute the keys and values of the encoder output for each decoder layer, and store them in a cache.

        encoder_hidden: [source tokens, source size], model dtype.
        slot_mapping: [source tokens], int64, cache slot of each source token.
        cross_cache: cache for cross-attention, written.
        sources: the batch that was encoded, which names the adapters; None for no adapters.
        """
        names, counts = ((), ()) if sources is None else (sources.adapters, sources.lengths)
        with self.adapters.used(names, counts):
            for index, attention in enumerate(self._cross_attentions()):
                cross_cache.write(index, slot_mapping, *attention.source_keys_values(encoder_hidden))

    def decode(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None = None,
        logits: LogitsRequest | None = None,
        state_memory: StateMemory | None = None,
    ) -> DecoderOutput:
        """Run one decoder step and store the keys and values of its tokens.

        cache: self-attention cache, written. cross_cache: read only; None without an encoder.
        logits: request for logits of the output rows, of which there are at most `max_logits_rows`; None for hidden
            states only.
        state_memory: states of the mixers, updated; None for a model without mixers.
        """
        assert self.decoder is not None, "the model has no decoder"
        encodings = self.decoder.encodings(batch.positions, max(batch.key_lens), batch.rope_lengths)
        taps = self.decoder.taps
        shape = TapShape(len(taps), self.decoder.hidden_size, self.dtype) if taps else None
        step = PagedStepInputs(batch, cache, cross_cache, encodings, self.decoder.config, state_memory, shape)
        with self.adapters.used(batch.adapters, batch.query_lens) if batch.adapters else nullcontext():
            output = self._executors[self.decoder].run_tokens(batch.token_ids, batch.positions, step, logits)
        return output._replace(draft_states=step.tapped()) if taps else output

    def logits_top_k(self, hidden: Tensor, request: LogitsRequest) -> tuple[Tensor, LogitsTopK]:
        """Compute logits and their top k from hidden states of `decode`. hidden: [n, hidden].

        The next call overwrites the logits, unless there are more than `max_logits_rows` rows, which are in new memory.
        """
        assert self.decoder is not None, "the model has no decoder"
        return self._executors[self.decoder].logits(hidden, request)

    def align(self, source: SourceStates, target: EncoderBatch) -> list[Tensor]:
        """Compute the cross-attention weights of the last layer, averaged over its heads.

        source, target: encoder output and target of equally many texts, in the same order; all use the same adapter. A
            target begins with the decoder start token and ends before the last token of the text, which no decoder
            step has read.
        Returns [tokens, source tokens], float32, for each text.
        """
        assert self.decoder is not None, "the model has no decoder"
        encodings = self.decoder.encodings(target.positions, max(target.lengths))
        step = AlignmentStepInputs(target, encodings, len(self.decoder.layers), self.dtype, source)
        # All rows of targets and sources use one adapter.
        with self.adapters.used(target.adapters, target.lengths), suppress(WeightsComplete):
            self._executors[self.decoder].run_tokens(target.token_ids, target.positions, step)
        return step.weights

    def align_cached(
        self, target: EncoderBatch, cross_cache: KVCache, slots: Tensor, heads: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Compute the cross-attention weights of some heads for a source in the cache.

        target: one text, which begins with the decoder start token and ends before the last token of the text.
        slots: [source tokens], int64, slots of the source in the cache.
        heads: (layer, head) of each head, at least one.
        Returns [heads, tokens, source tokens], float32.
        """
        assert self.decoder is not None, "the model has no decoder"
        encodings = self.decoder.encodings(target.positions, max(target.lengths))
        step = CachedAlignmentStepInputs(
            target, encodings, len(self.decoder.layers), self.dtype, cross_cache, slots, heads
        )
        with self.adapters.used(target.adapters, target.lengths), suppress(WeightsComplete):
            self._executors[self.decoder].run_tokens(target.token_ids, target.positions, step)
        return torch.stack([step.weights[layer, head] for layer, head in heads])

    @property
    def keys_depend_on_length(self) -> bool:
        """Whether the keys of a prefix depend on the length of the whole prompt, through its rotary positions."""
        return self.config.keys_depend_on_length

    @property
    def vocab_size(self) -> int:
        """Number of logits of a language model head."""
        return self.config.vocab_size

    @property
    def max_logits_rows(self) -> int:
        """Largest number of output rows for which `decode` computes logits."""
        return max_logits_rows(self.device)

    @property
    def eager_parts(self) -> tuple[str, ...]:
        """Parts of the model that ran eagerly although the device has compiled programs, and reasons, for operators."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        found = {name: self._executors[stack].eager_part for name, stack in stacks.items() if stack is not None}
        return tuple(f"{eager[0]} of the {name} ({eager[1]})" for name, eager in found.items() if eager is not None)

    @property
    def execution(self) -> str:
        """How the steps ran so far, as a text for operators: `program`, or `eager: REASON`."""
        if self.eager_parts:
            return f"eager: {'; '.join(self.eager_parts)}"
        if any(executor.has_programs for executor in self._executors.values()):
            return "program"
        return f"eager: {choice.why_no_kernels(self.dtype, self.device) or 'no step could run as a program'}"

    def why_not_captured(self) -> str | None:
        """Why decoder steps cannot be captured as CUDA graphs; None if they can."""
        if self.decoder is None:
            return "the model has no decoder"
        if not choice.runs_cuda_kernels(self.device):
            return "the device has no Triton kernels"
        return why_not_captured(self.decoder)

    def capture_steps(
        self,
        cache: KVCache,
        cross_cache: KVCache | None,
        sizes: GraphSizes,
        runner: GraphRunner | None = None,
        time: CaptureTime | None = None,
    ) -> StepGraphs | None:
        """Capture decode steps as CUDA graphs.

        Returns None if the device has no graphs, or if the model cannot be captured.

        cache, cross_cache: self-attention and cross-attention cache; the graphs can run only with these caches.
        sizes: limits of the steps.
        runner: captures and replays the graphs; None for the runner of the device.
        time: limits how many graphs are captured; None for the default limit.
        """
        if self.decoder is None or self.why_not_captured() is not None:
            return None
        # The import needs triton, which devices without graphs do not have.
        from models.backends.cuda.graphs.step_graphs import StepGraphs

        decoder = self._graph_decoder(self.decoder, cache, cross_cache, sizes)
        return StepGraphs(decoder, runner or make_runner(self.device), time or CaptureTime())

    def capture_mixed_steps(
        self, cache: KVCache, cross_cache: KVCache | None, sizes: GraphSizes, runner: GraphRunner, time: CaptureTime
    ) -> MixedGraphs | None:
        """Capture decoder steps with prefill or drafts as CUDA graphs.

        Returns None if the model cannot be captured, or if `sizes.tokens` is 0.

        cache, cross_cache: self-attention and cross-attention cache; the graphs can run only with these caches.
        sizes: limits of the steps.
        runner: captures and replays the graphs. time: limits how many graphs are captured.
        """
        if self.decoder is None or self.why_not_captured() is not None or not sizes.tokens:
            return None
        from models.backends.cuda.graphs.mixed_graphs import MixedGraphs

        return MixedGraphs(self._graph_decoder(self.decoder, cache, cross_cache, sizes), runner, time)

    def _graph_decoder(
        self, decoder: Stack, cache: KVCache, cross_cache: KVCache | None, sizes: GraphSizes
    ) -> GraphDecoder:
        from models.backends.cuda.graphs.graph_steps import GraphDecoder

        memory = self._executors[decoder].logits_memory(self.device)
        return GraphDecoder(decoder, self.logits_into, memory, cache, cross_cache, sizes)

    def why_encoder_not_captured(self) -> str | None:
        """Why encoder steps cannot be captured as CUDA graphs; None if they can."""
        stack = self.decoder if self.encoder is None else self.encoder
        assert stack is not None
        if not choice.runs_cuda_kernels(self.device):
            return "the device has no Triton kernels"
        if not isinstance(stack.embedding, Embedding | ConvolutionalEmbedding):
            return "recordings of any length"
        return why_not_captured(stack)

    def capture_encoder(
        self, cross_cache: KVCache | None, sizes: EncoderSizes, runner: GraphRunner, time: CaptureTime
    ) -> EncoderGraphs | RecordingGraphs | None:
        """Capture encoder steps as CUDA graphs. With a cross-attention cache, they can also store its keys.

        Returns None if the device has no graphs, or if the model cannot be captured.

        cross_cache: the graphs can run only with this cache; None to store no keys.
        sizes: limits of the steps.
        runner: captures and replays the graphs. time: limits how many graphs are captured.
        """
        stack = self.decoder if self.encoder is None else self.encoder
        if stack is None or self.why_encoder_not_captured() is not None:
            return None
        from models.backends.cuda.graphs.encoder_graphs import EncoderGraphs
        from models.backends.cuda.graphs.recording_graphs import RecordingGraphs

        def store_keys(hidden: Tensor, slots: Tensor) -> None:
            if cross_cache is not None:
                self.write_cross(hidden, slots, cross_cache)

        if isinstance(stack.embedding, ConvolutionalEmbedding):
            num_mels = stack.embedding.num_mels
            return RecordingGraphs(stack, store_keys, self.dtype, self.device, sizes, num_mels, runner, time)
        return EncoderGraphs(stack, store_keys, self.dtype, self.device, sizes, runner, time)

    def logits(self, hidden: Tensor, adapters: Sequence[str] = ()) -> Tensor:
        """Compute logits over the vocabulary in new memory: [n, hidden], model dtype -> [n, vocab], float32.

        adapters: name of each row's adapter, for a masked language model head; empty if no row has an adapter.
        """
        with self.adapters.used(adapters, [1] * len(adapters)):
            return self.logits_into(hidden, None)

    def logits_into(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """Compute logits of hidden states: [n, hidden] -> [n, vocab], float32.

        out: [n or more, vocab], float32, memory for the logits; None for new memory.
        """
        assert isinstance(self.head, LanguageModel | MaskedLanguageModel), "the model has no language model head"
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return self.head(hidden, stack.tokens.weight, out)  # type: ignore[no-any-return]

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """Position of the token by which `classify` classifies each text; None if it uses several tokens."""
        assert isinstance(self.head, Classification), "the model has no classification head"
        return None if self.config.is_encoder_decoder else self.head.output_positions(batch)

    def classify(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        """Compute class logits from the output of `encode`: [n, hidden], model dtype -> [batch, num_labels], float32.

        In a model with encoder and decoder (BART), the decoder also reads the text, shifted right by one start token.
        """
        assert isinstance(self.head, Classification), "the model has no classification head"
        if self.config.is_encoder_decoder:
            with self.adapters.used(batch.adapters, batch.lengths):
                hidden = self._reread(hidden, batch)
        counts = batch.lengths if self.head.averages_logits else [1] * len(batch.lengths)
        with self.adapters.used(batch.adapters, counts):
            return self.head(hidden, batch)  # type: ignore[no-any-return]

    def classify_tokens(self, hidden: Tensor, batch: EncoderBatch | WaveformBatch) -> Tensor:
        """Compute the logits of each token: [tokens, hidden], model dtype -> [tokens, num_labels], float32.

        A span head has two labels, start and end; a CTC head has the entries of the vocabulary. In a model with encoder
        and decoder, the decoder also reads the text, as in `classify`.
        """
        assert isinstance(self.head, TokenClassification), "the model has no head for tokens"
        with self.adapters.used(batch.adapters, batch.lengths):
            if self.config.is_encoder_decoder:
                assert isinstance(batch, EncoderBatch)
                hidden = self._reread(hidden, batch)
            return self.head(hidden)  # type: ignore[no-any-return]

    def pack_head(self, packer: LinearPacker, table_packer: LinearPacker) -> None:
        """Pack the weight of a language model head.

        A token table that is tied to the head then reads rows of the packed weight.

        packer: packs the head.
        table_packer: packs other token tables that the checkpoint stores quantised.
        """
        dtype = self.dtype
        if isinstance(self.head, LanguageModel):
            stack = self.encoder if self.decoder is None else self.decoder
            assert stack is not None
            tied = stack.tokens if self.head.weight is None else None
            packed = self.head.pack(packer, None if tied is None else tied.weight)
            if tied is not None:
                tied.share(packed, dtype)
        for stack in (self.encoder, self.decoder):
            if stack is None or not isinstance(stack.embedding, Embedding):
                continue
            for table in (stack.tokens, None if stack.per_layer is None else stack.per_layer.tokens):
                if table is not None and table.matrix is not None:
                    table.share(table_packer(table.matrix, None), dtype)

    def self_attention_layers(self) -> tuple[AttentionConfig, ...]:
        """Self-attention of each layer that has one, for the self-attention cache; empty without a decoder."""
        layers = () if self.config.decoder is None else self.config.decoder.layers
        return tuple(layer.attention for layer in layers if layer.attention is not None)

    def mixers(self) -> Mapping[int, MixerConfig]:
        """Mixers of the decoder by the index of their layer; empty without mixers."""
        return {} if self.config.decoder is None else self.config.decoder.mixers

    def cross_attention_layers(self) -> tuple[AttentionConfig, ...]:
        """Cross-attention of each decoder layer that has one, for the cross-attention cache.

        May be empty.
        """
        return tuple(attention.config for attention in self._cross_attentions())

    def _cross_attentions(self) -> list[Attention]:
        modules = [] if self.decoder is None else self.decoder.modules()
        layers = [module for module in modules if isinstance(module, Layer)]
        return [layer.source_attention for layer in layers if layer.source_attention is not None]

    def _ragged_step(self, stack: Stack, batch: SourceBatch, source: SourceStates | None = None) -> RaggedStepInputs:
        rope_lengths = batch.rope_lengths if stack.rotates_by_length and isinstance(batch, EncoderBatch) else None
        encodings = stack.encodings(batch.positions, max(batch.lengths), rope_lengths)
        layers, all_rows = stack.config.key_value_layers, stack.config.needs_all_rows
        return RaggedStepInputs(batch, encodings, len(stack.layers), self.dtype, source, layers, all_rows)

    def _reread(self, source: Tensor, batch: EncoderBatch) -> Tensor:
        """Run the decoder on the encoded text itself, shifted right by a start token.

        source: [tokens, hidden], encoder output. Returns [tokens, hidden].
        """
        assert self.decoder is not None and isinstance(self.config.head, ClassificationHead | SpanHead)
        starts = torch.tensor(batch.offsets[:-1], device=batch.token_ids.device)
        token_ids, start = batch.token_ids.roll(1), self.config.head.start_token_id
        if start is None:
            ends = torch.tensor(batch.offsets[1:], device=batch.token_ids.device) - 1
            token_ids = token_ids.index_copy(0, starts, batch.token_ids[ends])
        else:
            token_ids = token_ids.index_fill(0, starts, start)
        step = self._ragged_step(self.decoder, batch, SourceStates(source, batch.lengths))
        return self._executors[self.decoder].run_tokens(token_ids, batch.positions, step).hidden
