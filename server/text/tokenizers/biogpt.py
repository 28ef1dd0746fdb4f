"""The tokenizer of BioGPT: English words of Moses, and byte-pair merges.

Every text begins with `</s>`. The punctuation of a text is not normalized before it is split, unlike in FSMT.
Source: Luo et al. 2022, arXiv:2210.10341; `BioGptTokenizer` of transformers.
"""

from __future__ import annotations

from pathlib import Path

from server.text.tokenizers.moses.join import WordJoiner
from server.text.tokenizers.moses.tables import WordTables
from server.text.tokenizers.moses.words import WordSplitter
from server.text.tokenizers.moses_pieces import MosesPieces
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_vocabulary


class BioGptTokenizer(MosesPieces):
    """The tokenizer of BioGPT, from the files `vocab.json` and `merges.txt`."""

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        vocabulary, english = read_vocabulary(directory, "vocab.json"), WordTables.of("en")
        super().__init__(
            directory,
            files,
            vocabulary=vocabulary,
            completions=vocabulary,
            splitter=WordSplitter(english, normalize_punctuation=False),
            joiner=WordJoiner(english),
            separator_first=True,
        )
