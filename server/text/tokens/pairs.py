"""Join the tokens of two texts to a pair, so that a text that is in many pairs is tokenized only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.text.tokens.tokenizer import Encoding, Tokenizer

_SAMPLES = ("a", "A", "1", ".", "\u4e2d")


class NoPairs(ValueError):
    """The tokenizer's pairs cannot be joined here: no sample pair shows which special tokens it adds."""


@dataclass(frozen=True)
class PairTemplate:
    """Special tokens and token types of a pair of texts.

    before, between, after: (token id, token type) of the special tokens around the two texts.
    types: token type of each text.
    once: whether the end token is not repeated (ByT5): if the first text ends with the first token of `between`, the
        token is not added again. The same holds for the second text and `after`.
    """

    before: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, int], ...]
    types: tuple[int, int]
    once: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairTemplate:
        """Find the template of a tokenizer by tokenizing a sample pair. Raises NoPairs if no sample shows it."""
        for sample in _SAMPLES:
            (alone,) = tokenizer.encode([sample], add_special_tokens=False, offsets=False)
            (pair,) = tokenizer.encode([sample], pairs=[sample], offsets=False)
            size = len(alone.ids)
            if not size or len(pair.ids) < 2 * size:
                continue
            tokens = list(zip(pair.ids, pair.type_ids, strict=True))
            start = pair.special.index(False)
            second = next(i for i in range(start + size, len(tokens) + 1) if not any(pair.special[i : i + 1]))
            end = second + size
            types = pair.type_ids[start], pair.type_ids[second]
            template = cls(
                before=tuple(tokens[:start]),
                between=tuple(tokens[start + size : second]),
                after=tuple(tokens[end:]),
                types=types,
                once=_ends_once(tokenizer, sample),
            )
            if template.join(alone.ids, alone.ids).ids == pair.ids:
                return template
        raise NoPairs("the tokenizer makes no tokens of a sample text")

    @property
    def num_special(self) -> int:
        """Number of special tokens in a pair, if none is left out."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Sequence[int], second: Sequence[int]) -> Encoding:
        """Return the encoding of a pair, without offsets. first, second: token ids of the texts alone."""
        between = self.between[1:] if self._is_repeated(first, self.between) else self.between
        after = self.after[1:] if self._is_repeated(second, self.after) else self.after
        parts = (
            ([token for token, _ in self.before], [kind for _, kind in self.before], True),
            (first, [self.types[0]] * len(first), False),
            ([token for token, _ in between], [kind for _, kind in between], True),
            (second, [self.types[1]] * len(second), False),
            ([token for token, _ in after], [kind for _, kind in after], True),
        )
        return Encoding(
            ids=[token for ids, _, _ in parts for token in ids],
            type_ids=[kind for _, kinds, _ in parts for kind in kinds],
            special=[special for ids, _, special in parts for _ in ids],
            offsets=[],
        )

    def _is_repeated(self, ids: Sequence[int], special: tuple[tuple[int, int], ...]) -> bool:
        return self.once and bool(ids) and bool(special) and ids[-1] == special[0][0]


def _ends_once(tokenizer: Tokenizer, sample: str) -> bool:
    """Whether the tokenizer leaves out its end token after a text that already ends with this token, as ByT5 does."""
    end = None if tokenizer.special.eos is None else tokenizer.id_to_token(tokenizer.special.eos)
    if end is None:
        return False
    alone, plain = (
        tokenizer.encode([sample + end], add_special_tokens=special, offsets=False)[0] for special in (True, False)
    )
    (usual,) = tokenizer.encode([sample], offsets=False)
    (short,) = tokenizer.encode([sample], add_special_tokens=False, offsets=False)
    return len(alone.ids) == len(plain.ids) and len(usual.ids) > len(short.ids)


def lengths_in(room: int, first: int, second: int) -> tuple[int, int]:
    """Return how many tokens each of two texts keeps in `room` tokens together. The longer text loses tokens first.

    first, second: number of tokens of each text.
    """
    room = max(room, 0)
    if first + second <= room:
        return first, second
    if 2 * min(first, second) <= room:
        return (room - second, second) if first > second else (first, room - first)
    return room // 2, room - room // 2
