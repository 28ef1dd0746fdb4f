"""The language model head returns float32 logits for every weight layout, in a new tensor or in a given buffer."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from models.backends import choice, linear_weights
from models.config import LanguageModelHead
from models.layers.heads import LanguageModel
from tests.models.int8_reference import ReferenceInt8Weight

WIDTH, VOCAB, ROWS = 40, 70, 9


@pytest.fixture(params=["torch", "cpu"])
def kernels(request):
    with choice.using(request.param):
        yield


def expected_logits(config: LanguageModelHead, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    logits = (hidden.double() * config.scale) @ table.double().T
    return (logits if config.cap is None else config.cap * torch.tanh(logits / config.cap)).float()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("config", [LanguageModelHead(tied=True), LanguageModelHead(tied=True, scale=0.5, cap=3.0)])
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_logits_equal_their_definition(config, quantization, dtype):
    table, hidden = torch.randn(VOCAB, WIDTH).to(dtype), torch.randn(ROWS, WIDTH).to(dtype)
    head = LanguageModel(config, WIDTH, VOCAB)
    if quantization is not None and not choice.runs_kernels(hidden):
        packer = partial(ReferenceInt8Weight, out_dtype=torch.float32)
    else:
        packer = linear_weights.packer(dtype, hidden.device, quantization, torch.float32)
    if packer is not None:
        packed = head.pack(lambda weight, bias: packer(weight, bias), table)
        assert packed is head.packed
    logits = head(hidden, table)
    assert logits.dtype == torch.float32
    exact = expected_logits(config, hidden, table)
    bounds = {"int8": 0.05, None: 0.01 if packer is None and dtype == torch.bfloat16 else 1e-5}
    torch.testing.assert_close(logits, exact, atol=bounds[quantization] * float(exact.abs().max()), rtol=0)
    memory = torch.full((ROWS + 2, VOCAB), 7.0)
    written = head(hidden, table, memory)
    assert written.data_ptr() == memory.data_ptr() and torch.equal(written, logits)
    assert (memory[ROWS:] == 7).all()
