"""The names of a checkpoint's labels show which class means entailment and which means contradiction."""

from __future__ import annotations

import pytest

from server.operations.entailment import entailment


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["contradiction", "neutral", "entailment"], (2, 0)),
        (["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], (0, 2)),
        (["contradiction", "entailment", "neutral"], (1, 0)),
        (["neutral", "contradiction", "entailment"], (2, 1)),
        (["entailment", "not_entailment"], (0, 1)),
        (["not_entailment", "entailment"], (1, 0)),
        (["LABEL_0", "LABEL_1", "LABEL_2"], None),
        (["entailment"], None),
        ([], None),
    ],
)
def test_classes_are_found_by_name(labels: list[str], found: tuple[int, int] | None) -> None:
    assert entailment(labels) == found
