"""The tokenizer of Blenderbot-small: byte-pair merges of lower-case words.

A piece ends in `@@` unless it is the last piece of its word. No special tokens are added around a text.
Sources: Sennrich et al. 2016, arXiv:1508.07909; ParlAI's implementation (Roller et al. 2020, arXiv:2004.13637).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from server.text.tokenizers.added_tokens import AddedTokenSplitter, added_tokens_by_id
from server.text.tokenizers.byte_pairs import BytePairs
from server.text.tokenizers.python_tokenizer import PythonTokenizer, TokenSpan
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_vocabulary
from server.text.tokens.streams import ReplaceText, StripWhitespace, VocabularyStream, clean_up_steps, decoder_chain
from server.text.tokens.token_bound import bound_of_pieces
from server.text.tokens.token_bytes import NoTokenBytes, TokenBytes
from server.text.tokens.tokenizer import SpecialIds, TokenizerError
from weights.resolve import file_in

# White space as Unicode defines it. Python's \s also contains the four separators U+001C to U+001F.
_WORD = re.compile(r"[\S\x1c-\x1f]+\n?")
_SPACES = re.compile(r"[^\S\x1c-\x1f]{2,}")
_CONTINUES, _WORD_END = "@@", "</w>"


class BlenderbotSmallTokenizer(PythonTokenizer):
    """Tokenizer that reads its ids from `vocab.json` and its merges from `merges.txt`.

    Raises TokenizerError for a missing or damaged file, and for a vocabulary without an unknown token.
    """

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        self._vocabulary = read_vocabulary(directory, "vocab.json")
        path = file_in(directory, "merges.txt")
        if path is None:
            raise TokenizerError("merges.txt is missing or empty")
        try:
            lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
        except ValueError:
            raise TokenizerError("merges.txt is damaged: not UTF-8 text") from None
        self._pairs = BytePairs(map(_read_merge, lines))
        added = added_tokens_by_id(files, self._vocabulary)
        special = {token.content for token in (*files.roles.values(), *files.extra_special)}
        special |= {token.content for token in added.values() if token.special}
        ids = self._vocabulary | {token.content: index for index, token in added.items()}
        self._added_ids = {token: ids[token] for token in special | {token.content for token in added.values()}}
        self._splitter = AddedTokenSplitter(self._added_ids, {token.content: token for token in added.values()})
        self._tokens = {index: token for token, index in ids.items()}
        self.special_ids = frozenset(ids[token] for token in special)
        self.special = SpecialIds(**{role: ids[token.content] for role, token in files.roles.items()})
        if self.special.unk is None:
            raise TokenizerError("vocab.json has no unknown token (unk_token)")
        self._unk = self.special.unk
        self.vocab_size = max(self._tokens) + 1
        self.token_bound = bound_of_pieces(self._added_ids)
        self.max_length = files.max_length
        self._clean_up = files.clean_up

    def spans(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Iterator[TokenSpan]:
        """Yield the tokens of each text. All pieces of a word have the range of the whole word."""
        for text in group:
            for part, start, is_added in self._splitter.split(text):
                if is_added:
                    yield TokenSpan(self._added_ids[part], start, start + len(part))
                    continue
                for match in _WORD.finditer(part):
                    first, last = start + match.start(), start + match.start() + len(match[0].rstrip("\n"))
                    for piece in self._pieces(match[0]):
                        token_id = self._vocabulary.get(piece.lower(), self._unk)
                        yield TokenSpan(token_id, first, last)

    def _pieces(self, text: str) -> Iterator[str]:
        """Yield the pieces of a run of text without white space. Punctuation and a line break are separate words."""
        text = re.sub(r"([.,!?()])", r" \1", text)
        text = re.sub(r"(')", r" \1 ", text)
        text = _SPACES.sub(" ", text).replace("\n", " __newln__")
        for word in text.split(" "):
            if word:
                yield from self._merge(word.lower())

    def _merge(self, word: str) -> list[str]:
        parts = self._pairs.merge([*word[:-1], word[-1] + _WORD_END])
        return [*(part + _CONTINUES for part in parts[:-1]), parts[-1].removesuffix(_WORD_END)]

    def stream(self, skip_special_tokens: bool = True) -> VocabularyStream:
        clean_up = clean_up_steps() if self._clean_up else ()
        chain = decoder_chain(None, [ReplaceText(f"{_CONTINUES} ", ""), StripWhitespace(), *clean_up])
        return VocabularyStream(self._tokens.get, chain, self.special_ids if skip_special_tokens else frozenset())

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens).replace(f"{_CONTINUES} ", "").strip()

    @property
    def token_bytes(self) -> TokenBytes:
        raise NoTokenBytes("its words are separated by spaces that belong to no token")

    def id_to_token(self, token_id: int) -> str | None:
        return self._tokens.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._added_ids.get(token, self._vocabulary.get(token))


def _read_merge(line: str) -> tuple[str, str]:
    parts = line.split()
    if len(parts) != 2:
        raise TokenizerError("merges.txt is damaged: a line does not hold two pieces")
    return parts[0], parts[1]
