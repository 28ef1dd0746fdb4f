"""Logits of few rows share one memory; logits of many rows have their own."""

from __future__ import annotations

import pytest
import torch

from models.backends import interface as ops
from models.executor import MAX_LOGITS_ROWS, Executor
from models.logits import LogitsRequest

VOCAB = 5


def copy_of(hidden, out):
    """A head whose hidden states are logits already."""
    return hidden.clone() if out is None else out[: len(hidden)].copy_(hidden)


@pytest.fixture
def executor():
    return Executor(None, VOCAB, copy_of)


def test_few_rows_share_their_memory(executor):
    addresses = set()
    for rows in (3, 1, MAX_LOGITS_ROWS, 7):
        hidden = torch.randn(rows, VOCAB)
        logits, top_k = executor.logits(hidden, LogitsRequest(2, True))
        addresses.add(logits.data_ptr())
        assert torch.equal(logits, hidden)
        for part, expected in zip(top_k, ops.logits_top_k(hidden, 2, True), strict=True):
            assert torch.equal(part, expected)
    assert len(addresses) == 1


def test_many_rows_have_memory_of_their_own(executor):
    hidden = torch.randn(MAX_LOGITS_ROWS + 1, VOCAB)
    executor.logits(hidden[:1], LogitsRequest())
    (many, _), (few, _) = executor.logits(hidden, LogitsRequest()), executor.logits(hidden[:1], LogitsRequest())
    assert many.data_ptr() != few.data_ptr() and torch.equal(many, hidden)


def test_more_candidates_than_words(executor):
    _, top_k = executor.logits(torch.randn(3, VOCAB), LogitsRequest(top_k=100))
    assert top_k.ids.shape == (3, VOCAB)
