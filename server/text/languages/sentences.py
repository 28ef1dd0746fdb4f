"""Split a text into sentences.

The library sentencex finds the boundaries within a line. A line break always ends a sentence. Boundaries that sentencex
finds in mid-sentence are removed here: after abbreviations, ordinal numbers and names with "!", and after quoted speech
that the sentence continues. In doubt a text is not split: half a sentence translates worse than two together.
See docs/decisions/0130-sentences-by-sentencex.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import sentencex

from server.text.invisible import INVISIBLE, without_invisible
from server.text.languages.abbreviations import (
    AMBIGUOUS,
    ANY_LANGUAGE,
    BEFORE_AL,
    BEFORE_LETTERS,
    BEFORE_NUMBERS,
    BY_LANGUAGE,
    CLOCK,
    EVERYWHERE,
    FURTHER,
    FURTHER_ANY_LANGUAGE,
    NAMES,
    NAMES_WITH_FULL_STOP,
    NUMBERED,
    SYLLABIC_CONSONANTS,
    WITHOUT_VOWEL,
)
from server.text.languages.frequent_words import is_frequent
from server.text.languages.likely_language import likely_language

SENTENCE_ENDS = "\n\u2028\u2029.!?…؟۔।॥。！？｡;;·։։።፧፨၊။។៕།༎⁇⁈⁉‼‽．‥"
"""Every sentence except the last one contains at least one of these characters."""
_WINDOW = 4000
"""Most characters per call of sentencex, because its time is quadratic in the number of unpaired quotation marks."""
_MAX_QUOTE = 400
"""Length in characters above which a sentence is split inside its quotation marks and brackets too."""

_OPENING = "\"'“‘«‹([{„‚¿¡ \t—–-‑「『（【〈《»›”\u00a0\u202f"
"""Characters that may stand before the first word of a sentence."""
_CLOSING = "\"'”’»›)]}」』）】〉》“‘«"
"""Characters that may stand between the full stop of a sentence and its end."""
_SPACE = re.compile(r"\s")
_LINE_END = re.compile("[\n\u2028\u2029]")
"""The end of a line: a line feed, or the separators of lines and paragraphs of Unicode."""
_PAIRED = re.compile(r"[\"'“”‘’«»‹›„‚()\[\]「」『』（）【】]")
"""Quotation marks and brackets, inside which sentencex finds no boundary."""
_FULL_STOP = re.compile(rf"(?<![.…])\.[{re.escape(_CLOSING)}]*$")
"""A single full stop at the end of a text, with closing characters after it."""
_ENDS_IN_QUOTE = re.compile(r"[!?…؟。！？.](?P<close>[\s\u00a0\u202f]*[\"'”’»›」』“«])\s*$")
"""The end of quoted speech: a full stop and a closing quotation mark, with or without a space as in French."""
_ENDS_WITHOUT_SPACE = re.compile(rf"[。！？｡][{re.escape(_CLOSING)}]*$")
"""A Chinese or Japanese full stop, exclamation or question mark. The next sentence needs no white space before it."""
_ONLY_NUMBER = re.compile(r"[\W_]*(?:\d[\d.,:–-]*|[IVXLCDM]+)[\W_]*$")
"""A text that is a number alone, such as the rest of "see p. 5."."""
_NUMBER = re.compile(r"\s*(?:[№#§]\s*)?(?:\d|[IVXLCDM]+\b)")
_AMOUNT = re.compile(r"\d(?:[\d.,]*\d)?")
"""A number before a unit, such as 1,500 or 2.5."""
_BRACKETED = re.compile(r"[(（][^()（）]{1,400}[.!?…。！？][)）](?P<space>\s*)")
"""A sentence in brackets, which sentencex does not separate from the next one."""
_KHMER_END = re.compile("[។៕]\\s+")
"""The end of a Khmer sentence, which sentencex does not know."""
LIST_ITEM = re.compile(r"(?:^|(?<=[.!?…;:]\s))(?P<open>\(?)(?P<label>\d{1,2}|[a-z])(?P<mark>[.)])\s+")
"""The beginning of an item of a list: 1. or a) or (a), before its text."""
_UNKNOWN_END = re.compile(r"(?<=\s[A-Z]\.)\s+(?=[A-Z])|(?<=\w/\w\.)\s+(?=\w)|(?<=[مص]\.)\s+(?=ثم)")
"""Possible ends of sentences, which sentencex takes for initials, as in km/h., and hours: see `_is_abbreviation`."""
_ELLIPSIS_END = re.compile(r"(?<!\w)(?P<last>\w*)…[\s\"'“”’»›]*\s(?=(?:[^\w\s]\s?){0,3}(?P<next>[^\W\d_]\w*))")
"""An ellipsis as one character, with the words before and after it.

