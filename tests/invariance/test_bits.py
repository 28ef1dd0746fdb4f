"""Logits of a row are the same bits alone and among others: every generating family, float32, bfloat16 and int8."""

from __future__ import annotations

import pytest
import torch

from models.loader import load_model
from models.ops import cpu_ops
from tests.engine.shapes import DECODERS, SEQ2SEQ
from tests.parity.checkpoints import save
from tests.parity.paged import Rows

CPU = torch.device("cpu")
CASES = {"float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None), "int8": (torch.float32, "int8")}
TEXTS = [[5, 6, 7, 8, 9], [11, 3], [20, 21, 22, 23, 24, 25, 26], [30], [40, 41, 42]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_decoding_alone_and_together(tmp_path, name, case):
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    save(tmp_path, config, architecture)
    model = load_model(tmp_path, dtype, CPU, quantization=quantization).transformer
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
