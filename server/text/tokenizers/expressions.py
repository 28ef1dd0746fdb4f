"""Refuse regular expressions of a tokenizer from an unknown source that can take very long on some text.

The library matches by backtracking (Oniguruma). For some expressions, its time grows with a power of the text's length,
and it panics after ten million steps of one match. An expression that no published tokenizer has is therefore timed on
texts made of the characters in the expression, short texts first. It is refused if the time grows faster than the text.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

from tokenizers import Regex, normalizers

from server.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS
from server.text.tokens.library_calls import panic_of
from server.text.tokens.tokenizer import TokenizerError

MAX_EXPRESSION = 4096
LENGTHS = (16, 64, 512, 4096, 16384)
"""Lengths of the test texts, in characters, in the order in which they are tried."""
TELLING_LENGTH, MAX_LONG_TEXTS = 512, 12
"""From `TELLING_LENGTH` on, quadratic time is visible, and few texts are tried at the next length.

These are the `MAX_LONG_TEXTS` texts that took longest, and as many whose time grew most. Both are needed: on a fast
processor, a text with many matches can take longer than a short quadratic search.
"""
SECONDS_PER_CHARACTER = 4e-6
"""Limit on the time per character: fifty times the time that published expressions need on a slow processor."""
SPARE_SECONDS = 0.002
MAX_REPEATED_CHOICES = 16
"""Limit on the groups, alternatives and quantifiers inside a repeated group. Published expressions have at most five.

The library keeps about 32 bytes for each of them and each character until the match ends.
"""
UNRANKED = (LENGTHS[0], LENGTHS[-1])
"""Lengths at which a short time is measured only once, because the texts are not ranked by it."""
MAX_GROWTH = 8.0
"""Largest accepted factor between the times for 4,096 and 16,384 characters: 4 is linear, and 16 is quadratic.

On a fast processor, a quadratic expression may stay below the limit per character, so this rule is needed too.
"""
GROWTH_ROUNDS = 5
"""Number of repeated measurements at the two longest lengths before an expression is refused for its growth."""
CLOCK_TICK = 1e-6
"""Least time, in seconds, by which growth is divided, because the processor clock may show 0 for a short text."""
MAX_CHARACTERS = 20
MAX_LITERALS = 128
"""Most literal characters of an expression for which a test text is made."""
_LAST_SAMPLE = 0x1F000
_PROPERTY = re.compile(r"\\[pP]|\[:")
_ESCAPES = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "a": "\a", "e": "\x1b"}
"""Control characters by the letters of their escapes."""
_KINDS = ("a", "A", "1", " ", "\n", ".", "'", "_", "中", "\u0301", "\N{GRINNING FACE}")
_QUADRATIC = frozenset(("superbpe",))
"""Published pre-tokenizers whose expressions are timed too: they look ahead from each digit to the number's end."""


@lru_cache(maxsize=64)
def check_expression(expression: str, name: str) -> None:
    """Raise TokenizerError for a regular expression that is invalid, too long, too complex, or slow on some text.

    name: component that has the expression, for the message. Results are cached.
    """
    if is_published(expression):
        return
    if len(expression) > MAX_EXPRESSION:
        raise TokenizerError(
            f"tokenizer.json: the expression of its {name} has {len(expression):,} characters; the limit is "
            f"{MAX_EXPRESSION:,}"
        )
    if (choices := repeated_choices(expression)) > MAX_REPEATED_CHOICES:
        raise TokenizerError(
            f"tokenizer.json: the expression of its {name} repeats a group of {choices:,} choices; the limit is "
            f"{MAX_REPEATED_CHOICES}"
        )
    try:
        search = normalizers.Replace(Regex(expression), "")
    except Exception as error:
        reason = " ".join(str(error).split())[:80]
        raise TokenizerError(f"tokenizer.json: the expression of its {name} is invalid: {reason}") from None
    with _silent_panics():
        _try(search, name, list(_texts(expression)))


def is_published(expression: str) -> bool:
    """Whether a published tokenizer has this expression, so that it need not be timed."""
    return _spelled_alike(expression) in _published()


def repeated_choices(expression: str) -> int:
    """Return the largest number of groups, alternatives and quantifiers inside a repeated group of an expression.

    An expression with recursion, a comment, or a character class that begins with a bracket gets a number above any
    limit, because its groups cannot be counted this way.
    """
    if re.search(r"\\g|\(\?#|\(\?[a-z-]*x|\[\^?\]", expression):
        return MAX_REPEATED_CHOICES + len(expression)
    most, class_depth, counts, place = 0, 0, [0], 0
    while place < len(expression):
        character = expression[place]
        place += 2 if character == "\\" else 1
        if character in "[]":
            class_depth = max(class_depth + (1 if character == "[" else -1), 0)
        elif class_depth or character == "\\":
            continue
        elif character == "(":
            counts.append(1)
            place += expression[place : place + 1] == "?"
        elif character == ")" and len(counts) > 1:
            inside = counts.pop()
            counts[-1] += inside
            if expression[place : place + 1] in ("*", "+", "{"):
                most = max(most, inside)
        elif character in "|*+?{":
            counts[-1] += 1
    return most