It ends a sentence before a capital letter, as three full stops do in sentencex, but not between equal words: "I… I am".
"""
_CHINESE_INTRODUCTION = re.compile(r"[：:][“「『][^“”「」『』]*[”」』]$")
"""A colon and quoted speech: the verb of speech stands before it."""
_CHINESE_CONTINUATION = re.compile(
    "(?:但|可是|不过|不過|同时|同時|结果|結果|然后|然後|接着|接著|随后|隨後|随即|隨即|于是|於是|说完|說完|之后|之後|一边|一邊|一面|便|就|并|並"
    "|却|卻|又|也|还|還|而|才)"
)
"""The beginning of a Chinese clause that has no subject, but says what happens next or at the same time."""
_JAPANESE_SPEECH = re.compile(r"(?:って|と(?:叫|言|云|思|聞|いう|いっ|いい|書|呼|問|答|感|考|話|声|、|も|は|か))")
"""The particle and verb by which a Japanese sentence continues after an exclamation that it quotes."""
_CHINESE_SPEECH = re.compile(
    r"[^，。！？：；、“”「」\s]{0,12}(?<![不没沒])[说說道问問喊叫答曰想嚷骂罵吼哭笑](?![话話])|[的地之这這那]"
)
"""The beginning of a text that continues quoted speech in Chinese: a verb of speech near its start, or a particle."""
_ENGLISH_SPEECH = re.compile(
    r"(?:[A-Z][\w'’-]*\s+){1,3}(?:said|says|asked|asks|cried|shouted|replied|answered|whispered|yelled|added|called)\b"
)
"""A name and a verb of speech, which continue quoted speech in English."""
_GEORGIAN = re.compile("[\u10d0-\u10ff]")
"""A letter of Georgian. Unicode classes these letters as lower case, but sentences begin with them."""
_SENTENCE_WORD = re.compile(
    r"(?:The|This|That|These|Those|There|He|She|It|We|You|They|I|My|His|Her|Its|Our|Their|But|And|So|In|On|If|When)\b"
)
"""A word that begins many English sentences and is no surname that is common."""
_ARABIC_HOUR = re.compile(r"[\d\u0660-\u0669\u06f0-\u06f9]\s*[مص]$")
"""An hour in Arabic with "a.m." or "p.m.", without the full stop."""
_ARABIC_CONJUNCTION = re.compile("(?:ثم|و)")
"""The beginning of a text that continues quoted speech in Arabic: the word for "then" or "and"."""
_UNCASED_WITH_SPACES = re.compile(r"[\u0590-\u08ff\u0900-\u0dff\u10a0-\u10ff\uac00-\ud7af]")
"""A letter of a script without capital letters, whose words have spaces between them."""
_DANDA_SCRIPTS = frozenset({"hi", "mr", "ne", "sa", "bn", "as", "or", "pa", "gu"})
"""Languages of India whose sentences end with a danda, so that a full stop follows an abbreviation."""
_ORDINALS_TEXT = "de cs da et fi fo hr hu is ka lt lv mk nb nn no bs sr sl sk pl tr lb hsb dsb se"
_ORDINALS = frozenset(["", *_ORDINALS_TEXT.split()])
"""Languages that write a full stop after ordinal numbers. The empty string stands for an unknown language."""
_INITIAL = re.compile(r"[^\W\d_]\.?(?:-[^\W\d_])?", re.UNICODE)
"""The initial of a name, without its last full stop: J, or J.-C."""
_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.[\s\u00a0]?-?)+[^\W\d_]{1,4}")
"""An abbreviation of several short parts, without its last full stop: e.g, z. B, π.Χ."""
_CASED = re.compile("[a-z\u0300-\u036f\u00df\u0111\u0142\u03b1-\u03c9\u0430-\u045f]+")
"""A word in lower case of the Latin, Greek or Cyrillic script, decomposed."""
_VOWEL = re.compile(
    "[aeiouy\u03b1\u03b5\u03b7\u03b9\u03bf\u03c5\u03c9\u0430\u0435\u0438\u043e\u0443\u044a\u044b\u044d\u044e\u044f\u0454\u0456]"
)
_FIRST_WORD = re.compile(rf"[{re.escape(_OPENING)}]*([^\W\d_]+)")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a text.

    text: the sentence without white space and invisible characters around it. Empty in the first item of a text that
        begins with them.
    separator: white space and invisible characters that follow the sentence.
    """

    text: str
    separator: str


