"""Tokens that stay whole wherever they stand in a text, for tokenizers that the `tokenizers` library does not run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import AddedToken

from server.text.tokenizer_files import TokenizerFiles


class WholeTokens:
    """Finds tokens by their spelling, longer ones first. added: how those that say so treat the white space at them."""

    def __init__(self, spellings: Iterable[str], added: Mapping[str, AddedToken]) -> None:
        ordered = sorted(set(spellings), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self._added = added

    def split(self, text: str) -> Iterator[tuple[str, int, bool]]:
        """(part, where it starts, whether it is a whole token) of a text, in order; parts may be empty."""
        at = 0
        for match in self._pattern.finditer(text):
            start, end, added = match.start(), match.end(), self._added.get(match[0])
            if start < at:
                continue  # swallowed by the white space of the token before
            left = text[at:start]
            yield (left.rstrip() if added and added.lstrip else left), at, False
            yield match[0], start, True
            if added and added.rstrip:
                end += len(text[end:]) - len(text[end:].lstrip())
            at = end
        yield text[at:], at, False


def added_tokens(files: TokenizerFiles, vocabulary: dict[str, int]) -> dict[int, AddedToken]:
    """Tokens beside the vocabulary; special ones that it lacks get the next free ids."""
    added = dict(files.added)
    known = {token.content for token in added.values()} | set(vocabulary)
    for token in (*files.roles.values(), *files.extra_special):
        if token.content not in known:
            added[max((*vocabulary.values(), *added)) + 1] = token
            known.add(token.content)
    return added
