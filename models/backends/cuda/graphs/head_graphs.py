"""The passes of a draft head as CUDA graphs.

A pass in which each text has one position is computed like a decode step, and any other pass like a step with prefill.
The hidden states that the head reads are copied to memory of the graphs first.
"""

from __future__ import annotations

from torch import Tensor

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import GraphRunner
from models.backends.cuda.graphs.graph_steps import GraphDecoder
from models.backends.cuda.graphs.mixed_graphs import MixedGraphs
from models.backends.cuda.graphs.step_graphs import StepGraphs
from models.backends.logits import DecoderOutput, LogitsRequest
from models.steps.batch import DecoderBatch


class HeadGraphs:
    """The captured passes of a draft head.

    head: the head as a decoder, with memory for the hidden states of the largest pass.
    time: limits how many graphs are captured.
    """

    def __init__(self, head: GraphDecoder, runner: GraphRunner, time: CaptureTime) -> None:
        assert head.read_states is not None, "a draft head reads hidden states"
        self._read_states = head.read_states
        self._mixed = MixedGraphs(head, runner, time)
        self._single = StepGraphs(head, runner, time)

    def run(self, batch: DecoderBatch, states: Tensor, request: LogitsRequest | None) -> DecoderOutput | None:
        """Replay a pass. Returns None, and computes nothing, if no graph fits it.

        batch: on the CPU, without adapters. states: [tokens, hidden], on the device, model dtype.
        request: asks for the logits of the output rows; None for hidden states only.
        The logits are in memory that the next pass overwrites; the hidden states are not.
        """
        num_outputs = sum(batch.query_lens if batch.output_lens is None else batch.output_lens)
        is_single = batch.output_lens is None and request is not None
        if is_single and self._single.takes(batch.query_lens, batch.key_lens, ()):
            self._read_states[: len(states)].copy_(states)
            assert request is not None
            output = self._single.run(batch, request)
        elif (num_outputs == 0 or request is not None) and self._mixed.takes(batch, num_outputs):
            self._read_states[: len(states)].copy_(states)
            output = self._mixed.run(batch, request)
        else:
            return None
        return output._replace(hidden=output.hidden.clone())