def split_sentences(text: str, language: str | None = None) -> list[Sentence]:
    """Split a text into sentences. Their texts and separators, joined in order, are the original text.

    language: ISO 639-1 code of the text's language; None if it is not known. Then it is guessed, or the abbreviations
        of all languages count.
    """
    language = likely_language(text) if language is None else language
    visible = without_invisible(text)
    start = len(visible) - len(visible.lstrip())
    starts: Iterable[int] = (start, *_boundaries(visible, start, language))
    if len(visible) < len(text):
        places = [place for place, character in enumerate(text) if character not in INVISIBLE]
        starts = [places[at] if at < len(places) else len(text) for at in starts]
    start, *ends = starts
    found: list[Sentence] = []
    if start:
        found.append(Sentence("", text[:start]))
    for end in [*ends, len(text)]:
        last = end
        while last > start and (text[last - 1].isspace() or text[last - 1] in INVISIBLE):
            last -= 1
        if last > start:
            found.append(Sentence(text[start:last], text[last:end]))
        start = end
    return found


class _Around(NamedTuple):
    """The text before and after a place at which a sentence may begin.

    before, after: up to 80 characters on each side, without the white space at the boundary.
    spaced: whether there is white space at the boundary.
    """

    before: str
    after: str
    spaced: bool


def _boundaries(text: str, start: int, language: str) -> Iterator[int]:
    """Yield the indices in a text, after `start`, at which a sentence begins, ascending.

    start: index of the first character that is not white space.
    """
    at = 0
    line_start = None
    for line in _LINE_END.split(text):
        first = at + len(line) - len(line.lstrip())
        last = at + len(line.rstrip())
        if first < last:
            if line_start is not None and first > start:
                yield first
            line_start = first
            for place in _in_line(text[first:last], language):
                yield first + place
        at += len(line) + 1


def _in_line(line: str, language: str) -> Iterator[int]:
    """Yield, in ascending order, the indices of a line's characters at which a sentence begins. 0 is left out."""
    start = 0
    proposed = iter(sorted({*_proposed(line, language), *_list_items(line)}))
    for place in [*_accepted(line, proposed, language), len(line)]:
        if place - start > _MAX_QUOTE and _PAIRED.search(line, start, place):
            part = line[start:place]
            inner = _proposed(_PAIRED.sub(" ", part), language)
            yield from (start + inner_place for inner_place in _accepted(part, inner, language))
        if place < len(line):
            yield place
        start = place


