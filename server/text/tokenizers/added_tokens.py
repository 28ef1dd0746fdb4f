"""Special and added tokens: add them to a tokenizer of the `tokenizers` library, or find them in a text without it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.tokenizer_files import TokenizerFiles


class AddedTokenSplitter:
    """Splits a text at added tokens. Of two tokens that begin at the same place, the longer one is found.

    contents: texts of the tokens.
    settings: settings of tokens, by their text. `lstrip` and `rstrip` remove the white space before or after a token.
    """

    def __init__(self, contents: Iterable[str], settings: Mapping[str, AddedToken]) -> None:
        ordered = sorted(set(contents), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self._settings = settings

    def split(self, text: str) -> Iterator[tuple[str, int, bool]]:
        """Yield (part, index of its first character, whether it is an added token), in order. Parts may be empty."""
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
    """Return the added tokens of a tokenizer, by id. Special tokens without an id get the next free ids.

    vocabulary: id of each token in the tokenizer's main vocabulary.
    """
    added = dict(files.added)
    known = {token.content for token in added.values()} | set(vocabulary)
    for token in (*files.roles.values(), *files.extra_special):
        if token.content not in known:
            added[max((*vocabulary.values(), *added)) + 1] = token
            known.add(token.content)
    return added


def add_in_order(backend: LibraryTokenizer, tokens: Iterable[AddedToken], special: Collection[str] = ()) -> None:
    """Add tokens to a tokenizer of the `tokenizers` library. New tokens get the next free ids, in this order.

    special: texts of tokens that are added as special tokens although they do not say so.
    Neighbouring tokens of the same sort are added in one call, because each call rebuilds the library's search tree.
    """
    for is_special, group in groupby(tokens, lambda token: token.special or token.content in special):
        (backend.add_special_tokens if is_special else backend.add_tokens)(list(group))
