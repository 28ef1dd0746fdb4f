"""Stop strings for beam search: a hypothesis ends with the token that completes a stop string.

The search must end the hypothesis itself: a text that is cut later would have the score of a longer one. The search
compares bytes, which is exact because UTF-8 is self-synchronising.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Finds stop strings in token sequences.

    token_bytes: bytes of each token, by id; empty for special tokens.
    stops: the stop strings as UTF-8; not empty.
    drops_space: whether a space at the beginning of a token sequence is not part of the text, as with some tokenizers.
    """

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[bytes], drops_space: bool) -> None:
        assert stops and all(stops)
        self._token_bytes = token_bytes
        self._stops = stops
        self._reach = max(map(len, stops)) - 1
        self._drops_space = drops_space

    def ends(self, tokens: Sequence[int], token: int) -> bool:
        """Whether `token` completes a stop string after `tokens`, which contain none."""
        text = self._bytes_of(token)
        needed = len(text) + self._reach + 1
        for earlier in reversed(tokens):
            # One more byte than needed, so that a first space in `text` is not the leading space of the whole text.
            if len(text) >= needed:
                return self._holds_stop(text)
            text = self._bytes_of(earlier) + text
        return self._holds_stop(text.removeprefix(b" ") if self._drops_space else text)

    def _holds_stop(self, text: bytes) -> bool:
        return any(stop in text for stop in self._stops)

    def _bytes_of(self, token: int) -> bytes:
        return self._token_bytes[token] if token < len(self._token_bytes) else b""