def _proposed(line: str, language: str) -> Iterator[int]:
    """Yield the indices in a line at which a sentence may begin, by the library sentencex and by the rules it lacks.

    The library gets the line in windows. The next window begins where the last, unfinished sentence of a window begins.
    """
    at = 0
    while at < len(line):
        window = line[at : at + _WINDOW]
        is_last = at + len(window) == len(line)
        start = 0
        read = _SPACE.sub(" ", window)
        if "“" not in read and "„" not in read:  # Finnish and Swedish open and close quotations with the same mark
            read = read.replace("”", '"')
        for piece in _segments(read, language):
            if not piece or not read.startswith(piece, start):
                break  # the characters are not those that were given: no further boundary is trusted
            bracketed = _BRACKETED.match(piece)
            inside = {match.end() for match in (*_KHMER_END.finditer(piece), *_UNKNOWN_END.finditer(piece))}
            inside |= set(_ellipsis_ends(piece)) if "…" in piece else set()
            inside |= {bracketed.end()} if bracketed is not None else set()
            yield from (at + start + end for end in sorted(inside) if end < len(piece))
            start += len(piece)
            if start == len(window):
                start -= 0 if is_last else len(piece)
                break
            yield at + start
        at = len(line) if is_last else at + (start or len(window))


def _ellipsis_ends(text: str) -> Iterator[int]:
    """Indices of the text at which a sentence may begin after an ellipsis."""
    for match in _ELLIPSIS_END.finditer(text):
        if match["next"][0].isupper() and match["last"].lower() != match["next"].lower():
            yield match.end()


def _list_items(line: str) -> Iterator[int]:
    """Indices at which items of a list begin (2., 3.), in a line that begins with an item (1.)."""
    item = LIST_ITEM.match(line)
    if item is None:
        return
    for next_item in LIST_ITEM.finditer(line, item.end()):
        if is_next_item(item, next_item):
            yield next_item.start()
            item = next_item


def is_next_item(item: re.Match[str], next_item: re.Match[str]) -> bool:
    """Whether the label of `next_item` is the one after the label of `item`, as in "1." and "2." or "a)" and "b)"."""
    label, next_label = item["label"], next_item["label"]
    if (item["open"], item["mark"]) != (next_item["open"], next_item["mark"]):
        return False
    if label.isdecimal() != next_label.isdecimal():
        return False
    return int(next_label) == int(label) + 1 if label.isdecimal() else ord(next_label) == ord(label) + 1


def _segments(window: str, language: str) -> list[str]:
    """Split a text with sentencex. Returns the whole text as one segment if sentencex panics.

    sentencex 1.0.32 fails on initials after white space that is not ASCII, so `_proposed` replaces it by spaces.
    """
    try:
        found: list[str] = sentencex.segment(language or "en", window)
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return [window]
    return found


def _accepted(line: str, places: Iterator[int], language: str) -> Iterator[int]:
    """Yield the boundaries at which a sentence really ends, each moved behind the white space that follows it.

    places: indices in the line at which sentencex begins a sentence.
    """
    start = 0
    for place in places:
        end = place
        while end > start and line[end - 1].isspace():
            end -= 1
        while place < len(line) and line[place].isspace():
            place += 1
        if end <= start or place >= len(line):
            continue
        # 80 characters hold every abbreviation and name that is compared.
        around = _Around(line[max(start, end - 80) : end], line[place : place + 80], place > end)
        if _ends_sentence(around, line[start : min(end, start + 80)], language):
            yield place
            start = place


