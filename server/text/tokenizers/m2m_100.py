"""The tokenizer of M2M100: `sentencepiece.bpe.model` splits texts into pieces, and `vocab.json` has their ids.

The ids of the language tokens follow the vocabulary. A text is encoded as the token of its language, its pieces, and
`</s>`. Source: Fan et al. 2020, arXiv:2010.11125.
"""

from __future__ import annotations

from pathlib import Path

from server.text.tokenizers.fairseq import DEFAULT_SOURCE, LANGUAGES
from server.text.tokenizers.marian import PieceTokenizer, load_pieces
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_vocabulary
from server.text.tokens.tokenizer import TokenizerError


class M2M100Tokenizer(PieceTokenizer):
    """Tokenizer whose texts begin with the language token of `src_lang` in `tokenizer_config.json`, else of English.

    A translation request replaces this token by the token of its source language.
    Raises TokenizerError for missing or damaged files, and for an unknown language.
    """

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        vocabulary = read_vocabulary(directory, "vocab.json")
        codes = str(files.config.get("language_codes") or "m2m100")
        if codes not in ("m2m100", "wmt21"):
            raise TokenizerError(f"tokenizer_config.json: language_codes is {codes[:20]!r}, not m2m100 or wmt21")
        tokens = {f"__{code}__": len(vocabulary) + index for index, code in enumerate(LANGUAGES[codes])}
        source = str(files.config.get("src_lang") or DEFAULT_SOURCE["m2m100"])
        self._language = f"__{source}__"
        if self._language not in tokens:
            raise TokenizerError(f"tokenizer_config.json: src_lang {source[:20]!r} is not a language of {codes}")
        pieces = load_pieces(directory, "sentencepiece.bpe.model")
        vocabulary = {**vocabulary, **tokens}
        super().__init__(pieces, pieces, vocabulary, vocabulary, files, gap="")
        # A completion begins with its language token, which is not text even where the files do not call it special.
        self.special_ids |= frozenset(tokens.values())

    def _around(self) -> tuple[list[str], list[str]]:
        return [self._language], super()._around()[1]
