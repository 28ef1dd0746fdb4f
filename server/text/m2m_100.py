"""M2M100's tokenizer: pieces of `sentencepiece.bpe.model`, ids by `vocab.json`, and behind those a token per language.

A text is the token of its language, its pieces, and `</s>`. Fan et al. 2020, arXiv:2010.11125.
"""

from __future__ import annotations

from pathlib import Path

from server.text.fairseq import DEFAULT_SOURCE, LANGUAGES
from server.text.marian import PieceTokenizer, load_pieces
from server.text.tokenizer import TokenizerError
from server.text.tokenizer_files import TokenizerFiles, read_json


class M2M100Tokenizer(PieceTokenizer):
    """Texts begin with the language of `tokenizer_config.json`, else English, until a translation says otherwise."""

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        vocabulary: dict[str, int] = read_json(directory, "vocab.json")
        if not vocabulary:
            raise TokenizerError("vocab.json is missing or empty")
        named = str(files.config.get("language_codes") or "m2m100")
        if named not in ("m2m100", "wmt21"):
            raise TokenizerError(f"tokenizer_config.json: language_codes {named[:20]!r} is neither m2m100 nor wmt21")
        tokens = {f"__{code}__": len(vocabulary) + index for index, code in enumerate(LANGUAGES[named])}
        self._language = f"__{files.config.get('src_lang') or DEFAULT_SOURCE['m2m100']}__"
        if self._language not in tokens:
            raise TokenizerError(
                f"tokenizer_config.json: src_lang {self._language.strip('_')[:20]!r} is not a language of it"
            )
        pieces = load_pieces(directory, "sentencepiece.bpe.model")
        vocabulary = {**vocabulary, **tokens}
        super().__init__(pieces, pieces, vocabulary, vocabulary, files, special_gap="")
        # An answer begins with its language, which is no text even where the files do not list it as special.
        self.special_ids |= frozenset(tokens.values())

    def _around(self) -> tuple[list[str], list[str]]:
        return [self._language], super()._around()[1]