def _ends_sentence(around: _Around, sentence: str, language: str) -> bool:
    """Whether a sentence ends at a boundary. sentence: the text since the last boundary, at most 80 characters."""
    before, after, spaced = around
    if not any(end in before for end in SENTENCE_ENDS):
        return False
    following = after.lstrip(_OPENING)
    if not spaced and not _ENDS_WITHOUT_SPACE.search(before):
        return False
    if after[0] in "」』）】〉》”’»›)]" and (not spaced or after[1:2].isspace()) and after[0] not in "»":
        return False
    if _begins_next_item(sentence, after):
        return not (_FULL_STOP.search(before) and _is_abbreviation(before.rstrip(_CLOSING)[:-1], "", "", language))
    if following[:1].islower() and not _GEORGIAN.match(following):
        return False
    if not following and after.strip(_OPENING) == "":
        return False
    if not any(character.isalnum() for character in before):
        return False
    if _ONLY_NUMBER.fullmatch(after) and _FULL_STOP.search(before) and len(after) < 12:
        return False
    if before[-1] in "》〉":
        return False
    if (quote := _ENDS_IN_QUOTE.search(before)) is not None and _continues_quote(around, quote, language):
        return False
    if language in ("", "ja") and _continues_in_japanese(before, after):
        return False
    if before[-1] in "!！" and _last_word(before[:-1]).lower() in NAMES:
        return False
    return not (_FULL_STOP.search(before) and _is_abbreviation(before.rstrip(_CLOSING)[:-1], after, sentence, language))


def _begins_next_item(sentence: str, after: str) -> bool:
    """Whether a list continues: a sentence is one of its items, and the text after it is the next."""
    item, next_item = LIST_ITEM.match(sentence), LIST_ITEM.match(after)
    return item is not None and next_item is not None and is_next_item(item, next_item)


def _continues_quote(around: _Around, quote: re.Match[str], language: str) -> bool:
    """Whether a sentence continues after a boundary at the end of quoted speech.

    quote: match of the end of the quoted speech.
    """
    after, spaced = around.after, around.spaced
    if language in ("", "zh", "yue") and not spaced:
        is_introduced = _CHINESE_INTRODUCTION.search(around.before) is not None
        if _CHINESE_CONTINUATION.match(after) or (not is_introduced and _CHINESE_SPEECH.match(after)):
            return True
    if language in ("", "en") and spaced and quote[0][0] in "!?.…" and _ENGLISH_SPEECH.match(after):
        return True
    if _UNCASED_WITH_SPACES.match(after):
        return not spaced or quote[0][0] in "!?؟" or _ARABIC_CONJUNCTION.match(after) is not None
    return False


def _continues_in_japanese(before: str, after: str) -> bool:
    if before[-1] in "」』":
        return "ぁ" <= after[0] <= "ゟ"
    if before.endswith(NAMES_WITH_FULL_STOP):
        return "ぁ" <= after[0] <= "ゟ"
    if before[-1] in "。！？!?":
        is_particle = after[0] in "のを" and before[-1] in "。！" and not after.startswith("のん")
        return is_particle or _JAPANESE_SPEECH.match(after) is not None
    return False


def _last_word(text: str) -> str:
    """Return the last word of a text, with the full stops inside it; empty for a text that ends with white space."""
    words = text[-40:].split()
    return words[-1].lstrip(_OPENING + "’'$€£¥") if words and not text[-1].isspace() else ""


