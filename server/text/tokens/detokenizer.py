"""Incremental detokenization of one completion, up to the first stop string.

Text is returned only when it is final. Incomplete UTF-8 characters, text that a later token may change, and a possible
beginning of a stop string are held back. The concatenation of all returned text is the final text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.text.tokens.streams import byte_of
from server.text.tokens.token_bytes import TokenBytes
from server.text.tokens.tokenizer import Tokenizer

_CONTEXT_TOKENS = 16


class IncrementalDetokenizer:
    """Turns the tokens of one completion into text, as they come.

    tokenizer: tokenizer of the model.
    prompt_ids: token ids of the prompt that the completion continues, so that a space between the two is kept. Empty
        for a completion without a prompt, whose text is `tokenizer.decode(ids)`.
    skip_special_tokens: whether special tokens add no text.
    stop: strings that end the completion.
    include_stop: whether the text ends with the stop string that was found.
    token_bytes: bytes of each token, by which to decode instead of the tokenizer's decoder; None for the decoder.
    show_names: with `token_bytes`, whether a token without bytes (a special token) is shown by its name, unless
        special tokens are skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        token_bytes: TokenBytes | None = None,
        show_names: bool = True,
    ) -> None:
        self._stream = tokenizer.stream(skip_special_tokens)
        self._stop = StopStrings(stop, include_stop)
        self._prompt_rest = ""
        if token_bytes is not None:
            hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
            self._stream = token_bytes.stream(
                lambda token_id: None if token_id in hidden or not show_names else tokenizer.id_to_token(token_id),
                drop_space=token_bytes.opens_with_space and not prompt_ids,
            )
        elif prompt_ids:
            for token_id in _context(prompt_ids, tokenizer):
                self._stream.push(token_id)
            self._prompt_rest = self._stream.fork().finish()

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the completion; None if none was found."""
        return self._stop.found

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens. Returns the text that became final; empty after a stop string."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """Add a token. Returns the text that became final; empty after a stop string."""
        text = self._stream.push(token_id)
        return self._stop.push(self._without_prompt(text) if self._prompt_rest else text)

    def finish(self) -> str:
        """Return the text that was held back. Nothing may be pushed afterwards."""
        return self._stop.push(self._without_prompt(self._stream.finish())) + self._stop.finish()

    def flush(self) -> str:
        """Return the text that is held back so far. To be called before a special token that is reported separately.

        The special token must not be pushed. Other tokens may be pushed afterwards.
        """
        held = self._stream.fork().finish()
        text, self._prompt_rest = self._without_prompt(held), held
        return self._stop.push(text) + self._stop.finish()

    def _without_prompt(self, text: str) -> str:
        """Remove the held-back text of the prompt from the beginning of the completion's text."""
        while self._prompt_rest and text:
            if self._prompt_rest[0] != text[0]:
                self._prompt_rest = ""
            else:
                self._prompt_rest, text = self._prompt_rest[1:], text[1:]
        return text


def _context(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """Return the end of a prompt: its last 16 tokens that are not special, and the special tokens between them.

    The end is longer if it would start with a byte token, because a run of byte tokens can only be decoded as a whole.
    A shorter prompt is returned whole.
    """
    num_text_tokens = 0
    for index in range(len(prompt_ids) - 1, -1, -1):
        token_id = prompt_ids[index]
        num_text_tokens += token_id not in tokenizer.special_ids
        if num_text_tokens >= _CONTEXT_TOKENS and byte_of(tokenizer.id_to_token(token_id) or "") is None:
            return prompt_ids[index:]
    return prompt_ids


class StopStrings:
    """Passes text through up to the first complete stop string.

    If two stop strings end at the same place, the longer one is taken. Each is matched character by character with the
    algorithm of Knuth, Morris and Pratt (1977), so that the work per character does not grow with the text.

    stop: the stop strings.
    include: whether the text ends with the stop string that was found.
    found: the stop string that was found; None until one is found.
    """

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        self._strings = sorted({string for string in stop if string}, key=len, reverse=True)
        self._border_tables = [_borders(string) for string in self._strings]
        self._matched = [0] * len(self._strings)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        if self.found is not None or not text:
            return ""
        if not self._strings:
            return text
        text = self._held + text
        for index in range(len(self._held), len(text)):
            self._advance(text[index])
            if self.found is not None:
                self._held = ""
                return text[: index + 1 if self._include else index + 1 - len(self.found)]
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text that was held back. A stop string is not found across this call."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._strings)
        return held

    def _advance(self, character: str) -> None:
        for index, string in enumerate(self._strings):
            matched, table = self._matched[index], self._border_tables[index]
            while matched and string[matched] != character:
                matched = table[matched - 1]
            matched += string[matched] == character
            if matched == len(string) and self.found is None:
                self.found = string
                matched = table[matched - 1]
            self._matched[index] = matched


def _borders(string: str) -> list[int]:
    """For each prefix of `string`, return the length of the longest shorter prefix that is also its suffix."""
    table = [0] * len(string)
    matched = 0
    for index in range(1, len(string)):
        while matched and string[index] != string[matched]:
            matched = table[matched - 1]
        matched += string[index] == string[matched]
        table[index] = matched
    return table
