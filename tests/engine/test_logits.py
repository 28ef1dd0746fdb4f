"""Logits of a call are overwritten by the next call."""

from __future__ import annotations

import torch

from server.engine.logits import Logits
from tests.engine.stored_logits import StoredLogits


def test_up_to_some_rows_share_their_memory():
    logits = Logits(StoredLogits(), 5, torch.device("cpu"), rows=16)
    first = torch.randn(3, 5)
    assert torch.equal(logits(first), first)
    places = set()
    for rows in (1, 16, 7):
        hidden = torch.randn(rows, 5)
        found = logits(hidden)
        places.add(found.data_ptr())
        assert torch.equal(found, hidden)
    assert len(places) == 1


def test_more_rows_have_memory_of_their_own():
    logits = Logits(StoredLogits(), 5, torch.device("cpu"), rows=16)
    hidden = torch.randn(17, 5)
    logits(hidden[:1])
    many, few = logits(hidden), logits(hidden[:1])
    assert many.data_ptr() != few.data_ptr() and torch.equal(many, hidden)
