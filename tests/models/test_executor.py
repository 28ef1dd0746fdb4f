"""Logits of few rows are written to one shared buffer; logits of many rows get a new tensor."""

from __future__ import annotations

import pytest
import torch

from models.backends.choice import backend
from models.backends.logits import LogitsRequest
from models.executor import MAX_LOGITS_ROWS, Executor

VOCAB = 5


def copy_of(hidden, out):
    """A fake language model head, whose hidden states are already the logits."""
    return hidden.clone() if out is None else out[: len(hidden)].copy_(hidden)


@pytest.fixture
def executor():
    return Executor(None, VOCAB, copy_of)


def test_logits_of_few_rows_share_one_buffer(executor):
    addresses = set()
    for rows in (3, 1, MAX_LOGITS_ROWS, 7):
        hidden = torch.randn(rows, VOCAB)
        logits, top_k = executor.logits(hidden, LogitsRequest(2, True))
        addresses.add(logits.data_ptr())
        assert torch.equal(logits, hidden)
        for part, expected in zip(top_k, backend(hidden).logits_top_k(hidden, 2, True), strict=True):
            assert torch.equal(part, expected)
    assert len(addresses) == 1


def test_logits_of_many_rows_get_a_new_tensor(executor):
    hidden = torch.randn(MAX_LOGITS_ROWS + 1, VOCAB)
    executor.logits(hidden[:1], LogitsRequest())
    (many, _), (few, _) = executor.logits(hidden, LogitsRequest()), executor.logits(hidden[:1], LogitsRequest())
    assert many.data_ptr() != few.data_ptr() and torch.equal(many, hidden)


def test_top_k_larger_than_the_vocabulary(executor):
    _, top_k = executor.logits(torch.randn(3, VOCAB), LogitsRequest(top_k=100))
    assert top_k.ids.shape == (3, VOCAB)
