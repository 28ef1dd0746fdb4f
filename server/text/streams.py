"""Decoders as streams: tokens go in one by one, text that no later token can change comes out.

A tokenizer's decoder is a chain of small steps over the whole list of tokens. Each class here is one such step for a
list that is still growing: what it has given is final, what is not certain yet it keeps until `finish`. Joined, a
stream's text is exactly the decoder's. Every step keeps a bounded rest, except that bytes spelled as tokens
(`<0xE2>`) are kept for as long as the run of them goes on, because one bad byte changes the whole run.

The steps are those of the `tokenizers` library: https://huggingface.co/docs/tokenizers/api/decoders.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownDecoder(ValueError):
    """A decoder that no stream exists for. The message names it."""


class TokenStream(Protocol):
    """Token ids to text. Not to be shared: it is the state of one answer."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""

    def finish(self) -> str:
        """What was still held back. Nothing may be pushed after it."""

    def fork(self) -> TokenStream:
        """A stream that goes on from here on its own."""


class TokenStep(Protocol):
    """A step while tokens are still apart: each gives the pieces that became certain.

    What a step of either kind keeps is replaced, never changed in place, so that a shallow copy goes on on its own.
    """

    def push(self, token: str) -> list[str]: ...

    def finish(self) -> list[str]: ...


class TextStep(Protocol):
    """A step over text."""

    def push(self, text: str) -> str: ...

    def finish(self) -> str: ...


class Chain:
    """Token steps, then text steps, as one: tokens (spelled as in the vocabulary) to text."""

    def __init__(self, token_steps: Sequence[TokenStep], text_steps: Sequence[TextStep]) -> None:
        self._token_steps = token_steps
        self._text_steps = text_steps

    def push(self, token: str) -> str:
        return _through_text(self._text_steps, _through_tokens(self._token_steps, [token]))

    def finish(self) -> str:
        text = ""
        for index, step in enumerate(self._token_steps):
            text += _through_text(self._text_steps, _through_tokens(self._token_steps[index + 1 :], step.finish()))
        for index, last in enumerate(self._text_steps):
            text += _through_text(self._text_steps[index + 1 :], last.finish())
        return text

    def fork(self) -> Chain:
        """A chain that goes on from here on its own."""
        return Chain([copy(step) for step in self._token_steps], [copy(step) for step in self._text_steps])


def _through_tokens(steps: Sequence[TokenStep], tokens: list[str]) -> str:
    for step in steps:
        tokens = step.push(tokens[0]) if len(tokens) == 1 else [piece for one in tokens for piece in step.push(one)]
    return tokens[0] if len(tokens) == 1 else "".join(tokens)


def _through_text(steps: Sequence[TextStep], text: str) -> str:
    for step in steps:
        if not text:
            break
        text = step.push(text)
    return text


# -------------------------------------------------------------------------------------------------------- token steps


class EachToken:
    """A change of one token that depends on it alone."""

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def push(self, token: str) -> list[str]:
        return [self._change(token)]

    def finish(self) -> list[str]:
        return []


