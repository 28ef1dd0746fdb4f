"""Joining labelled tokens to entities.

Some models also mark the last token of an entity (`E-`) and an entity of one token (`S-`); their entities are not cut
there. The entities of other models are as in the pipeline of transformers.
"""

from __future__ import annotations

import numpy as np
import pytest

from server.operations.labelling.entities import ScoredTextToken, entities

WITH_ENDS = ["O", *(f"{mark}-{name}" for name in ("name", "date") for mark in ("B", "I", "E", "S"))]
WITHOUT_ENDS = ["O", "B-name", "I-name", "E-name"]


class Joiner:
    """A stand-in for a tokenizer that can only `join`."""

    def join(self, words: list[str]) -> str:
        return " ".join(words)


def found(labels: list[str], marks: list[str]) -> list[tuple[str, int, int]]:
    """Label, start and end of each entity. marks: the label of each token; every token is one character long."""
    tokens = [
        ScoredTextToken("x", np.eye(len(labels))[labels.index(mark)], place, place + 1, place, False)
        for place, mark in enumerate(marks)
    ]
    return [(entity.label, entity.start, entity.end) for entity in entities(tokens, "simple", labels, Joiner())]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("B-name I-name E-name", [("name", 0, 3)]),
        ("B-name E-name B-name E-name", [("name", 0, 2), ("name", 2, 4)]),
        ("S-name S-name O S-date", [("name", 0, 1), ("name", 1, 2), ("date", 3, 4)]),
        ("B-name E-name I-name", [("name", 0, 2), ("name", 2, 3)]),
        ("B-name E-date", [("name", 0, 1), ("date", 1, 2)]),
    ],
)
def test_marks_of_ends(marks: str, expected: list[tuple[str, int, int]]) -> None:
    assert found(WITH_ENDS, marks.split()) == expected


def test_a_class_that_is_named_like_a_mark_of_ends_is_none() -> None:
    """A model without labels in `S-` does not mark ends: `E-name` is an ordinary class, as in the pipeline."""
    assert found(WITHOUT_ENDS, ["B-name", "E-name"]) == [("name", 0, 1), ("name", 1, 2)]
