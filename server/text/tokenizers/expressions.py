"""Find regular expressions of a foreign tokenizer that take more time than the length of a text allows.

The library matches them by backtracking (Oniguruma), which takes time that grows with a power of the length for some
expressions, and panics after ten million steps of one match. An expression that no published tokenizer has is run on
texts of its own characters, first on short ones, and refused if the time grows faster than the text.
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
"""Lengths of the texts, in characters. The costs of a text grow by 16 to 64 times from one to the next at least."""
TELLING_LENGTH, MAX_LONG_TEXTS = 512, 12
"""From this length on, time that grows with the square shows. Longer texts are only those that took longest, and
those whose time grew most: this many of each. On a fast processor, a text with many matches takes longer than a short
quadratic search.
"""
SECONDS_PER_CHARACTER = 4e-6
"""Fifty times what published expressions need on a slow processor."""
SPARE_SECONDS = 0.002
MAX_REPEATED_CHOICES = 16
"""Groups, alternatives and quantifiers in a group that is repeated. The library remembers about 32 bytes of each for
each character until the match ends: 200 MB of the longest text. Published expressions have five at most."""
UNRANKED = (LENGTHS[0], LENGTHS[-1])
"""Lengths whose times are not ranked, nor compared with those of the next length."""
MAX_GROWTH = 8.0
"""From 4,096 to 16,384 characters, linear time grows by 4 times and quadratic time by 16. Fast processors need this
rule, because a quadratic expression keeps the limit per character there."""
GROWTH_ROUNDS = 5
"""Times that two lengths are timed again before their growth refuses an expression."""
CLOCK_TICK = 1e-6
"""Seconds. A clock of processor time may show none for a short text."""
MAX_CHARACTERS = 20
MAX_LITERALS = 128
"""Characters of an expression that are tried alone."""
_LAST_SAMPLE = 0x1F000
_PROPERTY = re.compile(r"\\[pP]|\[:")
_ESCAPES = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
_KINDS = ("a", "A", "1", " ", "\n", ".", "'", "_", "中", "\u0301", "\N{GRINNING FACE}")
_QUADRATIC = frozenset(("superbpe",))
"""Published pre-tokenizers whose expressions look ahead to the end of a number from each of its digits."""


@lru_cache(maxsize=64)
def check_expression(expression: str, name: str) -> None:
    """Raise TokenizerError for a regular expression that is invalid, or slow on some text. name: its component."""
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
    """Whether a published tokenizer has this expression."""
    return _spelled_alike(expression) in _published()


def repeated_choices(expression: str) -> int:
    """Most groups, alternatives and quantifiers in a group of an expression that is repeated.

    Recursion repeats without a quantifier. Comments, and classes that begin with a bracket, would hide brackets. All
    three count as more than any limit.
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
    """Raise TokenizerError if a text takes too long.

    search: removes the matches of the expression from a text. Splitting the text at them would take six times as long,
    most of it to make the pieces, and the time of many pieces grows faster than their number.
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
    """Whether the longest text takes too many times as long as the one before it.

    Both are timed again, in turns, before the answer is yes: the machine may have become slower between them.
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
    """Processor time of a text: the least of three times if the first is long, or if it will be ranked or compared.

    Other work on the machine lengthens single times. The time is infinite for a panic of the library.
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
    """Parts of the test texts for an expression: a part to repeat, and an end to append.

    A text ends in another character, or in one that stops a match and then in all characters of the expression: without
    a character that every match needs, the library does not try to match.
    """
    escaped = (int("".join(code), 16) for code in _ESCAPES.findall(expression))
    literal = [
        character
        for character in dict.fromkeys((*expression, *(chr(code) for code in escaped if code <= sys.maxunicode)))
        if character.isprintable() and character not in "\\()[]{}|?*+^$"
    ]
    characters = list(dict.fromkeys((*literal[: MAX_CHARACTERS - len(_KINDS)], *_KINDS)))
    ends = ["", *("".join((stop, *characters)) for stop in ("\n", "中", "a"))]
    for character in characters:
        yield from ((character, end) for end in (*characters, *ends))
        yield from ((character + other, end) for other in characters if character != other for end in ends[:2])
    samples = _samples() if _PROPERTY.search(expression) else ()
    for character in dict.fromkeys((*literal[:MAX_LITERALS], *samples)):
        if character not in characters:
            yield from ((character, end) for end in ends[:2])


@cache
def _samples() -> tuple[str, ...]:
    """A character of each category in each block of 128 code points that has letters, or the first of its category.

    Expressions name scripts and categories, such as `\\p{Thai}`, of which no character is written in them.
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
    """Hide standard error, to which the library writes the stack of each panic."""
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
    """An expression with one spelling of line breaks and quotes, which published files write as they are or escaped."""
    return expression.replace("\r", r"\r").replace("\n", r"\n").replace(r"\"", '"')
