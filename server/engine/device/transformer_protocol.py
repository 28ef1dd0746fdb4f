"""The protocol of a transformer: the methods and attributes that the engine uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.config import AttentionConfig
from models.steps.batch import DecoderBatch, EncoderBatch, SourceBatch, WaveformBatch
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from models.steps.step_inputs.ragged import SourceStates

if TYPE_CHECKING:
    from models.backends.cuda.graphs.encoder_graphs import EncoderGraphs
    from models.backends.cuda.graphs.graph_runner import GraphRunner
    from models.backends.cuda.graphs.mixed_graphs import MixedGraphs
    from models.backends.cuda.graphs.recording_graphs import RecordingGraphs
    from models.backends.cuda.graphs.step_graphs import StepGraphs


class TransformerProtocol(Protocol):
    """The methods of `models.transformer.Transformer` that the engine calls."""

    def encode(self, batch: SourceBatch) -> Tensor: ...

    def write_cross(
        self,
        encoder_hidden: Tensor,
        slot_mapping: Tensor,
        cross_cache: KVCache,
        sources: SourceBatch | None = None,
    ) -> None: ...

    def decode(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None = None,
        logits: LogitsRequest | None = None,
        state_memory: StateMemory | None = None,
    ) -> DecoderOutput: ...

    @property
    def max_logits_rows(self) -> int: ...

    def why_not_captured(self) -> str | None: ...

    def capture_steps(
        self,
        cache: KVCache,
        cross_cache: KVCache | None,
        sizes: GraphSizes,
        runner: GraphRunner | None = None,
        time: CaptureTime | None = None,
    ) -> StepGraphs | None: ...

    def capture_mixed_steps(
        self, cache: KVCache, cross_cache: KVCache | None, sizes: GraphSizes, runner: GraphRunner, time: CaptureTime
    ) -> MixedGraphs | None: ...

    def why_encoder_not_captured(self) -> str | None: ...

    def capture_encoder(
        self, cross_cache: KVCache | None, sizes: EncoderSizes, runner: GraphRunner, time: CaptureTime
    ) -> EncoderGraphs | RecordingGraphs | None: ...

    def logits_top_k(self, hidden: Tensor, request: LogitsRequest) -> tuple[Tensor, LogitsTopK]: ...

    @property
    def keys_depend_on_length(self) -> bool: ...

    def logits(self, hidden: Tensor, adapters: Sequence[str] = ()) -> Tensor: ...

    def align(self, source: SourceStates, target: EncoderBatch) -> list[Tensor]: ...

    def align_cached(
        self, target: EncoderBatch, cross_cache: KVCache, slots: Tensor, heads: Sequence[tuple[int, int]]
    ) -> Tensor: ...

    def cross_attention_layers(self) -> tuple[AttentionConfig, ...]: ...

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None: ...

    def classify(self, hidden: Tensor, batch: EncoderBatch) -> Tensor: ...

    def classify_tokens(self, hidden: Tensor, batch: EncoderBatch | WaveformBatch) -> Tensor: ...
