"""The hidden states of a text have the same bits alone and in a batch, for every encoder in three precisions."""

from __future__ import annotations

import pytest
import torch
import transformers

from models.backends.cpu import operations as cpu_ops
from models.checkpoint.loader import load_model
from tests.engine.tiny_checkpoints import SEQ2SEQ
from tests.parity.paged import encoder_batch
from tests.parity.recent_encoder_cases import BODIES as RECENT
from tests.parity.test_encoders import BODIES
from tests.parity.test_sparse_encoders import CASES as SPARSE

CPU = torch.device("cpu")
OWN_PARTS = {body: RECENT[body] for body in ("mobilebert-small", "mobilebert-wide", "convbert-small", "convbert-wide")}
"""Recent encoders with special kinds of layers or attention."""
CASES = {"float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None), "int8": (torch.float32, "int8")}
LENGTHS = (5, 1, 17, 9, 5, 24, 3)
TEXTS = [[5 + (7 * place + 11 * text) % 80 for place in range(length)] for text, length in enumerate(LENGTHS)]


def alone_and_together(directory, case):
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    model = load_model(directory, dtype, CPU, quantization=quantization).transformer
    together = model.encode(encoder_batch(TEXTS, CPU)).split(LENGTHS)
    assert not torch.equal(together[0], together[4])
    for text, hidden in zip(TEXTS, together, strict=True):
        assert torch.equal(model.encode(encoder_batch([text], CPU)), hidden)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("body", [*BODIES, *SPARSE, *OWN_PARTS])
@torch.inference_mode()
def test_encoders(saved, body, case):
    family, options = (BODIES | SPARSE | OWN_PARTS)[body]
    alone_and_together(saved(getattr(transformers, f"{family}Config")(**options), f"{family}Model"), case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SEQ2SEQ)
@torch.inference_mode()
def test_sources(saved, name, case):
    architecture, config = SEQ2SEQ[name]
    alone_and_together(saved(config, architecture), case)
