"""Tokens of queries and documents for late interaction: markers, added tokens, and tokens without a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from server.ipc.wire.descriptions import LateInteractionInfo, TextSideInfo
from server.text.tokens.tokenizer import Encoding, Tokenizer
from server.text.tokens.truncation import TruncationSide, truncate


class NoSuchToken(ValueError):
    """A token that a checkpoint names for late interaction is not in its tokenizer. The message is one line."""


@dataclass(frozen=True)
class MadeTokens:
    """The tokens of one text.

    attended: number of leading tokens to which every token attends; 0 if every token attends to all tokens.
    is_shorter: whether the text was truncated.
    """

    ids: list[int]
    type_ids: list[int]
    attended: int
    is_shorter: bool


@dataclass(frozen=True)
class SideTokens:
    """How the texts of one side become tokens.

    prompt: text that is put before each text.
    marker: id of the token that is put after the first one, or None.
    max_tokens: longest text with all these tokens; None for the limit of the model.
    skipped_ids: tokens without a vector.
    filler: id of the tokens that a short text is filled up with, or None.
    filled_tokens: length to which a text is filled up; 0 for none.
    attends_to_filler: whether tokens attend to the filler.
    """

    prompt: str
    marker: int | None
    max_tokens: int | None
    skipped_ids: list[int]
    filler: int | None = None
    filled_tokens: int = 0
    attends_to_filler: bool = False

    def of(
        self, encoding: Encoding, limit: int, truncation: TruncationSide | None, max_text_tokens: int | None
    ) -> MadeTokens:
        """Truncate, mark and pad an encoded text, which begins with the prompt.

        limit: longest text that the model reads, in tokens.
        truncation: side on which a long text loses tokens, or None for no truncation.
        max_text_tokens: maximum number of tokens of the text, without special tokens; None for all that fit.
        """
        room = min(self.max_tokens or limit, limit) - (self.marker is not None)
        length = len(encoding.ids)
        if max_text_tokens is not None:
            encoding = truncate(encoding, max_text_tokens + sum(encoding.special), "right")
        if truncation is not None:
            encoding = truncate(encoding, room, truncation)
        is_shorter = len(encoding.ids) < length
        ids, type_ids = list(encoding.ids), list(encoding.type_ids)
        if self.marker is not None:
            ids[1:1], type_ids[1:1] = [self.marker], [0]
        missing = self.filled_tokens - len(ids)
        if self.filler is None or missing <= 0:
            return MadeTokens(ids, type_ids, 0, is_shorter)
        attended = 0 if self.attends_to_filler else len(ids)
        return MadeTokens(ids + [self.filler] * missing, type_ids + [0] * missing, attended, is_shorter)


@dataclass(frozen=True)
class LateInteractionSides:
    """The two sides of a model."""

    query: SideTokens
    document: SideTokens

    @classmethod
    def of(cls, info: LateInteractionInfo, tokenizer: Tokenizer) -> LateInteractionSides:
        """The sides of a model with this tokenizer. Raises NoSuchToken."""
        expansion, filler = info.expansion, None
        if expansion is not None:
            special = tokenizer.special
            filler = special.mask if special.mask is not None else special.eos
            if expansion.token:
                filler = _known(tokenizer, expansion.token)
            if filler is None:
                raise NoSuchToken("queries are filled up with mask tokens, but the tokenizer has no mask token")
        return cls(
            SideTokens(
                info.query.prompt,
                _known(tokenizer, info.query.marker) if info.query.marker else None,
                info.query.max_tokens,
                _skipped(tokenizer, info.query),
                filler,
                0 if expansion is None else expansion.length,
                expansion is not None and expansion.attended,
            ),
            SideTokens(
                info.document.prompt,
                _known(tokenizer, info.document.marker) if info.document.marker else None,
                info.document.max_tokens,
                _skipped(tokenizer, info.document),
            ),
        )


_SIDES: WeakKeyDictionary[Tokenizer, LateInteractionSides] = WeakKeyDictionary()
"""The sides of each model, by its tokenizer, which lives as long as the model is served."""


def sides_of(info: LateInteractionInfo, tokenizer: Tokenizer) -> LateInteractionSides:
    """The sides of a model with this tokenizer, computed once. Raises NoSuchToken."""
    if tokenizer not in _SIDES:
        _SIDES[tokenizer] = LateInteractionSides.of(info, tokenizer)
    return _SIDES[tokenizer]


def _known(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise NoSuchToken(f"the token {token!r}, which marks texts for late interaction, is not in the tokenizer")
    return found


def _skipped(tokenizer: Tokenizer, side: TextSideInfo) -> list[int]:
    """Ids of the tokens of queries, or of documents, that get no vector; ascending. Unknown tokens are left out."""
    entries = {tokenizer.token_to_id(token) for token in side.skipped_tokens} - {None, tokenizer.special.unk}
    texts: Sequence[Encoding] = ()
    if side.skipped_texts:
        texts = tokenizer.encode(list(side.skipped_texts), add_special_tokens=False, offsets=False)
    first = {encoding.ids[0] for encoding in texts if encoding.ids}
    return sorted(first | {entry for entry in entries if entry is not None})