def _try(search: normalizers.Normalizer, name: str, texts: list[tuple[str, str]]) -> None:
    """Time an expression on all test texts, at growing lengths. Raises TokenizerError if a text takes too long.

    search: normalizer that removes the matches of the expression from a text. Splitting a text at the matches would
        measure mostly the making of the pieces.
    name: component that has the expression, for the message.
    texts: (part to repeat, end to append) of each test text.
    """
    before: dict[tuple[str, str], float] = {}
    for length in LENGTHS:
        timed = []
        for text in texts:
            seconds = _seconds(search, text, length)
            is_slow = seconds > SPARE_SECONDS + length * SECONDS_PER_CHARACTER
            if is_slow or (length == LENGTHS[-1] and _grew(search, text, seconds, before[text])):
                raise TokenizerError(
                    f"tokenizer.json: the expression of its {name} takes too long for a text of {length} characters: "
                    "its time grows faster than the text"
                )
            timed.append((seconds, text))
        if length >= TELLING_LENGTH:
            growths = [(seconds / max(before[text], CLOCK_TICK), text) for seconds, text in timed]
            texts = list(dict.fromkeys(text for ranked in (timed, growths) for text in _greatest(ranked)))
        before = {text: seconds for seconds, text in timed}


def _grew(search: normalizers.Normalizer, text: tuple[str, str], seconds: float, before: float) -> bool:
    """Whether the time for the longest text is more than `MAX_GROWTH` times the time for the second longest.

    Both are timed again, alternately, before the answer is True, because the machine may have become slower in between.

    text: (part to repeat, end to append). seconds, before: times measured at the two lengths.
    """
    for _ in range(GROWTH_ROUNDS):
        if seconds <= SPARE_SECONDS + MAX_GROWTH * before:
            return False
        seconds = min(seconds, _seconds(search, text, LENGTHS[-1]))
        before = max(before, _seconds(search, text, LENGTHS[-2]))
    return seconds > SPARE_SECONDS + MAX_GROWTH * before


def _greatest(ranked: list[tuple[float, tuple[str, str]]]) -> list[tuple[str, str]]:
    return [text for _, text in sorted(ranked, reverse=True)[:MAX_LONG_TEXTS]]


def _seconds(search: normalizers.Normalizer, text: tuple[str, str], length: int) -> float:
    """Measure the processor time of a search in a test text. Infinite if the library panics.

    Returns the least of three measurements, because other work on the machine lengthens some. One is enough if it is
    short and the length is in `UNRANKED`.

    text: (part to repeat, end to append). length: approximate number of characters.
    """
    unit, end = text
    content, found = unit * (length // len(unit)) + end, float("inf")
    for _ in range(3):
        started = time.thread_time()
        try:
            search.normalize_str(content)
        except BaseException as error:
            if panic_of(error) is None:
                raise
            return float("inf")
        found = min(found, time.thread_time() - started)
        if length in UNRANKED and found <= SPARE_SECONDS + length * SECONDS_PER_CHARACTER:
            break
    return found


def _texts(expression: str) -> Iterator[tuple[str, str]]:
    """Yield (part to repeat, end to append) of each test text for an expression.

    The end is empty, a single character, or a character that stops a match, followed by characters of the expression.
    The library does not try to match a text that lacks a character which every match needs, so the end has all of them.
    The first characters of the expression are also tried as characters that stop a match.
    """
    literal = _literals(expression)
    first = literal[: MAX_CHARACTERS - len(_KINDS)]
    characters = list(dict.fromkeys((*first, *_KINDS)))
    ends = ["", *("".join((stop, *characters)) for stop in dict.fromkeys(("\n", "中", "a", *first)))]
    for character in characters:
        yield from ((character, end) for end in (*characters, *ends))
        yield from ((character + other, end) for other in characters if character != other for end in ends[:2])
    samples = _samples() if _PROPERTY.search(expression) else ()
    for character in dict.fromkeys((*literal[:MAX_LITERALS], *samples)):
        if character not in characters:
            yield from ((character, end) for end in ends[:2])


def _literals(expression: str) -> list[str]:
    """The characters that an expression names, as they are or escaped, without repetitions."""
    found, class_depth, place = list[str](), 0, 0
    while place < len(expression):
        character = expression[place]
        if character == "\\":
            escaped = expression[place + 1 : place + 2]
            found.append(_CONTROLS.get(escaped, "" if escaped.isalnum() else escaped))
            place += 2
            continue
        place += 1
        if character in "[]":
            class_depth = max(class_depth + (1 if character == "[" else -1), 0)
        elif class_depth or character not in "(){}|?*+^$.":
            found.append(character)
    codes = (int("".join(code), 16) for code in _ESCAPES.findall(expression))
    found += (chr(code) for code in codes if code <= sys.maxunicode)
    known = _CONTROLS.values()
    return [text for text in dict.fromkeys(found) if text and (text.isprintable() or text in known)]


@cache
def _samples() -> tuple[str, ...]:
    """Return a letter from each block of 128 code points that has letters, and one character of each category.

    They are needed for expressions that name scripts or categories, such as `\\p{Thai}`, instead of characters.
    """
    found: dict[object, str] = {}
    for code in range(_LAST_SAMPLE):
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs", "Co"):
            found.setdefault(category, chr(code))
            if category[0] == "L":
                found.setdefault(code // 128, chr(code))
    return tuple(dict.fromkeys(found.values()))


@contextmanager
def _silent_panics() -> Iterator[None]:
    """Discard standard error while the context is open, because the library writes a backtrace to it for each panic."""
    kept, hidden = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(hidden, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(hidden)


@cache
def _published() -> frozenset[str]:
    found = set()
    for name, build in PRE_TOKENIZERS.items():
        state = json.loads(build().__getstate__())
        parts = state.get("pretokenizers", [state])
        if name not in _QUADRATIC:
            found |= {
                _spelled_alike(part["pattern"]["Regex"])
                for part in parts
                if part["type"] == "Split" and "Regex" in part["pattern"]
            }
    return frozenset(found)


def _spelled_alike(expression: str) -> str:
    """Return an expression with line breaks escaped and quotation marks unescaped; published files have both forms."""
    return expression.replace("\r", r"\r").replace("\n", r"\n").replace(r"\"", '"')
