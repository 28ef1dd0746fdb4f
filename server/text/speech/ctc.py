"""Labels of a model with a CTC head: from the likeliest label of each part of a recording to tokens and words.

Repeated labels are one token, unless a blank is between them. As the tokenizer of wav2vec 2.0 in `transformers` 5.
Source: Graves et al. 2006, connectionist temporal classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import Tokenizer, TokenizerError

SAMPLE_RATE = 16_000
DEFAULT_DELIMITER = "|"


@dataclass(frozen=True)
class CtcToken:
    """One token of a transcript.

    first: index of its first label among the labels of the recording. end: index after its last label.
    """

    token_id: int
    first: int
    end: int


@dataclass(frozen=True)
class CtcTokens:
    """Token ids and settings of a checkpoint with a CTC head.

    blank: token id of the blank, the label of audio without a token.
    delimiter: token id of the delimiter between two words; None for a vocabulary without words.
    special: token ids of the special tokens, which are no text.
    normalizes: whether the model expects samples with mean 0 and variance 1.
    """

    blank: int
    delimiter: int | None
    special: frozenset[int]
    normalizes: bool

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> CtcTokens:
        """Read the tokens from the tokenizer's files, and the rest from `preprocessor_config.json`.

        Raises TokenizerError for a missing blank, and for settings that are not supported.
        """
        config = read_json(directory, "config.json")
        blank = config.get("pad_token_id") if tokenizer.special.pad is None else tokenizer.special.pad
        if not isinstance(blank, int) or isinstance(blank, bool):
            raise TokenizerError("a model with a CTC head needs a pad token, which is its blank label")
        name = read_json(directory, "tokenizer_config.json").get("word_delimiter_token", DEFAULT_DELIMITER)
        features = read_json(directory, "preprocessor_config.json")
        for setting, supported in (("sampling_rate", SAMPLE_RATE), ("feature_size", 1)):
            if features.get(setting, supported) != supported:
                raise TokenizerError(f"preprocessor_config.json: {setting!r} must be {supported:,}")
        normalizes = features.get("do_normalize", True)
        if not isinstance(normalizes, bool):
            raise TokenizerError("preprocessor_config.json: 'do_normalize' must be true or false")
        delimiter = tokenizer.token_to_id(name) if isinstance(name, str) else None
        return cls(blank, delimiter, tokenizer.special_ids - {delimiter}, normalizes)

    def collapse(self, labels: Sequence[int], first: int = 0) -> list[CtcToken]:
        """The tokens of some labels, without blanks and special tokens. first: index of the first label."""
        found, place = [], first
        for label, repeated in groupby(labels):
            end = place + sum(1 for _ in repeated)
            if label != self.blank and label not in self.special:
                found.append(CtcToken(label, place, end))
            place = end
        return found

    def words(self, tokens: Sequence[CtcToken]) -> list[list[CtcToken]]:
        """The tokens of each word, without delimiters."""
        parts = groupby(tokens, lambda token: token.token_id == self.delimiter)
        return [list(part) for is_delimiter, part in parts if not is_delimiter]
