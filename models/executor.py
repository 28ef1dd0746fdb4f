"""Run the layers of a stack, either eagerly or as a program of the compiled kernels.

Only this file chooses between the two. A program is traced at the first step of its kind and used for all later steps
of that kind. Stacks that cannot be traced, steps with adapters, and devices without programs run eagerly. The executor
keeps the reason for which a stack cannot be traced. An error of the model while it is traced makes the step fail.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.backends import choice
from models.backends.choice import backend
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.recording import Head, ProgramKey, Recorded, record
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.stack import Stack
from models.steps.step_inputs.base import StepInputs

MAX_LOGITS_ROWS = 64
"""Number of rows of the logits memory on a CPU, which is kept between steps. Allocating it in each step would take as
long as the product. More rows would not make the product faster."""
MAX_CUDA_LOGITS_ROWS = 256
"""Number of rows of the logits memory on a CUDA device, where a captured step computes the logits of all rows."""


def max_logits_rows(device: torch.device) -> int:
    """Largest number of rows for which logits are written to the memory that is kept between steps."""
    return MAX_CUDA_LOGITS_ROWS if device.type == "cuda" else MAX_LOGITS_ROWS


class Executor:
    """Runs the layers of an encoder or a decoder, eagerly or as a program, and the head of a language model.

    head: computes logits from hidden states, in the memory that is its second argument; None for a stack without a
        head.
    fallbacks: for each kind of step that cannot be a program and runs eagerly, the reason.
    """

    def __init__(self, stack: Stack, vocab_size: int, head: Head | None = None) -> None:
        self._stack, self._vocab_size, self._head = stack, vocab_size, head
        self._memory: Tensor | None = None
        self._programs: dict[ProgramKey, Recorded | None] = {}
        self.fallbacks: dict[ProgramKey, str] = {}

    def run_hidden(self, x: Tensor, step: StepInputs) -> Tensor:
        """Run the layers on the output of the embedding. x: [tokens, hidden]. Returns [n, hidden], the output rows."""
        found = self._program(x, step, reads_tokens=False, with_logits=False)
        if found is None:
            return self._stack.run_layers(x, step)
        program, patterns = found
        values = step.dynamic_inputs(patterns)
        x = x.contiguous()
        values[inputs.hidden(x.dtype, x.shape[1])] = x.data_ptr()
        return program.run(x.shape[0], values, step.static_inputs)

    def run_tokens(
        self, token_ids: Tensor, positions: Tensor, step: StepInputs, request: LogitsRequest | None = None
    ) -> DecoderOutput:
        """Run embedding and layers, and the head if logits are requested.

        token_ids, positions: [tokens], int64.
        request: asks for logits and their top k, for at most `max_logits_rows` output rows; None for hidden states
            only.
        """
        like = self._stack.tokens.weight
        found = self._program(like, step, reads_tokens=True, with_logits=request is not None)
        if found is None and request is not None:
            # A head that cannot be traced runs eagerly after the program of the layers.
            hidden = self.run_tokens(token_ids, positions, step).hidden
            return DecoderOutput(hidden, *self.logits(hidden, request))
        if found is None:
            return DecoderOutput(self.run_hidden(self._stack.embed(token_ids, positions, step), step))
        program, patterns = found
        values = step.dynamic_inputs(patterns)
        token_ids, positions = token_ids.contiguous(), positions.contiguous()
        values[inputs.TOKEN_IDS], values[inputs.TOKEN_POSITIONS] = token_ids.data_ptr(), positions.data_ptr()
        rows = token_ids.shape[0]
        if request is None:
            return DecoderOutput(program.run(rows, values, step.static_inputs))
        output_rows = rows if step.output_rows is None else step.output_rows.shape[0]
        logits = self.logits_memory(like.device)[:output_rows]
        k = min(request.top_k, self._vocab_size)
        top_k = LogitsTopK.empty(output_rows, k, request.with_logsumexp)
        values[inputs.logits(self._vocab_size)], values[inputs.NUM_TOP_K] = logits.data_ptr(), k
        for program_input, tensor in zip(inputs.TOP_K.values(), top_k, strict=True):
            values[program_input] = 0 if tensor is None else tensor.data_ptr()
        return DecoderOutput(program.run(rows, values, step.static_inputs), logits, top_k)

    @property
    def eager_part(self) -> tuple[str, str] | None:
        """The part of the model that runs eagerly because it cannot be traced, and the reason, both for users.

        The part is "layers", "embedding" or "output head"; None if no step so far met such a part. A step tries a
        program of the whole model first, then a program without the head, then a program of the layers alone.
        """
        parts = {self._part(key): reason for key, reason in reversed(self.fallbacks.items())}
        return next(((part, parts[part]) for part in ("layers", "embedding", "output head") if part in parts), None)

    @property
    def has_programs(self) -> bool:
        """Whether a step ran as a program."""
        return any(found is not None for found in self._programs.values())

    @staticmethod
    def _part(key: ProgramKey) -> str:
        """The part of the model that a program with this key contains in addition to the next smaller program."""
        return "output head" if key.with_logits else "embedding" if key.reads_tokens else "layers"

    def logits(self, hidden: Tensor, request: LogitsRequest) -> tuple[Tensor, LogitsTopK]:
        """Logits of hidden states, [n, hidden], and their top k.

        Up to `max_logits_rows` rows are written to memory that the next logits overwrite. More rows use new memory.
        """
        assert self._head is not None
        fits = hidden.shape[0] <= max_logits_rows(hidden.device)
        logits = self._head(hidden, self.logits_memory(hidden.device) if fits else None)
        return logits, backend(logits).logits_top_k(
            logits, min(request.top_k, self._vocab_size), request.with_logsumexp
        )

    def logits_memory(self, device: torch.device) -> Tensor:
        """Memory for logits, which each step overwrites: [max_logits_rows, vocab], float32.

        Allocated at the first call.
        """
        if self._memory is None:
            self._memory = torch.empty(max_logits_rows(device), self._vocab_size, device=device)
        return self._memory

    def _program(self, like: Tensor, step: StepInputs, reads_tokens: bool, with_logits: bool) -> Recorded | None:
        """The program of a step, recorded at the first step of its kind; None if the step runs eagerly.

        like: a tensor with the dtype and device of the hidden states.
        """
        if step.kind is None or not choice.programs_are_enabled or not self._stack.layers:
            return None
        key = ProgramKey(
            step.kind, reads_tokens, step.output_rows is None, like.dtype, with_logits, step.has_int8_cache
        )
        if key not in self._programs:
            self._programs[key] = self._record(key, like.shape[1]) if choice.runs_kernels(like) else None
        return self._programs[key]

    def _record(self, key: ProgramKey, width: int) -> Recorded | None:
        """Record the program for a key. If that is not possible, keep the reason and return None.

        width: width of the hidden states.
        """
        found = record(self._stack, self._head, self._vocab_size, key, width)
        if isinstance(found, Recorded):
            return found
        self.fallbacks[key] = found
        return None
