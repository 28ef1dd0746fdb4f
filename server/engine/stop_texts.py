"""Stop strings inside the engine, for beams: a hypothesis ends with the token that completes one.

A search has to know it, as it has to know end tokens: a text that was cut afterwards would carry the score of a longer
one. Looks at bytes: UTF-8 is self-synchronising, so that a string is in a text where its bytes are in the text's.
Knows how tokens are spelled; no scores, no beams.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Which texts a stop string ends.

    spelled: bytes of each token, by id; empty for one that is no text. stops: the strings, not empty.
    drops_space: whether a space that the text begins with is not part of it.
    """

    def __init__(self, spelled: Sequence[bytes], stops: Sequence[bytes], drops_space: bool) -> None:
        assert stops and all(stops)
        self._spelled = spelled
        self._stops = stops
        self._reach = max(map(len, stops)) - 1
        self._drops_space = drops_space

    def ends(self, tokens: Sequence[int], token: int) -> bool:
        """Whether `token` completes a stop string after `tokens`, which hold none."""
        text = self._spell(token)
        wanted = len(text) + self._reach + 1
        for earlier in reversed(tokens):
            # With one byte more than is looked at, what stands first is not the text's first space.
            if len(text) >= wanted:
                return self._holds_stop(text)
            text = self._spell(earlier) + text
        return self._holds_stop(text.removeprefix(b" ") if self._drops_space else text)

    def _holds_stop(self, text: bytes) -> bool:
        return any(stop in text for stop in self._stops)

    def _spell(self, token: int) -> bytes:
        return self._spelled[token] if token < len(self._spelled) else b""
