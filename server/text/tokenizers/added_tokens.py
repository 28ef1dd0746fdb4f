"""Add special and added tokens to a tokenizer; find them in a text where the `tokenizers` library does not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.tokenizer_files import TokenizerFiles


class AddedTokenSplitter:
    """Splits a text at added tokens. Where two begin at the same place, the longer one is found.

    contents: text of the tokens.
    settings: by content, the tokens that state how to treat the white space next to them (`lstrip`, `rstrip`).
    """

    def __init__(self, contents: Iterable[str], settings: Mapping[str, AddedToken]) -> None:
        ordered = sorted(set(contents), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self._settings = settings

    def split(self, text: str) -> Iterator[tuple[str, int, bool]]:
        """Yield (part, start in characters, whether it is an added token) in order. Parts may be empty."""
        position = 0
        for match in self._pattern.finditer(text):
            start, end, token = match.start(), match.end(), self._settings.get(match[0])
            if start < position:
                continue  # this match is inside white space that the previous token consumed
            before = text[position:start]
            yield (before.rstrip() if token and token.lstrip else before), position, False
            yield match[0], start, True
            if token and token.rstrip:
                end += len(text[end:]) - len(text[end:].lstrip())
            position = end
        yield text[position:], position, False


def added_tokens_by_id(files: TokenizerFiles, vocabulary: Mapping[str, int]) -> dict[int, AddedToken]:
    """Tokens outside the vocabulary by id. Special tokens without an id get the next free ones."""
    added = dict(files.added)
    known = {token.content for token in added.values()} | set(vocabulary)
    for token in (*files.roles.values(), *files.extra_special):
        if token.content not in known:
            added[max((*vocabulary.values(), *added)) + 1] = token
            known.add(token.content)
    return added


def add_in_order(backend: LibraryTokenizer, tokens: Iterable[AddedToken], special: Collection[str] = ()) -> None:
    """Add tokens to a tokenizer of the library; new tokens get the next free ids in this order.

    special: text of further tokens that are added as special tokens.
    Tokens are added in as few calls as possible, because each call rebuilds the library's search for all of them.
    """
    for is_special, group in groupby(tokens, lambda token: token.special or token.content in special):
        (backend.add_special_tokens if is_special else backend.add_tokens)(list(group))
