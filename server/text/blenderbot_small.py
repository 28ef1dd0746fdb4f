"""Blenderbot-small's tokenizer: byte-pair merges of lower-case words, whose inner pieces end in `@@`.

Sennrich et al. 2016, arXiv:1508.07909, as ParlAI cut its texts (Roller et al. 2020, arXiv:2004.13637). Nothing is put
around a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

from server.text.spelling import NoSpelling, Spelling
from server.text.streams import Stripped, TextStep, clean_up_steps
from server.text.tokenizer import Encoding, SpecialIds, TokenizerError
from server.text.tokenizer_files import TokenizerFiles, read_json
from server.text.whole_tokens import WholeTokens, added_tokens
from weights.resolve import file_in

# White space is Unicode's, which leaves out four separators that Python counts in.
_WORD = re.compile(r"[\S\x1c-\x1f]+\n?")
_SPACES = re.compile(r"[^\S\x1c-\x1f]{2,}")
_NOT_LAST, _LAST = "@@", "</w>"


class BlenderbotSmallTokenizer:
    """Ids by `vocab.json`, merges by `merges.txt`."""

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        self._vocabulary: dict[str, int] = read_json(directory, "vocab.json")
        path = file_in(directory, "merges.txt")
        if not self._vocabulary or path is None:
            raise TokenizerError(f"{'merges.txt' if self._vocabulary else 'vocab.json'} is missing or empty")
        try:
            lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
        except ValueError:
            raise TokenizerError("merges.txt is damaged: not text") from None
        self._ranks = {(first, second): rank for rank, (first, second) in enumerate(map(_pair, lines))}
        added = added_tokens(files, self._vocabulary)
        special = {token.content for token in (*files.roles.values(), *files.extra_special)}
        special |= {token.content for token in added.values() if token.special}
        ids = self._vocabulary | {token.content: index for index, token in added.items()}
        self._whole_ids = {token: ids[token] for token in special | {token.content for token in added.values()}}
        self._whole = WholeTokens(self._whole_ids, {token.content: token for token in added.values()})
        self._names = {index: token for token, index in ids.items()}
        self.special_ids = frozenset(ids[token] for token in special)
        self.special = SpecialIds(**{role: ids[token.content] for role, token in files.roles.items()})
        if self.special.unk is None:
            raise TokenizerError("vocab.json holds no token for unknown pieces")
        self._unk = self.special.unk
        self.vocab_size = max(self._names) + 1
        self.max_length = files.max_length
        self.marks_subwords = False
        self._clean_up = files.clean_up

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        groups = [(text,) for text in texts] if pairs is None else list(zip(texts, pairs, strict=True))
        return [self._encode(group, offsets) for group in groups]

    def _encode(self, group: tuple[str, ...], offsets: bool) -> Encoding:
        found = [piece for text in group for piece in self._pieces(text)]
        return Encoding(
            ids=[token_id for token_id, _, _ in found],
            type_ids=[0] * len(found),
            special=[False] * len(found),
            offsets=[(start, end) for _, start, end in found] if offsets else [],
            tokens=[self._names[token_id] for token_id, _, _ in found] if offsets else [],
        )

    def _pieces(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(token id, start, end) of each piece; a piece has the place of its whole word."""
        for part, at, is_whole in self._whole.split(text):
            if is_whole:
                yield self._whole_ids[part], at, at + len(part)
                continue
            for match in _WORD.finditer(part):
                for piece in self._cut(match[0]):
                    index = self._vocabulary.get(piece.lower(), self._unk)
                    yield index, at + match.start(), at + match.start() + len(match[0].rstrip("\n"))

    def _cut(self, word: str) -> Iterator[str]:
        """Marks apart from letters, a line break as a word, and each of those by its merges."""
        word = re.sub(r"([.,!?()])", r" \1", word)
        word = re.sub(r"(')", r" \1 ", word)
        word = _SPACES.sub(" ", word).replace("\n", " __newln__")
        for part in word.split(" "):
            if part:
                yield from self._merged(part.lower())

    def _merged(self, word: str) -> list[str]:
        parts = [*word[:-1], word[-1] + _LAST]
        while len(parts) > 1:
            pair = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if pair not in self._ranks:
                break
            joined: list[str] = []
            for part in parts:
                # A part that was joined just now ends no other pair.
                if joined and (joined[-1], part) == pair:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return [*(part + _NOT_LAST for part in parts[:-1]), parts[-1].removesuffix(_LAST)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        stream = self.stream(skip_special_tokens)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, skip_special_tokens: bool = True) -> _PieceStream:
        steps: list[TextStep] = [Stripped(), *(clean_up_steps() if self._clean_up else ())]
        return _PieceStream(self._names, self.special_ids if skip_special_tokens else frozenset(), steps)

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens).replace("@@ ", "").strip()

    @property
    def spelling(self) -> Spelling:
        raise NoSpelling("its words are joined by spaces that belong to no token")

    def id_to_token(self, token_id: int) -> str | None:
        return self._names.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._whole_ids.get(token, self._vocabulary.get(token))


class _PieceStream:
    """Pieces with a space after each, unless it ends in `@@`, which is text only at the end of all."""

    def __init__(self, names: dict[int, str], skipped: frozenset[int], steps: list[TextStep]) -> None:
        self._names, self._skipped, self._steps = names, skipped, steps
        self._held = ""

    def push(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._names.get(token_id)
        if token is None:
            return ""
        text = ("" if self._held == _NOT_LAST else self._held) + token
        self._held = _NOT_LAST if token.endswith(_NOT_LAST) else " "
        return self._through(text.removesuffix(_NOT_LAST), 0)

    def finish(self) -> str:
        text = self._through(self._held, 0)
        for index, step in enumerate(self._steps):
            text += self._through(step.finish(), index + 1)
        return text

    def fork(self) -> _PieceStream:
        other = _PieceStream(self._names, self._skipped, deepcopy(self._steps))
        other._held = self._held
        return other

    def _through(self, text: str, start: int) -> str:
        for step in self._steps[start:]:
            text = step.push(text) if text else ""
        return text


def _pair(line: str) -> tuple[str, str]:
    parts = line.split()
    if len(parts) != 2:
        raise TokenizerError("merges.txt is damaged: a line is no pair")
    return parts[0], parts[1]
