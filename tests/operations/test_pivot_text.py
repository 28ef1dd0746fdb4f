"""A translation through a pivot language links the tokens of its two models by the characters that they cover."""

from __future__ import annotations

import numpy as np

from server.operations.translating.pivot_text import linked_tokens


def test_tokens_are_linked_by_their_characters() -> None:
    written = [(0, 3), (3, 10), (10, 10)]  # the last one is the end token
    read = [(0, 0), (0, 3), (2, 6), (6, 10), (10, 10)]
    expected = [[0, 0, 1], [1, 0, 0], [0.25, 0.75, 0], [0, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(linked_tokens(read, written), expected)
    np.testing.assert_allclose(linked_tokens(read, written).sum(1), 1)
