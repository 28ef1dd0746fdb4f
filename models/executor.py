"""Run the layers of a stack, either eagerly or as a program of the compiled kernels.

Only this file chooses between the two. A program is traced at the first step of its kind and used for all later steps
of that kind. Stacks that cannot be traced, steps with adapters, and devices without programs run eagerly. The executor
keeps the reason for which a stack cannot be traced. An error while tracing is an error of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from models.backends import choice
from models.backends.choice import backend
from models.backends.cpu.lowering import lower
from models.backends.cpu.program import Program
from models.backends.cpu.sampling import write_top_k
from models.backends.cpu.trace import ProgramInput, SymbolicTensor, Trace
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.stack import Stack
from models.steps.step_inputs.base import AttentionPattern, StepInputs, StepKind
from models.steps.step_inputs.symbolic import SymbolicStepInputs

MAX_LOGITS_ROWS = 64
"""Number of rows of the logits memory that is kept between steps. Allocating this memory at each step would take as
long as the product. More rows would not make the product faster."""
MAX_CUDA_LOGITS_ROWS = 256
"""The same on a CUDA device, where a captured step computes the logits of all rows."""


def max_logits_rows(device: torch.device) -> int:
    """Largest number of rows whose logits are computed in the memory that is kept."""
    return MAX_CUDA_LOGITS_ROWS if device.type == "cuda" else MAX_LOGITS_ROWS


_TOP_K_INPUTS = LogitsTopK(*(cast(Tensor, ProgramInput(("top_k", name))) for name in LogitsTopK._fields))


class ProgramKey(NamedTuple):
    """Key of a program: steps with equal keys run the same program.

    reads_tokens: whether the program's input is token ids; otherwise it is hidden states.
    all_rows: whether all rows are output rows.
    dtype: dtype of the hidden states.
    with_logits: whether the program also computes logits and their top k.
    has_int8_cache: whether keys and values are cached in int8.
    """

    kind: StepKind
    reads_tokens: bool
    all_rows: bool
    dtype: torch.dtype
    with_logits: bool
    has_int8_cache: bool = False


class Executor:
    """Runs the layers of an encoder or a decoder, eagerly or as a program, and the head of a language model.

    head: function from hidden states [n, hidden] and memory [n or more, vocab], float32, to logits [n, vocab] in that
        memory. Without memory (None) it allocates its result. None for a stack without a head.
    fallbacks: reason of each kind of steps that was to run as a program and runs eagerly.
    """

    def __init__(
        self, stack: Stack, vocab_size: int, head: Callable[[Tensor, Tensor | None], Tensor] | None = None
    ) -> None:
        self._stack, self._vocab_size, self._head = stack, vocab_size, head
        self._memory: Tensor | None = None
        self._programs: dict[ProgramKey, tuple[Program, tuple[AttentionPattern, ...]] | None] = {}
        self.fallbacks: dict[ProgramKey, str] = {}

    def run_hidden(self, x: Tensor, step: StepInputs) -> Tensor:
        """Run the layers on the output of the embedding. x: [tokens, hidden]. Returns [n, hidden], the output rows."""
        found = self._program(x, step, reads_tokens=False, with_logits=False)
        if found is None:
            return self._stack.run_layers(x, step)
        program, patterns = found
        inputs = step.dynamic_inputs(patterns)
        x = x.contiguous()
        inputs["hidden"] = x.data_ptr()
        return program.run(x.shape[0], inputs, step.static_inputs)

    def run_tokens(
        self, token_ids: Tensor, positions: Tensor, step: StepInputs, request: LogitsRequest | None = None
    ) -> DecoderOutput:
        """Run embedding and layers, and the head where logits are requested, for at most `max_logits_rows` rows.

        token_ids, positions: [tokens], int64.
        """
        like = self._stack.tokens.weight
        found = self._program(like, step, reads_tokens=True, with_logits=request is not None)
        if found is None and request is not None:
            # A head that cannot be traced (capped logits) runs eagerly after the program of its layers.
            hidden = self.run_tokens(token_ids, positions, step).hidden
            return DecoderOutput(hidden, *self.logits(hidden, request))
        if found is None:
            x = self._stack.embedding(token_ids, positions)
            self._stack.set_layer_inputs(step, token_ids, x)
            return DecoderOutput(self.run_hidden(x, step))
        program, patterns = found
        inputs = step.dynamic_inputs(patterns)
        token_ids, positions = token_ids.contiguous(), positions.contiguous()
        inputs["token_ids"], inputs["token positions"] = token_ids.data_ptr(), positions.data_ptr()
        rows = token_ids.shape[0]
        if request is None:
            return DecoderOutput(program.run(rows, inputs, step.static_inputs))
        output_rows = rows if step.output_rows is None else step.output_rows.shape[0]
        logits = self.logits_memory(like.device)[:output_rows]
        k = min(request.top_k, self._vocab_size)
        top_k = LogitsTopK.empty(output_rows, k, request.with_logsumexp)
        inputs["logits"], inputs["k"] = logits.data_ptr(), k
        for program_input, tensor in zip(_TOP_K_INPUTS, top_k, strict=True):
            inputs[program_input.name] = 0 if tensor is None else tensor.data_ptr()  # type: ignore[union-attr]
        return DecoderOutput(program.run(rows, inputs, step.static_inputs), logits, top_k)

    @property
    def eager_part(self) -> tuple[str, str] | None:
        """What runs eagerly although this device has programs, and why; None where every step so far ran as a program.

        Steps try a whole program first, then one without the head, then one without head and embedding.
        """
        parts = {self._part(key): reason for key, reason in reversed(self.fallbacks.items())}
        return next(((part, parts[part]) for part in ("layers", "embedding", "output head") if part in parts), None)

    @property
    def has_programs(self) -> bool:
        """Whether a step ran as a program."""
        return any(found is not None for found in self._programs.values())

    @staticmethod
    def _part(key: ProgramKey) -> str:
        """The part that a program of this kind has, and smaller programs have not."""
        return "output head" if key.with_logits else "embedding" if key.reads_tokens else "layers"

    def logits(self, hidden: Tensor, request: LogitsRequest) -> tuple[Tensor, LogitsTopK]:
        """Logits of hidden states, [n, hidden], and their top k.

        Up to `max_logits_rows` rows use shared memory, which the next logits overwrite. More rows use new memory.
        """
        assert self._head is not None
        fits = hidden.shape[0] <= max_logits_rows(hidden.device)
        logits = self._head(hidden, self.logits_memory(hidden.device) if fits else None)
        return logits, backend(logits).logits_top_k(
            logits, min(request.top_k, self._vocab_size), request.with_logsumexp
        )

    def logits_memory(self, device: torch.device) -> Tensor:
        """Memory for the logits of steps, which each step overwrites: [max_logits_rows, vocab], float32."""
        if self._memory is None:
            self._memory = torch.empty(max_logits_rows(device), self._vocab_size, device=device)
        return self._memory

    def _program(
        self, like: Tensor, step: StepInputs, reads_tokens: bool, with_logits: bool
    ) -> tuple[Program, tuple[AttentionPattern, ...]] | None:
        """The program of a step and its attention patterns, or None where the step runs eagerly.

        like: a tensor with the dtype and device of the hidden states.
        """
        if step.kind is None or not choice.programs_are_enabled:
            return None
        key = ProgramKey(
            step.kind, reads_tokens, step.output_rows is None, like.dtype, with_logits, step.has_int8_cache
        )
        if key not in self._programs:
            self._programs[key] = self._trace(key, like.shape[1]) if choice.runs_kernels(like) else None
        return self._programs[key]

    def _trace(self, key: ProgramKey, width: int) -> tuple[Program, tuple[AttentionPattern, ...]] | None:
        """Record the stack, or return None where it cannot be traced, and keep the reason.

        width: width of the hidden states, if they are the input.
        Raises every error that is not the use of a symbolic tensor.
        """
        trace, found = Trace(), None
        try:
            found = self._record(trace, key, width)
        except Exception:
            # Code that meets NotTraceable may turn it into another error, as torch does.
            if trace.refusal is None:
                raise
        if trace.refusal is None:
            return found
        self.fallbacks[key] = trace.refusal
        return None

    def _record(self, trace: Trace, key: ProgramKey, width: int) -> tuple[Program, tuple[AttentionPattern, ...]]:
        step = SymbolicStepInputs(trace, self._stack.config, key.kind, key.all_rows, key.has_int8_cache)
        if key.reads_tokens:
            token_ids, positions = (
                cast(Tensor, trace.input(name, torch.int64)) for name in ("token_ids", "token positions")
            )
            x = self._stack.embedding(token_ids, positions)
            self._stack.set_layer_inputs(step, token_ids, x)
        else:
            x = cast(Tensor, trace.input("hidden", key.dtype, width))
        output = cast(SymbolicTensor, self._stack.run_layers(x, step))
        if key.with_logits:
            assert self._head is not None
            memory = trace.input("logits", torch.float32, self._vocab_size, count=output.count)
            logits = self._head(cast(Tensor, output), cast(Tensor, memory))
            write_top_k(logits, ProgramInput("k"), _TOP_K_INPUTS)
        return lower(output), step.patterns
