"""Incremental decoders: they take one token id at a time, and return the text that later tokens cannot change.

The decoder of a tokenizer is a chain of steps over the whole list of tokens. Each step class here does one such step
while the list still grows. Its output is final; text that may still change is held back until `finish`. The
concatenated output equals the decoder's text exactly. Little text is held back, with one exception: a run of byte
tokens (`<0xE2>`) is held back as a whole, because one invalid byte changes the text of the whole run.

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
    """A decoder of `tokenizer.json` has no incremental version here. The message names the decoder."""


class TokenStream(Protocol):
    """Incremental decoder of one completion: token ids to text."""

    def push(self, token_id: int) -> str:
        """Add a token. Returns the text that became final."""

    def finish(self) -> str:
        """Return the text that was held back. Nothing may be pushed afterwards."""

    def fork(self) -> TokenStream:
        """Return an independent stream in the same state."""


class TokenStep(Protocol):
    """One step of a decoder that turns tokens into tokens. Each call returns the tokens that became final.

    Values of attributes are replaced and never changed in place, so that a shallow copy of a step is independent.
    """

    def push(self, token: str) -> list[str]: ...

    def finish(self) -> list[str]: ...


class TextStep(Protocol):
    """One step of a decoder that changes text, after the tokens are concatenated. Calls return the final text.

    Values of attributes are replaced and never changed in place, so that a shallow copy of a step is independent.
    """

    def push(self, text: str) -> str: ...

    def finish(self) -> str: ...


class DecoderChain:
    """A decoder from tokens (vocabulary entries) to text: token steps, then text steps on the concatenated tokens."""

    def __init__(self, token_steps: Sequence[TokenStep], text_steps: Sequence[TextStep]) -> None:
        self._token_steps = token_steps
        self._text_steps = text_steps

    def push(self, token: str) -> str:
        return _push_text(self._text_steps, _push_tokens(self._token_steps, [token]))

    def finish(self) -> str:
        text = ""
        for index, step in enumerate(self._token_steps):
            text += _push_text(self._text_steps, _push_tokens(self._token_steps[index + 1 :], step.finish()))
        for index, last in enumerate(self._text_steps):
            text += _push_text(self._text_steps[index + 1 :], last.finish())
        return text

    def fork(self) -> DecoderChain:
        """Return an independent copy in the same state."""
        return DecoderChain([copy(step) for step in self._token_steps], [copy(step) for step in self._text_steps])


def _push_tokens(steps: Sequence[TokenStep], tokens: list[str]) -> str:
    for step in steps:
        tokens = step.push(tokens[0]) if len(tokens) == 1 else [part for token in tokens for part in step.push(token)]
    return tokens[0] if len(tokens) == 1 else "".join(tokens)


def _push_text(steps: Sequence[TextStep], text: str) -> str:
    for step in steps:
        if not text:
            break
        text = step.push(text)
    return text


class VocabularyStream:
    """Decodes token ids with a vocabulary and a decoder chain. Implements `TokenStream`.

    id_to_token: returns the token of an id; None outside the vocabulary.
    chain: the decoder; owned and changed by this stream.
    skipped: ids of tokens that add no text.
    """

    def __init__(self, id_to_token: Callable[[int], str | None], chain: DecoderChain, skipped: frozenset[int]) -> None:
        self._id_to_token, self._chain, self._skipped = id_to_token, chain, skipped

    def push(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._id_to_token(token_id)
        return "" if token is None else self._chain.push(token)

    def finish(self) -> str:
        return self._chain.finish()

    def fork(self) -> VocabularyStream:
        return VocabularyStream(self._id_to_token, self._chain.fork(), self._skipped)


# -------------------------------------------------------------------------------------------------------- token steps


class MapTokens:
    """Token step that applies one function to every token."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def push(self, token: str) -> list[str]:
        return [self._function(token)]

    def finish(self) -> list[str]:
        return []


