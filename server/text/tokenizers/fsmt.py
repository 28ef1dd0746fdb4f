"""The tokenizer of FSMT: texts are split into words by the rules of Moses, and words into pieces by byte-pair merges.

Source texts have token ids of `vocab-src.json`, and completions have ids of `vocab-tgt.json`; both use `merges.txt`.
Every source text ends with `</s>`.
Source: Ng et al. 2019, arXiv:1907.06616; `FSMTTokenizer` of transformers.
"""

from __future__ import annotations

from pathlib import Path

from server.text.tokenizers.moses.join import WordJoiner
from server.text.tokenizers.moses.tables import WordTables
from server.text.tokenizers.moses.words import WordSplitter
from server.text.tokenizers.moses_pieces import MosesPieces
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_json, read_vocabulary
from server.text.tokens.tokenizer import TokenizerError


class FsmtTokenizer(MosesPieces):
    """Tokenizer that reads `vocab-src.json`, `vocab-tgt.json`, `merges.txt`, and the language pair (`langs`).

    Raises TokenizerError for missing, damaged or too large files, for a missing language pair or special token, and if
    the package sacremoses is not installed.
    """

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        languages = language_pair(directory)
        if languages is None:
            raise TokenizerError('tokenizer_config.json: \'langs\' is not a pair of languages such as ["en", "ru"]')
        source, target = map(WordTables.of, languages)
        super().__init__(
            directory,
            files,
            vocabulary=read_vocabulary(directory, "vocab-src.json"),
            completions=read_vocabulary(directory, "vocab-tgt.json"),
            splitter=WordSplitter(source, lower_case=files.config.get("do_lower_case") is True),
            joiner=WordJoiner(target),
            separator_first=False,
        )


def language_pair(directory: Path) -> tuple[str, str] | None:
    """Return the (source, target) language codes in `langs` of the checkpoint's files; None if no file has a pair."""
    for name in ("tokenizer_config.json", "config.json"):
        codes = read_json(directory, name).get("langs")
        if isinstance(codes, list) and len(codes) == 2 and all(isinstance(code, str) for code in codes):
            return codes[0], codes[1]
    return None
