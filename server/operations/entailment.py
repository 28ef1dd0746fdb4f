"""Find the classes for entailment and contradiction among a checkpoint's labels."""

from __future__ import annotations

from collections.abc import Sequence


def entailment(labels: Sequence[str]) -> tuple[int, int] | None:
    """Find the indices of the classes (entailment, contradiction) by their names. None without an entailment class.

    If no class is named contradiction (as with `entailment` and `not_entailment`), the second index is the first class,
    or the last class if entailment is the first. The zero-shot pipeline of transformers does the same.
    """
    names = [label.lower() for label in labels]
    found = next((index for index, name in enumerate(names) if name.startswith("entail")), None)
    if found is None or len(names) < 2:
        return None
    against = next((index for index, name in enumerate(names) if name.startswith("contradict")), None)
    return found, against if against is not None else len(names) - 1 if found == 0 else 0
