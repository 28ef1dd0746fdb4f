"""Base class of tokenizers that find words by the rules of the Moses toolkit, and split them by byte-pair merges.

The last piece of a word ends in `</w>`. `merges.txt` has the merges, with the frequency of each pair after it.
Source: `FSMTTokenizer` and `BioGptTokenizer` of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from server.text.tokenizers.added_tokens import AddedTokenSplitter, added_tokens_by_id
from server.text.tokenizers.bounds import (
    MAX_MERGES,
    check_lines,
    read_bounded,
)
from server.text.tokenizers.byte_pairs import BytePairs
from server.text.tokenizers.moses.join import WordJoiner
from server.text.tokenizers.moses.words import WordSplitter
from server.text.tokenizers.python_tokenizer import PythonTokenizer, TokenSpan
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.streams import DecoderChain, MapTokens, StripWhitespace, VocabularyStream, clean_up_steps
from server.text.tokens.token_bound import MosesBound
from server.text.tokens.token_bytes import NoTokenBytes, TokenBytes
from server.text.tokens.tokenizer import SpecialIds, TokenizerError
from weights.resolve import file_in

_WORD_END = "</w>"


class MosesPieces(PythonTokenizer):
    """Encodes texts with one vocabulary and decodes completions with another, or with the same one.

    directory: has `merges.txt`.
    vocabulary: ids of the pieces of a text.
    completions: ids of the pieces of a completion.
    separator_first: whether `</s>` stands before each text, not after it.
    Raises TokenizerError if `merges.txt` is missing or damaged, or the vocabulary lacks `<unk>` or `</s>`.
    """

    def __init__(
        self,
        directory: Path,
        files: TokenizerFiles,
        *,
        vocabulary: Mapping[str, int],
        completions: Mapping[str, int],
        splitter: WordSplitter,
        joiner: WordJoiner,
        separator_first: bool,
    ) -> None:
        self._vocabulary, self._separator_first = vocabulary, separator_first
        self._pairs = _merges(directory)
        self._splitter, self._joiner = splitter, joiner
        added = added_tokens_by_id(files, vocabulary)
        special = {token.content for token in (*files.roles.values(), *files.extra_special)}
        special |= {token.content for token in added.values() if token.special}
        ids = {**vocabulary, **{token.content: index for index, token in added.items()}}
        self._added_ids = {token: ids[token] for token in special | {token.content for token in added.values()}}
        self._parts = AddedTokenSplitter(self._added_ids, {token.content: token for token in added.values()})
        self._tokens = {index: token for token, index in (*completions.items(), *self._added_ids.items())}
        self.special_ids = frozenset(ids[token] for token in special)
        self.special = SpecialIds(**{role: ids[token.content] for role, token in files.roles.items()})
        if self.special.unk is None or self.special.sep is None:
            raise TokenizerError("the vocabulary has no unknown token (unk_token) or no separator (sep_token)")
        self._unk, self._separator = self.special.unk, self.special.sep
        self.vocab_size = max(*ids.values(), *self._tokens) + 1
        self.token_bound = MosesBound()
        self.max_length = files.max_length
        self._clean_up = files.clean_up

    def spans(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Iterator[TokenSpan]:
        """Yield the tokens of each text. All pieces of a word have the range of the whole word."""
        for text in group:
            if add_special_tokens and self._separator_first:
                yield TokenSpan(self._separator, special=True)
            for part, at, is_added in self._parts.split(text):
                if is_added:
                    yield TokenSpan(self._added_ids[part], at, at + len(part))
                    continue
                for word, start, end in self._splitter.words(part, offsets):
                    for piece in self._pairs.merge([*word[:-1], word[-1] + _WORD_END]):
                        yield TokenSpan(self._vocabulary.get(piece, self._unk), at + start, at + end)
            if add_special_tokens and not self._separator_first:
                yield TokenSpan(self._separator, special=True)

    def stream(self, skip_special_tokens: bool = True) -> VocabularyStream:
        words = MapTokens(lambda token: token.replace(" ", "").replace(_WORD_END, " "))
        steps = [self._joiner.step(), StripWhitespace(), *(clean_up_steps() if self._clean_up else ())]
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return VocabularyStream(self._tokens.get, DecoderChain([words], steps), skipped)

    def join(self, tokens: Sequence[str]) -> str:
        step = self._joiner.step()
        text = "".join(token.replace(" ", "").replace(_WORD_END, " ") for token in tokens)
        return (step.push(text) + step.finish()).strip()

    @property
    def token_bytes(self) -> TokenBytes:
        raise NoTokenBytes("its words are separated by spaces that belong to no token")

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token with this id in the vocabulary of completions; None for an unused id."""
        return self._tokens.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary of texts; None for an unknown token."""
        return self._added_ids.get(token, self._vocabulary.get(token))


def _merges(directory: Path) -> BytePairs:
    path = file_in(directory, "merges.txt")
    if path is None:
        raise TokenizerError("merges.txt is missing")
    content = read_bounded(path)
    check_lines(content, "merges.txt", MAX_MERGES)
    try:
        lines = content.decode().split("\n")[:-1]
    except ValueError:
        raise TokenizerError("merges.txt is damaged: not UTF-8 text") from None
    # A line of fairseq's file has the frequency of the pair after it.
    pairs = [tuple(line.split()[:2]) for line in lines]
    if any(len(pair) != 2 for pair in pairs):
        raise TokenizerError("merges.txt is damaged: a line does not hold two pieces")
    return BytePairs((pair[0], pair[1]) for pair in pairs)