def _is_abbreviation(before: str, after: str, sentence: str, language: str) -> bool:
    """Whether a full stop belongs to the word or number before it, and does not end a sentence.

    before: text up to that full stop. after: text after the boundary.
    sentence: whole text since the last boundary if it is short; else empty.
    """
    word = _last_word(before)
    if not word:
        return False
    plain = word.lower()
    if "'" in plain or "’" in plain:  # l'art., l’on.
        plain = re.split(r"['’]", plain)[-1] or plain
    if word.isdecimal():
        is_list_item = len(sentence) <= len(word) + 1
        previous = before[: -len(word)].rstrip()
        counted = _last_word(previous.removesuffix(".")).lower()
        is_counted = counted in (BEFORE_NUMBERS if previous.endswith(".") else NUMBERED) or counted.endswith("str")
        return len(word) <= 2 and (is_list_item or (language in _ORDINALS and not is_counted))
    if language in ("", "en") and len(word) == 1 and _is_name_of_a_thing(_last_word(before[:-1].rstrip()), after):
        return False
    if _ARABIC_HOUR.search(before) and after.startswith("ثم"):
        return False
    if _is_initial(plain):
        return True
    if len(plain) > 1 and plain[0] == "و":  # Arabic writes "and" as a part of the next word
        plain = plain[1:]
    if language in ("", "en") and plain in AMBIGUOUS and _ends_as_a_word(word, before, after):
        return False
    if plain in EVERYWHERE or plain in (BY_LANGUAGE.get(language, ()) if language else ANY_LANGUAGE):
        return True
    if plain == "al" and before[:-3].endswith(BEFORE_AL) and before[-3:-2].isspace():
        return True
    if _NUMBER.match(after) and (plain in BEFORE_NUMBERS or plain.endswith("str") or _DOTTED.fullmatch(plain)):
        return True
    if language in _DANDA_SCRIPTS and len(word) <= 5 and "\u0900" <= word[-1] <= "\u0dff":
        return True
    if not language and len(word) <= 3 and "\u0900" <= word[-1] <= "\u0b7f":
        return True
    if plain in CLOCK:
        return False
    if _DOTTED.fullmatch(plain) and not word[0].isupper():
        return True
    return _may_be_abbreviation(word, plain, language) and not _begins_with_frequent_word(after, language)


def _may_be_abbreviation(word: str, plain: str, language: str) -> bool:
    """Whether a word is an abbreviation that may also end a sentence: S.p.A, Ph.D, kpl, Abt.

    word: the word without its last full stop. plain: the same in lower case, without an article such as l'.
    """
    if _DOTTED.fullmatch(plain) or plain in (FURTHER.get(language, ()) if language else FURTHER_ANY_LANGUAGE):
        return True
    if language in SYLLABIC_CONSONANTS or plain in WITHOUT_VOWEL or not 2 <= len(plain) <= 6:
        return False
    if not word[-len(plain) if len(plain) == 2 else 1 :].islower():
        return False
    letters = unicodedata.normalize("NFD", plain)
    return _CASED.fullmatch(letters) is not None and not _VOWEL.search(letters)


def _begins_with_frequent_word(text: str, language: str) -> bool:
    """Whether a text begins with an article, pronoun or other frequent word, as many sentences do.

    Without a language, quoted speech counts too, because the abbreviation may be a word of the unknown language.
    """
    first = _FIRST_WORD.match(text)
    if language in ("", "en") and _SENTENCE_WORD.match(text):
        return True
    if not language and text[:1] in "\"'“‘«„»›”—–":
        return True
    return first is not None and is_frequent(first[1].lower(), language)


def _is_name_of_a_thing(previous: str, after: str) -> bool:
    """Whether a single letter is the name of a thing, as in "plan B" or "an A", and not an initial.

    previous: the word before the letter. after: text after the letter's full stop.
    """
    return previous.lower() in BEFORE_LETTERS or (
        previous.lower() in ("a", "an", "and", "or") and _SENTENCE_WORD.match(after) is not None
    )


def _ends_as_a_word(word: str, before: str, after: str) -> bool:
    """Whether an English abbreviation that is also a word or a unit ends a sentence: 10 min., 20 kg max., to the max.

    word: the abbreviation. before: text up to its full stop. after: text after the boundary.
    """
    if after[:1].isdecimal():
        return False
    previous = before.split()[-3:-1]
    is_counted = any(map(_AMOUNT.fullmatch, previous))
    return is_counted or word.isupper() or _SENTENCE_WORD.match(after) is not None


def _is_initial(word: str) -> bool:
    """Whether a word is probably an initial: one letter of a script in which few sentences end with a single letter."""
    return _INITIAL.fullmatch(word) is not None and (word[0] < "\u0700")
