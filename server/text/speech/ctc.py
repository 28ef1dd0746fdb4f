"""Greedy CTC decoding: turn the likeliest label of each output frame of a model into tokens and words.

Equal labels in a row are one token, unless a blank is between them. Same results as the tokenizer of wav2vec 2.0 in
transformers 5. Source: Graves et al. 2006, connectionist temporal classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from server.text.speech.untimed_speech import check_log_mel, normalizes_samples
from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import Tokenizer, TokenizerError

DEFAULT_DELIMITER = "|"
WORD_START = "▁"
"""First character of a subword that begins a word (SentencePiece)."""
SUBWORD_FAMILIES = frozenset({"parakeet_ctc"})
"""Values of `model_type` for models whose labels are subwords, and whose encoder reads log-mel frames."""


@dataclass(frozen=True)
class CtcToken:
    """One token of a transcript.

    first, end: range [first, end) of the labels that are this token, as indices into the labels of the recording.
    """

    token_id: int
    first: int
    end: int


@dataclass(frozen=True)
class CtcTokens:
    """Token ids and settings of a checkpoint with a CTC head.

    blank: token id of the blank, the label for audio without a token.
    delimiter: token id of the delimiter between two words; None for a vocabulary without a delimiter.
    special: token ids of the special tokens, which are no text.
    normalizes: whether the model expects samples with mean 0 and variance 1.
    starts: ids of the tokens that begin a word, for a vocabulary of subwords; empty for a vocabulary of characters.
    """

    blank: int
    delimiter: int | None
    special: frozenset[int]
    normalizes: bool
    starts: frozenset[int] = frozenset()

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> CtcTokens:
        """Read the tokens from the tokenizer's files, and the audio settings from `preprocessor_config.json`.

        Raises TokenizerError for a missing blank, and for settings that are not supported.
        """
        config = read_json(directory, "config.json")
        blank = config.get("pad_token_id") if tokenizer.special.pad is None else tokenizer.special.pad
        if not isinstance(blank, int) or isinstance(blank, bool):
            raise TokenizerError("a model with a CTC head needs a pad token, which is its blank label")
        if config.get("model_type") in SUBWORD_FAMILIES:
            check_log_mel(directory, config)
            pieces = [tokenizer.id_to_token(token) or "" for token in range(tokenizer.vocab_size)]
            starts = frozenset(token for token, piece in enumerate(pieces) if piece.startswith(WORD_START))
            return cls(blank, None, frozenset(tokenizer.special_ids), False, starts)
        name = read_json(directory, "tokenizer_config.json").get("word_delimiter_token", DEFAULT_DELIMITER)
        normalizes = normalizes_samples(directory)
        delimiter = tokenizer.token_to_id(name) if isinstance(name, str) else None
        return cls(blank, delimiter, tokenizer.special_ids - {delimiter}, normalizes)

    def collapse(self, labels: Sequence[int], first: int = 0) -> list[CtcToken]:
        """Collapse labels into tokens, without blanks and special tokens.

        labels: one label per output frame. first: index of the first label in the recording.
        """
        found, place = [], first
        for label, repeated in groupby(labels):
            end = place + sum(1 for _ in repeated)
            if label != self.blank and label not in self.special:
                found.append(CtcToken(label, place, end))
            place = end
        return found

    def words(self, tokens: Sequence[CtcToken]) -> list[list[CtcToken]]:
        """Group the tokens of a transcript by word. Delimiters are left out."""
        if self.starts:
            found: list[list[CtcToken]] = []
            for token in tokens:
                if not found or token.token_id in self.starts:
                    found.append([])
                found[-1].append(token)
            return found
        parts = groupby(tokens, lambda token: token.token_id == self.delimiter)
        return [list(part) for is_delimiter, part in parts if not is_delimiter]
