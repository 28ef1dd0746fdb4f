"""The logits of a row have the same bits alone and in a batch, for every generating family and precision."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from models.backends.cpu import operations as cpu_ops
from models.checkpoint.loader import load_model
from models.config.state import CHUNK_TOKENS
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ
from tests.parity.paged import Rows

CPU = torch.device("cpu")
CASES = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.float32, "int8"),
    "int5": (torch.float32, "int5"),
    "int4": (torch.float32, "int4"),
}
TEXTS = [[5, 6, 7, 8, 9], [11, 3], [20, 21, 22, 23, 24, 25, 26], [30], [40, 41, 42]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_decoding_alone_and_together(saved, name, case):
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    model = load_model(saved(config, architecture), dtype, CPU, quantization=quantization).transformer
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None

    def decode(texts, sources):
        rows = Rows(model, sources)
        for position in range(4):
            rows.feed({row: [text[position % len(text)]] for row, text in enumerate(texts)})
        return [model.logits(hidden) for hidden in rows.feed({row: [50 + row] for row in range(len(texts))})]

    together = decode(TEXTS, sources)
    assert not torch.equal(together[0], together[1])
    for row, text in enumerate(TEXTS[:1]):
        alone = decode([text], None if sources is None else [sources[row]])
        assert torch.equal(alone[row], together[row])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_a_prompt_in_chunks(saved, name, case):
    """The logits after a prompt have the same bits for any size of prefill chunks, alone and in a batch."""
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    architecture, config = DECODERS[name]
    model = load_model(saved(config, architecture), dtype, CPU, quantization=quantization).transformer
    # For models with a recurrent state, chunks of prompts end only at multiples of `CHUNK_TOKENS`.
    grid = CHUNK_TOKENS if model.mixers() else 1
    prompt = [5 + 7 * place % 41 for place in range(24 if grid == 1 else 120)]
    cuts = ((1, 2, 12, 24), (9, 23, 24), (16, 24)) if grid == 1 else ((grid, 120),)

    def last_logits(ends, with_other_row):
        rows = Rows(model, None)
        rows.expect([prompt, [9, 8, 7]])
        for start, end in pairwise((0, *ends)):
            others = {1: [9, 8, 7]} if with_other_row else {}
            hidden = rows.feed({**others, 0: prompt[start:end]})[-1]
        return model.logits(hidden[-1:])

    whole = last_logits((len(prompt),), False)
    for ends in cuts:
        for with_other_row in (False, True):
            assert torch.equal(last_logits(ends, with_other_row), whole)
