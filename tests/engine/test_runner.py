"""Logits of one call are written over by the next."""

from __future__ import annotations

import torch

from server.engine.runner import LOGITS_ROWS, Runner


class Head:
    """Logits are the hidden states."""

    def logits(self, hidden, adapters=(), out=None):
        return hidden.clone() if out is None else out[: len(hidden)].copy_(hidden)


def test_up_to_some_rows_share_their_memory():
    runner = Runner(Head(), torch.device("cpu"), None, None)
    first = torch.randn(3, 5)
    assert torch.equal(runner.logits(first), first)
    places = set()
    for rows in (1, LOGITS_ROWS, 7):
        hidden = torch.randn(rows, 5)
        found = runner.logits(hidden)
        places.add(found.data_ptr())
        assert torch.equal(found, hidden)
    assert len(places) == 1


def test_more_rows_have_memory_of_their_own():
    runner = Runner(Head(), torch.device("cpu"), None, None)
    hidden = torch.randn(LOGITS_ROWS + 1, 5)
    runner.logits(hidden[:1])
    many, few = runner.logits(hidden), runner.logits(hidden[:1])
    assert many.data_ptr() != few.data_ptr() and torch.equal(many, hidden)