class MapFirstToken:
    """Token step that applies one function to the first token, and another function to all others."""

    def __init__(self, first: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._function, self._rest = first, rest

    def push(self, token: str) -> list[str]:
        function, self._function = self._function, self._rest
        return [function(token)]

    def finish(self) -> list[str]:
        return []


class MapLastToken:
    """Token step that applies one function to the last token, and another function to all others.

    It holds one token back, because the token may be the last one.
    """

    def __init__(self, last: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._last, self._rest = last, rest
        self._held: str | None = None

    def push(self, token: str) -> list[str]:
        held, self._held = self._held, token
        return [] if held is None else [self._rest(held)]

    def finish(self) -> list[str]:
        return [] if self._held is None else [self._last(self._held)]


class DecodeByteFallback:
    """Token step that decodes each run of byte tokens (`<0xE2>`) as UTF-8. An invalid run gives one U+FFFD per byte."""

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
    """Return the value (0 to 255) of a byte token such as `<0xE2>`; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


class DecodeByteLevel:
    """Token step that decodes tokens in GPT-2's byte alphabet to text (Radford et al. 2019, section 2.2)."""

    def __init__(self) -> None:
        self._incomplete = b""

    def push(self, token: str) -> list[str]:
        data = self._incomplete + byte_level(token)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._incomplete = data[used:]
        return [text]

    def finish(self) -> list[str]:
        data, self._incomplete = self._incomplete, b""
        return [data.decode("utf-8", "replace")]


@lru_cache(1 << 14)
def byte_level(token: str) -> bytes:
    """Return the bytes of a token that is written in GPT-2's byte alphabet.

    A token with other characters (an added token) gives its UTF-8 bytes.
    """
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


@cache
def byte_alphabet() -> Mapping[str, int]:
    """Return the byte that each character of GPT-2's alphabet stands for.

    Bytes that are printable characters in Latin-1 are written as these characters. The other bytes are written as the
    characters from U+0100 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


# --------------------------------------------------------------------------------------------------------- text steps


class ReplaceText:
    """Text step that replaces every `old` by `new`, from left to right.

    It holds back an end of the text that may be the beginning of `old`.
    """

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def push(self, text: str) -> str:
        *done, rest = (self._held + text).split(self._old)
        held = next((size for size in range(len(self._old) - 1, 0, -1) if rest.endswith(self._old[:size])), 0)
        self._held = rest[len(rest) - held :]
        return self._new.join([*done, rest[: len(rest) - held]])

    def finish(self) -> str:
        return self._held


class StripCharacter:
    """Text step that removes at most `start` leading and `stop` trailing copies of the character `content`."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._held = ""

    def push(self, text: str) -> str:
        while self._start and text:
            if text[0] != self._content:
                self._start = 0
            else:
                text, self._start = text[1:], self._start - 1
        text = self._held + text
        trailing = min(len(text) - len(text.rstrip(self._content)), self._stop)
        self._held = text[len(text) - trailing :]
        return text[: len(text) - trailing]

    def finish(self) -> str:
        return ""


class StripWhitespace:
    """Text step that removes white space at both ends of a text, as `str.strip` does."""

    def __init__(self) -> None:
        self._held = ""
        self._started = False

    def push(self, text: str) -> str:
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        text = self._held + text
        certain = text.rstrip()
        self._held = text[len(certain) :]
        return certain

    def finish(self) -> str:
        return ""


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


def clean_up_steps() -> list[TextStep]:
    """Return the text steps of `clean_up_tokenization_spaces`: no spaces before punctuation and contractions."""
    return [ReplaceText(old, new) for old, new in _CLEAN_UP]


def clean_up(text: str, replacements: Sequence[tuple[str, str]] = _CLEAN_UP) -> str:
    """Remove the spaces before punctuation and contractions in a whole text (`clean_up_tokenization_spaces`).

    replacements: (old, new) texts, in the order in which they are applied.
    """
    for old, new in replacements:
        text = text.replace(old, new)
    return text


# -------------------------------------------------------------------------------------- decoders of tokenizer.json


def decoder_chain(decoder: Mapping[str, Any] | None, final_steps: Sequence[TextStep] = ()) -> DecoderChain:
    """Create the incremental version of a decoder.

    decoder: the object `decoder` of `tokenizer.json`; None joins tokens with spaces.
    final_steps: text steps to append.
    Raises UnknownDecoder for a part of the decoder that has no incremental version.
    """
    if decoder is None:
        return DecoderChain([MapFirstToken(str, lambda token: " " + token)], final_steps)
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
    return DecoderChain(token_steps, [*text_steps, *final_steps])


def _token_step(part: Mapping[str, Any]) -> TokenStep:
    match part:
        case {"type": "ByteLevel"}:
            return DecodeByteLevel()
        case {"type": "ByteFallback"}:
            return DecodeByteFallback()
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return MapTokens(lambda token: token.replace(old, new))
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return MapTokens(lambda token: _strip(token, content, start, stop))
        case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
            first = " " if scheme == "never" else ""
            return MapFirstToken(lambda token: token.replace(mark, first), lambda token: token.replace(mark, " "))
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            replacements = _WORD_PIECE_CLEAN_UP if cleanup else ()
            return MapFirstToken(
                lambda token: clean_up(token, replacements),
                lambda token: clean_up(_word_piece(token, prefix), replacements),
            )
        case {"type": "BPEDecoder", "suffix": suffix}:
            return MapLastToken(lambda token: token.replace(suffix, ""), lambda token: token.replace(suffix, " "))
    raise UnknownDecoder(f"a tokenizer with the decoder {part.get('type')!r} is not supported")


def _text_step(part: Mapping[str, Any]) -> TextStep:
    match part:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return ReplaceText(old, new)
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return StripCharacter(content, start, stop)
    raise UnknownDecoder(f"a tokenizer with the decoder {part.get('type')!r} after others is not supported")


def _word_piece(token: str, prefix: str) -> str:
    return token.removeprefix(prefix) if token.startswith(prefix) else " " + token


def _strip(token: str, content: str, start: int, stop: int) -> str:
    leading = min(len(token) - len(token.lstrip(content)), start)
    token = token[leading:]
    trailing = min(len(token) - len(token.rstrip(content)), stop)
    return token[: len(token) - trailing]
