"""Distributions of the lengths of prompts and answers, and random prompts of a given length."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea body information back parent
face others level office door health person art war history party result change morning reason research girl guy
moment air teacher
""".split()  # noqa: SIM905, a list literal would take a line per word
"""Common English words for random prompts. In most vocabularies, each is one or two tokens."""

MAX_MEDIAN, MAX_SIGMA = 1_000_000, 3
FORMS = "N, uniform:LOW,HIGH, lognormal:MEDIAN,SIGMA or file:PATH (one number per line)"


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths.

    text: the distribution as it was written on the command line. kind: `fixed`, `uniform`, `lognormal` or `file`.
    numbers: parameters of the distribution. For `file`, the lengths, which are used in order, and again from the
        beginning after the last one.
    """

    text: str
    kind: str
    numbers: tuple[float, ...]

    def draw(self, random_numbers: random.Random) -> Iterator[int]:
        """Yield random lengths without end, each at least 1."""
        if self.kind == "file":
            yield from itertools.cycle(int(number) for number in self.numbers)
        while True:
            if self.kind == "fixed":
                yield int(self.numbers[0])
            elif self.kind == "uniform":
                yield random_numbers.randint(int(self.numbers[0]), int(self.numbers[1]))
            else:
                median, sigma = self.numbers
                yield max(1, round(median * random_numbers.lognormvariate(0.0, sigma)))


def parse_lengths(text: str) -> Lengths:
    """Parse a distribution of lengths on the command line, in one of `FORMS`.

    Raises ArgumentTypeError for any other text, for lengths below 1, and for a file that cannot be read.
    """
    kind, found, values = text.partition(":")
    numbers: tuple[float, ...]
    try:
        if not found:
            kind, numbers = "fixed", (int(text),)
        elif kind == "file":
            numbers = tuple(int(line) for line in Path(values).read_text().split())
        else:
            first, second = values.split(",")
            numbers = (float(first), float(second)) if kind == "lognormal" else (int(first), int(second))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {values}: {error.strerror}") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"write {FORMS}, not {text!r}") from None
    if not _is_valid(kind, numbers):
        raise argparse.ArgumentTypeError(f"write {FORMS} with lengths from 1, not {text!r}")
    return Lengths(text, kind, numbers)


def _is_valid(kind: str, numbers: tuple[float, ...]) -> bool:
    if kind == "uniform":
        return 1 <= numbers[0] <= numbers[1]
    if kind == "lognormal":
        return 1 <= numbers[0] <= MAX_MEDIAN and 0 <= numbers[1] <= MAX_SIGMA
    return kind in ("fixed", "file") and bool(numbers) and min(numbers) >= 1


def make_prompt(words: int, random_numbers: random.Random) -> str:
    """Return a text of random words, separated by spaces. words: number of words."""
    return " ".join(random_numbers.choices(WORDS, k=words))
