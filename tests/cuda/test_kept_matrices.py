"""Published quantised checkpoints on a CUDA device: the kernels multiply by the matrices as they are stored."""

from __future__ import annotations

import pytest
import torch

from models.backends import choice
from models.checkpoint.loader import load_model
from tests.cuda.test_backend import DEVICE
from tests.models.test_quantized_checkpoints import checkpoint, is_linear, logits, pair
from tests.parity.quantized_checkpoints import relative_error

__all__ = ["checkpoint", "is_linear", "pair"]

LONG = pytest.mark.many_shapes
KINDS = ["fp8", *(pytest.param(kind, marks=LONG) for kind in ("compressed-fp8", "compressed-int8", "compressed-int4"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoder", ["llama", pytest.param("mixtral, experts", marks=LONG)])
def test_a_checkpoint_is_kept_in_its_own_numbers(pair, decoder: str, kind: str) -> None:
    quantized, plain = pair(decoder, kind)
    with choice.using("torch"):
        expected = load_model(plain, torch.float32, DEVICE)
        exact = logits(load_model(plain, torch.float32, DEVICE))
    with choice.using("cuda"):
        loaded = load_model(quantized, torch.float32, DEVICE)
        found = logits(loaded)
    assert not loaded.notes and loaded.weight_bytes < 0.75 * expected.weight_bytes
    assert relative_error(found, exact) < 5e-3
