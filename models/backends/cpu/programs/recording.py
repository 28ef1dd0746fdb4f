"""Record a stack as a program, or find out why it cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.lowering import lower
from models.backends.cpu.programs.program import Program
from models.backends.cpu.programs.symbolic_step import SymbolicStepInputs
from models.backends.cpu.programs.trace import SymbolicTensor, Trace
from models.backends.cpu.sampling import write_top_k
from models.stack import Stack
from models.steps.step_inputs.base import AttentionPattern, StepKind

Head: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""Function from hidden states [n, hidden] and memory [n or more, vocab], float32, to logits [n, vocab] in that memory.
Without memory (None) it allocates its result."""


class ProgramKey(NamedTuple):
    """Key of a program: steps with equal keys run the same program.

    kind: "paged" if keys and values are in a cache, "ragged" if the step contains whole sequences.
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


class Recorded(NamedTuple):
    """A program, and the attention patterns whose metadata are among its inputs."""

    program: Program
    patterns: tuple[AttentionPattern, ...]


def record(stack: Stack, head: Head | None, vocab_size: int, key: ProgramKey, width: int) -> Recorded | str:
    """Record a program that runs all steps with the given key.

    Returns the program, or, if these steps cannot be a program, the reason as a text.

    head: computes logits from hidden states; None for a stack without a language model head.
    vocab_size: number of logits.
    width: width of the hidden states, if they are the input.
    Raises any error of the model that is not caused by the use of a symbolic tensor.
    """
    trace = Trace()
    try:
        recorded = _record(trace, stack, head, vocab_size, key, width)
    except Exception:
        # Code that meets NotTraceable may turn it into another error, as torch does.
        if trace.refusal is None:
            raise
        return trace.refusal
    return recorded if trace.refusal is None else trace.refusal


def _record(trace: Trace, stack: Stack, head: Head | None, vocab_size: int, key: ProgramKey, width: int) -> Recorded:
    step = SymbolicStepInputs(trace, stack.config, key.kind, key.all_rows, key.has_int8_cache)
    if key.reads_tokens:
        token_ids = cast(Tensor, trace.input(inputs.TOKEN_IDS))
        x = stack.embed(token_ids, cast(Tensor, trace.input(inputs.TOKEN_POSITIONS)), step)
    else:
        x = cast(Tensor, trace.input(inputs.hidden(key.dtype, width)))
    output = cast(SymbolicTensor, stack.run_layers(x, step))
    if key.with_logits:
        assert head is not None
        memory = trace.input(inputs.logits(vocab_size), output.count)
        write_top_k(head(cast(Tensor, output), cast(Tensor, memory)), inputs.NUM_TOP_K, inputs.TOP_K)
    return Recorded(lower(output), step.patterns)
