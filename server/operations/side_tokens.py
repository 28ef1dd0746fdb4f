"""Tokenize queries and documents for late interaction: with markers, filler tokens, and tokens without a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from server.ipc.wire.descriptions import LateInteractionInfo, TextSideInfo
from server.text.tokens.tokenizer import Encoding, Tokenizer
from server.text.tokens.truncation import TruncationSide, truncate


class NoSuchToken(ValueError):
    """Error: a token that a checkpoint needs for late interaction is not in its tokenizer. The message is one line."""


@dataclass(frozen=True)
class MadeTokens:
    """The tokens of one text, ready for the model.

    attended: number of leading tokens that all tokens attend to; 0 if all tokens attend to all tokens.
    is_shorter: whether the text was truncated.
    """

    ids: list[int]
    type_ids: list[int]
    attended: int
    is_shorter: bool


@dataclass(frozen=True)
class SideTokens:
    """The rules by which queries, or documents, are tokenized.

    prompt: text that is put before each text.
    marker: id of the token that is inserted after the first token; None if no token is inserted.
    max_tokens: maximum length of a text with all added tokens; None for the limit of the model.
    skipped_ids: ids of tokens that get no vector.
    filler: id of the token by which short texts are padded; None if they are not padded.
    filled_tokens: length to which short texts are padded; 0 for no padding.
    attends_to_filler: whether tokens attend to the padding.
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

        limit: maximum number of tokens that the model reads.
        truncation: side on which a long text loses tokens, or None for no truncation.
        max_text_tokens: maximum number of tokens to keep, prompt included but not special tokens; None for all.
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
    """The tokenizing rules of a model for its two kinds of texts: queries and documents."""

    query: SideTokens
    document: SideTokens

    @classmethod
    def of(cls, info: LateInteractionInfo, tokenizer: Tokenizer) -> LateInteractionSides:
        """Create the rules of a model. Raises NoSuchToken if its tokenizer lacks a marker or filler token."""
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
"""Tokenizer to the rules of its model. An entry lasts as long as the tokenizer, that is, while the model is loaded."""


def sides_of(info: LateInteractionInfo, tokenizer: Tokenizer) -> LateInteractionSides:
    """The rules of a model, which are computed once for each tokenizer.

    Raises NoSuchToken if the tokenizer lacks a marker or filler token.
    """
    if tokenizer not in _SIDES:
        _SIDES[tokenizer] = LateInteractionSides.of(info, tokenizer)
    return _SIDES[tokenizer]


def _known(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise NoSuchToken(f"the token {token!r}, which marks texts for late interaction, is not in the tokenizer")
    return found


def _skipped(tokenizer: Tokenizer, side: TextSideInfo) -> list[int]:
    """Ids of the tokens without a vector, ascending. Tokens that the tokenizer does not have are left out.

    side: describes the texts, which are queries or documents.
    """
    entries = {tokenizer.token_to_id(token) for token in side.skipped_tokens} - {None, tokenizer.special.unk}
    texts: Sequence[Encoding] = ()
    if side.skipped_texts:
        texts = tokenizer.encode(list(side.skipped_texts), add_special_tokens=False, offsets=False)
    first = {encoding.ids[0] for encoding in texts if encoding.ids}
    return sorted(first | {entry for entry in entries if entry is not None})
