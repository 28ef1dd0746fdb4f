"""One answer's tokens to text as they come, cut at the first stop string.

Text is given only when it is certain: not before a UTF-8 character is whole, not while a later token may still change
it, and not while it may be the beginning of a stop string. What was given, joined, is the final text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.text.spelling import Spelling
from server.text.streams import byte_of
from server.text.tokenizer import Tokenizer

_CONTEXT_TOKENS = 16


class IncrementalDetokenizer:
    """Not to be shared: it is the state of one answer.

    tokenizer: of the model that answers.
    prompt_ids: what the answer continues, so that a space between the two is kept; empty for an answer on its own,
        whose text then is `tokenizer.decode(ids)`.
    spelling: to spell tokens one by one, whatever the tokenizer's decoder would make of several together; then
        `show_names` says whether tokens that are no text, and not skipped, show by their names.
    stop: strings that end the answer; `include_stop` keeps the one that did in the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        spelling: Spelling | None = None,
        show_names: bool = True,
    ) -> None:
        self._stream = tokenizer.stream(skip_special_tokens)
        self._stop = StopStrings(stop, include_stop)
        self._promised = ""
        if spelling is not None:
            hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
            self._stream = spelling.stream(
                lambda token_id: None if token_id in hidden or not show_names else tokenizer.id_to_token(token_id),
                drop_space=spelling.opens_with_space and not prompt_ids,
            )
        elif prompt_ids:
            for token_id in _context(prompt_ids, tokenizer):
                self._stream.push(token_id)
            self._promised = self._stream.fork().finish()

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer; None while none did."""
        return self._stop.found

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that became certain with these tokens; empty once stopped."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """Text that became certain with this token; empty once stopped."""
        text = self._stream.push(token_id)
        return self._stop.push(self._new(text) if self._promised else text)

    def finish(self) -> str:
        """What was still held back. Nothing may be pushed after it."""
        return self._stop.push(self._new(self._stream.finish())) + self._stop.finish()

    def _new(self, text: str) -> str:
        """`text` without what the prompt alone would still have shown."""
        while self._promised and text:
            if self._promised[0] != text[0]:
                self._promised = ""
            else:
                self._promised, text = self._promised[1:], text[1:]
        return text


def _context(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """The end of a prompt, long enough to stand for all of it: several tokens that show as text, if it has any.

    It does not begin within bytes spelled as tokens, which only a whole run of them can be read from.
    """
    showing = 0
    for index in range(len(prompt_ids) - 1, -1, -1):
        token_id = prompt_ids[index]
        showing += token_id not in tokenizer.special_ids
        if showing >= _CONTEXT_TOKENS and byte_of(tokenizer.id_to_token(token_id) or "") is None:
            return prompt_ids[index:]
    return prompt_ids


class StopStrings:
    """Text up to the first stop string that is completed; of two completed at once, the longer.

    Each string is matched character by character with the table of Knuth, Morris and Pratt (1977), so that the work per
    character does not grow with the text, and an end that may still become a stop string is known at any time.
    """

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        self._strings = sorted({string for string in stop if string}, key=len, reverse=True)
        self._tables = [_borders(string) for string in self._strings]
        self._matched = [0] * len(self._strings)
        self._include = include
        self._kept = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        if self.found is not None or not text:
            return ""
        if not self._strings:
            return text
        text = self._kept + text
        for index in range(len(self._kept), len(text)):
            self._advance(text[index])
            if self.found is not None:
                self._kept = ""
                return text[: index + 1 if self._include else index + 1 - len(self.found)]
        certain = len(text) - max(self._matched)
        self._kept = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        kept, self._kept = self._kept, ""
        return kept

    def _advance(self, character: str) -> None:
        for which, string in enumerate(self._strings):
            matched, table = self._matched[which], self._tables[which]
            while matched and string[matched] != character:
                matched = table[matched - 1]
            matched += string[matched] == character
            if matched == len(string) and self.found is None:
                self.found = string
                matched = table[matched - 1]
            self._matched[which] = matched


def _borders(string: str) -> list[int]:
    """For each beginning of `string`, the length of its longest proper beginning that is also its end."""
    table = [0] * len(string)
    matched = 0
    for index in range(1, len(string)):
        while matched and string[index] != string[matched]:
            matched = table[matched - 1]
        matched += string[index] == string[matched]
        table[index] = matched
    return table