class FirstToken:
    """One change for the first token of all, another for the rest."""

    def __init__(self, first: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._change, self._rest = first, rest

    def push(self, token: str) -> list[str]:
        change, self._change = self._change, self._rest
        return [change(token)]

    def finish(self) -> list[str]:
        return []


class LastToken:
    """One change for the last token of all, another for the rest: keeps one token."""

    def __init__(self, last: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._last, self._rest = last, rest
        self._kept: str | None = None

    def push(self, token: str) -> list[str]:
        kept, self._kept = self._kept, token
        return [] if kept is None else [self._rest(kept)]

    def finish(self) -> list[str]:
        return [] if self._kept is None else [self._last(self._kept)]


class ByteTokens:
    """`<0xE2>` and its like: a run of them is UTF-8, or else one U+FFFD for every byte of the run."""

    def __init__(self) -> None:
        self._run = b""

    def push(self, token: str) -> list[str]:
        byte = byte_of(token)
        if byte is None:
            return [*self.finish(), token]
        self._run += bytes([byte])
        return []

    def finish(self) -> list[str]:
        run, self._run = self._run, b""
        if not run:
            return []
        try:
            return [run.decode()]
        except UnicodeDecodeError:
            return ["\N{REPLACEMENT CHARACTER}"] * len(run)


def byte_of(token: str) -> int | None:
    """The byte that a token such as `<0xE2>` spells; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


class ByteLevel:
    """GPT-2's spelling of bytes as printable characters (Radford et al. 2019, section 2.2)."""

    def __init__(self) -> None:
        self._unfinished = b""

    def push(self, token: str) -> list[str]:
        data = self._unfinished + byte_level(token)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[used:]
        return [text]

    def finish(self) -> list[str]:
        data, self._unfinished = self._unfinished, b""
        return [data.decode("utf-8", "replace")]


@lru_cache(1 << 14)
def byte_level(token: str) -> bytes:
    """What a token spelled in `byte_alphabet` stands for; an added token is spelled as itself."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


@cache
def byte_alphabet() -> Mapping[str, int]:
    """The printable character of each byte: itself where it is printable in Latin-1, else one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


# --------------------------------------------------------------------------------------------------------- text steps


class Replaced:
    """Every `old` of the text replaced by `new`, from the left; keeps an end that may be the start of `old`."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._kept = ""

    def push(self, text: str) -> str:
        *done, rest = (self._kept + text).split(self._old)
        kept = next((size for size in range(len(self._old) - 1, 0, -1) if rest.endswith(self._old[:size])), 0)
        self._kept = rest[len(rest) - kept :]
        return self._new.join([*done, rest[: len(rest) - kept]])

    def finish(self) -> str:
        return self._kept


class Cut:
    """At most `start` leading and `stop` trailing characters `content` cut off."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._kept = ""

    def push(self, text: str) -> str:
        while self._start and text:
            if text[0] != self._content:
                self._start = 0
            else:
                text, self._start = text[1:], self._start - 1
        text = self._kept + text
        trailing = min(len(text) - len(text.rstrip(self._content)), self._stop)
        self._kept = text[len(text) - trailing :]
        return text[: len(text) - trailing]

    def finish(self) -> str:
        return ""


class Stripped:
    """White space at both ends cut off, as `str.strip` does."""

    def __init__(self) -> None:
        self._kept = ""
        self._started = False

    def push(self, text: str) -> str:
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        text = self._kept + text
        certain = text.rstrip()
        self._kept = text[len(certain) :]
        return certain

    def finish(self) -> str:
        return ""


def clean_up_steps() -> list[TextStep]:
    """The replacements of `clean_up_tokenization_spaces`, in their order."""
    return [Replaced(old, new) for old, new in _CLEAN_UP]


def clean_up(text: str) -> str:
    """The same for a whole text."""
    for old, new in _CLEAN_UP:
        text = text.replace(old, new)
    return text


_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
_WORD_PIECE_CLEAN_UP = (*_CLEAN_UP[:5], (" n't", "n't"), (" 'm", "'m"), (" do not", " don't"), *_CLEAN_UP[7:])

# -------------------------------------------------------------------------------------- from a tokenizer's own decoder


def decoder_chain(decoder: Mapping[str, Any] | None, further: Sequence[TextStep] = ()) -> Chain:
    """The stream of a decoder as `tokenizer.json` describes it, with further text steps behind.

    Raises UnknownDecoder for a step that no stream exists for.
    """
    if decoder is None:
        return Chain([FirstToken(str, lambda token: " " + token)], further)
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    token_steps: list[TokenStep] = []
    text_steps: list[TextStep] = []
    fused = False
    for part in parts:
        if part["type"] == "Fuse":
            fused = True
        elif fused:
            text_steps.append(_text_step(part))
        else:
            token_steps.append(_token_step(part))
            fused = part["type"] == "ByteLevel"
    return Chain(token_steps, [*text_steps, *further])


def _token_step(part: Mapping[str, Any]) -> TokenStep:
    match part:
        case {"type": "ByteLevel"}:
            return ByteLevel()
        case {"type": "ByteFallback"}:
            return ByteTokens()
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return EachToken(lambda token: token.replace(old, new))
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return EachToken(lambda token: _strip(token, content, start, stop))
        case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
            first = " " if scheme == "never" else ""
            return FirstToken(lambda token: token.replace(mark, first), lambda token: token.replace(mark, " "))
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            polish = _word_piece_clean_up if cleanup else str
            return FirstToken(polish, lambda token: polish(_word_piece(token, prefix)))
        case {"type": "BPEDecoder", "suffix": suffix}:
            return LastToken(lambda token: token.replace(suffix, ""), lambda token: token.replace(suffix, " "))
    raise UnknownDecoder(f"a tokenizer with the decoder {part.get('type')!r} is not supported")


def _text_step(part: Mapping[str, Any]) -> TextStep:
    match part:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return Replaced(old, new)
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return Cut(content, start, stop)
    raise UnknownDecoder(f"a tokenizer with the decoder {part.get('type')!r} after others is not supported")


def _word_piece(token: str, prefix: str) -> str:
    return token.removeprefix(prefix) if token.startswith(prefix) else " " + token


def _word_piece_clean_up(token: str) -> str:
    for old, new in _WORD_PIECE_CLEAN_UP:
        token = token.replace(old, new)
    return token


def _strip(token: str, content: str, start: int, stop: int) -> str:
    leading = min(len(token) - len(token.lstrip(content)), start)
    token = token[leading:]
    trailing = min(len(token) - len(token.rstrip(content)), stop)
    return token[: len(token) - trailing]
