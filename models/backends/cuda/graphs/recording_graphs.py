"""Steps of an encoder for recordings of equal length as CUDA graphs, one for each number of recordings up to eight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs.captures import CaptureTime, capture_sizes
from models.backends.cuda.graphs.device_numbers import DeviceNumbers
from models.backends.cuda.graphs.encoder_graphs import StoreKeys
from models.backends.cuda.graphs.graph_runner import GraphRunner
from models.backends.cuda.graphs.graph_sizes import EncoderSizes
from models.backends.cuda.graphs.graph_steps import GraphPositions, GraphTextInputs
from models.stack import Stack
from models.steps.batch import AudioBatch, SourceBatch

MAX_RECORDINGS = 8
"""Largest number of recordings of a captured step. Steps of more recordings take long enough to run eagerly."""


class RecordingGraphs:
    """The captured steps of an encoder of recordings, all of `limits.frames` log-mel frames.

    store_keys: stores the cross-attention keys of an encoder-decoder, and does nothing for other models.
    dtype: dtype of the hidden states. device: device of the model. num_mels: values of a frame.
    limits: limits of the steps. time: limits how many graphs are captured.
    sizes: numbers of tokens for which a step is captured, ascending.
    """

    def __init__(
        self,
        stack: Stack,
        store_keys: StoreKeys,
        dtype: torch.dtype,
        device: torch.device,
        limits: EncoderSizes,
        num_mels: int,
        runner: GraphRunner,
        time: CaptureTime,
    ) -> None:
        self._stack, self._store_keys, self._dtype, self._limits = stack, store_keys, dtype, limits
        most = min(max(limits.tokens // limits.text_tokens, 1), MAX_RECORDINGS)
        self._numbers = DeviceNumbers(runner, device, most * limits.text_tokens)
        self._frames = torch.zeros(most * limits.frames, num_mels, device=device)
        self._positions = GraphPositions(stack, limits.text_tokens)
        self._hidden: Tensor | None = None
        self._graphs = capture_sizes(runner, range(1, most + 1), self._step_of, time)
        self.sizes = tuple(count * limits.text_tokens for count in self._graphs)

    def takes(self, batch: SourceBatch) -> bool:
        """Whether a captured graph can run a step."""
        return (
            isinstance(batch, AudioBatch)
            and not batch.adapters
            and set(batch.frame_lengths) == {self._limits.frames}
            and len(batch.frame_lengths) in self._graphs
        )

    def run(self, batch: SourceBatch, slots: Sequence[int] | None = None) -> Tensor:
        """Replay a step.

        batch: recordings, on the device of the model; `takes` accepts them.
        slots: cache slots of the tokens, for their cross-attention keys; None to store none.
        Returns the hidden states, [tokens, hidden], in memory that the next step overwrites.
        """
        assert isinstance(batch, AudioBatch), "`takes` accepts recordings only"
        recordings = len(batch.frame_lengths)
        tokens = recordings * self._limits.text_tokens
        numbers = self._numbers.to_write()
        numbers[:tokens] = -1 if slots is None else slots
        self._numbers.send(tokens)
        self._frames[: len(batch.frames)].copy_(batch.frames)
        replay, hidden = self._graphs[recordings]
        replay()
        return hidden

    def _step_of(self, recordings: int) -> Callable[[], Tensor]:
        """A function that runs one step, for the capture of a graph. recordings: number of recordings."""
        limits, stack = self._limits, self._stack
        tokens = recordings * limits.text_tokens
        slots = self._numbers.copied[:tokens].fill_(-1)
        batch = AudioBatch(self._frames[: recordings * limits.frames], (limits.frames,) * recordings)
        assert batch.lengths == (limits.text_tokens,) * recordings, "two frames become one token"
        metadata = AttentionMetadata(batch.lengths, batch.lengths)
        view = CudaAttentionView(metadata, slots.device)
        encodings = self._positions.before_capture(batch.positions)

        def run() -> Tensor:
            positions = self._positions.in_capture(encodings, batch.positions)
            step = GraphTextInputs(batch, positions, stack, self._dtype, view)
            hidden = stack.run_layers(stack.embedding.embed(batch), step)  # type: ignore[arg-type]
            self._store_keys(hidden, slots)
            if self._hidden is None:
                self._hidden = torch.empty_like(hidden)
            return self._hidden[:tokens].copy_(hidden)

        return run
