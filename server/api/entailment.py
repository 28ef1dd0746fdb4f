"""Which classes of a checkpoint say that one sentence follows from another, and that it does not."""

from __future__ import annotations

from collections.abc import Sequence


def entailment(labels: Sequence[str]) -> tuple[int, int] | None:
    """(entailment, contradiction): indices of the two classes by their names; None without one for entailment.

    Where no name says contradiction (`entailment` and `not_entailment`), it is the first class, or the last where
    entailment is the first: what the zero-shot pipeline of transformers takes.
    """
    names = [label.lower() for label in labels]
    found = next((index for index, name in enumerate(names) if name.startswith("entail")), None)
    if found is None or len(names) < 2:
        return None
    against = next((index for index, name in enumerate(names) if name.startswith("contradict")), None)
    return found, against if against is not None else len(names) - 1 if found == 0 else 0
