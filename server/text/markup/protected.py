"""Find the parts of a text that a translation must not change: placeholders, URLs, code, hashtags, emoji.

Each pattern needs characters that ordinary prose does not have in this order. Numbers are not protected, because their
form depends on the language; `numbers_differ` checks them after the translation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from server.text.windowed_search import search

_SYMBOLS = (
    "\u00a9\u00ae\u2020-\u2023\u203b\u2043\u2120\u2122\u2139\u2190-\u2211\u2217-\u23ff\u2440-\u2bff\u3030\u303d\u3297\u3299"
    "\ue000-\uf8ff\ufffc\U0001f000-\U0001faff"
)
"""Protected symbols, as the inside of a character class: bullets, arrows, mathematical signs, dingbats, emoji, flags,
and characters of icon fonts.

The minus sign is not among them.
"""
_ATTACHED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3001-\u3020\u3031-\u303c\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
)
"""Characters that touch a protected part without a space and do not belong to it, as the inside of a class.

They are Thai, Lao, Burmese, Khmer, Chinese, Japanese and Korean letters, and full-width punctuation.
"""
_START = rf"(?<![^\W{_ATTACHED}])"
"""Assertion before the first letter of a part: no other letter touches it, apart from `_ATTACHED`."""
_END = rf"(?![^\W{_ATTACHED}])"
"""Assertion after the last letter of a part."""
_LETTER = rf"[^\W{_ATTACHED}]"
_IN_URL = rf"""[^\s<>"'`{{}}|\\^“”„‘’«»‹›—–{_ATTACHED}]"""
_URL_REST = rf"(?:(?:{_IN_URL})++|(?<=[/=_+-])(?:(?=[{_ATTACHED}])\w)++)++"
"""Characters of a URL. A letter of `_ATTACHED` belongs to it only after a mark: /wiki/北京, but not example.com北京."""
_EXTENSIONS = (
    "txt|pdf|docx?|xlsx?|pptx?|odt|epub|csv|json|ya?ml|toml|ini|cfg|conf|log|md|html?|css|jsx?|tsx?|py|rb|rs|java|kt|"
    "cpp|hpp|php|sh|bat|exe|dll|zip|tar|gz|tgz|7z|rar|png|jpe?g|gif|svg|webp|mp[34]|avi|mov|wav|iso|apk|sql|xml"
)
"""Suffixes of common file names, as alternatives of an expression."""
_DOMAINS = "com|org|net|edu|gov|info|biz"
"""Top-level domains of names that are addresses also without a path."""
_PATTERN = re.compile(
    rf"""
    ```.{{1,4000}}?``` | (?<!`)(?P<ticks>`{{1,8}})(?!`)[^\n]{{1,400}}?(?<!`)(?P=ticks)(?!`)     # code
    | {_START}(?:[A-Za-z][A-Za-z0-9+.-]{{1,20}}://|[Ww][Ww][Ww]\.(?=[\w-]+\.)){_URL_REST}       # addresses
    | {_START}[Mm]ailto:{_IN_URL}+ | {_START}(?:tel|sms):\+?\d[\d().-]{{2,20}}
    | (?<![.+%-]){_START}(?:[oO]')?(?:{_LETTER}|[.+%-]){{1,64}}@(?:(?:{_LETTER}|-){{1,63}}\.){{1,8}}
      (?:[A-Za-z]{{2,24}}{_END}(?::[\w.-]+/[\w./-]{{0,100}}\w)?|[^\W\d_A-Za-z{_ATTACHED}]{{2,24}}\b)
    | (?<![\w.+%-])[\w.+%-]{{1,64}}@(?:[\w-]{{1,63}}\.){{1,8}}[^\W\d_A-Za-z]{{2,24}}\b
    | (?<![@./-]){_START}(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:(?:{_DOMAINS}){_END}(?:[/?]{_URL_REST})?(?!@)
      |[a-z]{{2,4}}/[A-Za-z0-9_~-](?:{_IN_URL})*+)
    | (?<!\.){_START}\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d{{1,5}}|/\d{{1,2}})?{_END}(?!\.\w)
    | {_START}[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}{_END}
    | @?\{{\{{\{{?(?:[^{{}}\n]|\{{[^{{}}\n]{{0,40}}\}}){{0,80}}+\}}\}}\}}? | [$\#%]\{{[^{{}}\n]{{1,80}}\}}  # templates
    | \{{%[^{{}}\n]{{1,80}}%\}} | \{{\#[^{{}}\n]{{1,80}}\#\}}
    | \{{[\#/:@][a-z]{{1,20}}(?:\s[^{{}}\n]{{1,80}})?\}}
    | \{{!![^{{}}\n]{{1,80}}!!\}} | \{{\$[^{{}}\n]{{1,80}}\}}                               # of PHP and Blade
    | \{{\s(?:\$|-[a-z])[^{{}}]{{1,400}}\}} | \{{\s[A-Z]{{3,20}}\([^(){{}}\n]{{0,80}}\)\s\}}     # of Fluent
    | \\\([^()\n]{{1,60}}(?:\([^()\n]{{0,40}}\))?\)                                      # of Swift
    | <%[^\n]{{1,200}}?%> | <\?[^\n]{{1,400}}?\?> | \[\[\w[\w.-]{{0,60}}\]\]
    | \[[A-Za-z]{{1,30}}(?:_[A-Za-z0-9]{{1,30}}){{1,6}}\]
    | \{{\s{{0,2}}\w[\w.-]{{0,60}}\s?,\s{{0,2}}(?:plural|select|selectordinal|choice)\s?,
      (?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]{{0,80}}+\}}){{0,200}}+\}}){{1,400}}+\}}      # messages of ICU
    | \{{\s{{0,2}}\w[\w.-]{{0,60}}\s?,\s{{0,2}}(?:number|date|time|spellout|ordinal|duration)\s?
      (?:,\s?[^{{}}\n]{{1,40}})?\}}
    | \{{\d{{1,3}}(?:,\s?-?\d{{1,4}})?(?::[^{{}}\n]{{1,40}})?\}}
    | \{{(?:[^\W\d][\w-]{{0,60}})?(?:\??[.\[][\w.\[\]'"?]{{0,60}})?(?:\([\w.,\s'"]{{0,40}}\))?
      (?:![rsa])?(?::[^{{}}\s]{{0,20}})?\}}
    | \{{\s{{1,2}}\w[\w.]{{0,60}}\s{{1,2}}\}} | \{{\w{{1,40}}\s[-+*/]\s\w{{1,40}}\}}
    | \$\w{{1,60}}\$ | (?<![%$]){_START}%[^\W\d{_ATTACHED}]{_LETTER}{{1,60}}%(?!%){_END}
    | \$(?:tc?|n|d)\([^()\n]{{1,120}}\) | @(?:\.[a-z]{{3,12}})?:(?:\{{'[\w.]{{1,60}}'\}}|[A-Za-z][\w.]{{1,60}}(?<!\.))
    | (?<!\$){_START}\$(?!(?:US|CA|AU|NZ|HK|USD|CAD|AUD)\b)[A-Za-z_]{_LETTER}{{0,60}}
      (?:\([\w.]{{1,60}}\)|(?:->\w{{1,40}}|\[['"]?\w{{1,40}}['"]?\]){{1,6}}(?:\(\))?)?
    | (?<![\w%])%-?[aAbBdeHIjmMpSyYZ](?:[-/:.]%-?[aAbBdeHIjmMpSyYZ]){{1,8}}{_END}                 # dates
    | (?<![\d%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\)|<\w{{1,60}}>)?[-+\#0']{{0,4}}
      (?:\d{{1,3}}|\*(?:\d{{1,2}}\$)?)?(?:\.(?:\d{{1,3}}|\*))?
      (?:(?:hh|h|ll|l|L|q|j|z|t)?[sdiufFeEgGxXoscpaSC@]|[AbBHIjmMpyYZ])(?![^\W_{_ATTACHED}])
    | (?<![\w%])%(?:\d{{1,2}}\$)?\#@\w{{1,60}}@ | (?<![%]){_START}%(?:L?[1-9]\d?|[+\#]?[nvTqbtU])(?![%]){_END} | %%
    | </?\d{{1,4}}\s?/?> | <?</?[A-Za-z][\w.:-]{{0,40}}(?:\s[^<>\n=]{{0,80}}=[^<>\n]{{0,200}})?\s?/?>
      (?:(?<=\w>)>)?                                                                       # tags
    | &(?:[A-Za-z][A-Za-z0-9]{{1,30}}|\#\d{{1,7}}|\#x[0-9A-Fa-f]{{1,6}});
    | {_START}[A-Za-z]:\\(?:[^\s<>"|?*{_ATTACHED}]|\ (?=[\w().-]{{1,40}}(?:\ [\w().-]{{1,40}})?\\)){{0,200}}
    | \\\\[\w.$-]{{1,60}}(?:\\[\w.$-]{{1,60}}){{1,20}}(?<![.]) | \\[nrt](?![a-z]) | \\u[0-9A-Fa-f]{{4}}
    | (?<![./~<-]){_START}(?:~|\.{{1,2}})/\.?(?:{_LETTER}|[@+-])+(?:[./](?:{_LETTER}|[@+-])+)*
    | (?<![./~<-]){_START}/\.?(?:{_LETTER}|[@+-]){{1,60}}(?:\.(?:{_LETTER}|[@+-]){{1,60}})*
      (?:/\.?(?:{_LETTER}|[@+-]){{1,60}}(?:\.(?:{_LETTER}|[@+-]){{1,60}})*)+/?
    | (?<![./-]){_START}(?:{_LETTER}|-){{1,60}}(?:[./](?:{_LETTER}|-){{1,60}}){{0,8}}\.(?:{_EXTENSIONS})(?!-|\.\w){_END}
    | (?<![^\s"'(《「“])[\w-]{{1,60}}\.(?:{_EXTENSIONS})(?![\w-]|\.\w)
    | (?<![^\s(\["']):(?:(?:[+-]1|[a-z0-9][\w+-]{{1,40}}):|[a-z_]\w{{0,40}}:?)(?![\w:])      # names, emoji of chats
    | @(?:string|plurals|array|drawable|color|dimen|id|style|attr)/\w{{1,60}}
    | {_START}__[A-Z][A-Z0-9_]{{0,60}}__{_END} | {_START}[A-Z][A-Z0-9]{{1,30}}(?:_[A-Z0-9]{{1,30}}){{1,6}}{_END}
    | {_START}[a-z][a-z0-9]{{1,30}}(?:_[a-z0-9]{{1,30}}){{2,6}}{_END} | {_START}[A-Za-z_][\w.]{{0,60}}\(\)
    | \#\#[A-Z][A-Z0-9_]{{0,40}}\#\# | @@?[A-Z][A-Z0-9_]{{1,40}}@@?(?!\w)
    | (?<![\w-])--[a-z][a-z0-9]{{0,20}}(?:(?:-[a-z0-9]{{1,20}}){{1,5}}(?:=[^\s,;()\[\]]{{1,60}})?
      |=[^\s,;()\[\]]{{1,60}})(?<![.!?])
    | (?<![&\#/.]){_START}(?:\#(?:\d{{1,4}}(?=[A-Za-z]{{3}})|[^\W\d])\w{{0,60}}                  # hashtags, mentions
      |@[^\W\d{_ATTACHED}]{_LETTER}{{0,60}}|@[^\W\d]\w{{0,60}})
      (?:(?:\.[^\W\d{_ATTACHED}]|(?<=[a-z0-9])[/-][a-z0-9]){_LETTER}{{0,60}})*(?:(?<=[\u3040-\u9fff])\#)?
    | (?<!\S)[|¦](?!\S)
    | (?:(?:[\d\#*]\ufe0f?\u20e3)+ | [{_SYMBOLS}][{_SYMBOLS}\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_HINT = re.compile(
    rf"""[`{{@\#%$<&\\{_SYMBOLS}\u20e3]|\]\(|://|[Ww][Ww][Ww]\.|[Mm]ailto:|(?:tel|sms):|\[\[|__[A-Z]|\d\.\d{{1,3}}\.\d{{1,3}}\.\d
    |(?<![<]){_START}/\w|(?:~|\.)/|(?<![^\s(\["']):[a-z0-9_+-]|\.(?:{_EXTENSIONS}|{_DOMAINS}){_END}
    |\.[a-z]{{2,4}}/|-[0-9a-fA-F]{{4}}-|(?<!\S)[|¦](?!\S)|\w_\w|\w\(\)|--[a-z]""",
    re.VERBOSE,
)
"""Matches in each text that has a protected part. A fast search with it rules out most texts."""
_HINT_CHARACTERS = 32
"""Upper bound for the length of a match of `_HINT`."""
SYMBOL = re.compile(f"[{_SYMBOLS}|¦]")
"""A character at which a sentence may end (see `markup_sentences`)."""
_TRAILING = ".,;:!?…'\"»”’*،؛؟।॥"
"""Punctuation marks that belong to the sentence, not to the URL before them."""
_ADDRESS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]+://|[Ww]{3}\.|[Mm]ailto:|[A-Za-z]:\\|tel:|sms:|[\w.-]+\.[a-z]{2,4}[/?])"
)
_IS_ATTACHED = re.compile(f"[{_ATTACHED}]")
_NUMBER = re.compile(r"\d+(?:[.,\s'’\u066b\u066c\u00a0\u202f]\d+)*")


@dataclass(frozen=True)
class Protection:
    """Rules for the parts of a text that a translation must not change.

    patterns: whether the patterns of this module (placeholders, URLs, code...) are protected.
    terms: further words or phrases to protect, exactly as they are written.
    """

    patterns: bool = False
    terms: tuple[str, ...] = ()

    def may_apply(self, text: str) -> bool:
        """Whether a text may have a protected part. A fast test, which is True for each text that has one."""
        return (self.patterns and search(_HINT, text, longest=_HINT_CHARACTERS) is not None) or any(
            term in text for term in self.terms
        )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each protected part of a text, as character indices, in order."""
        if not self.may_apply(text):
            return
        at = 0
        while (match := search(self._pattern, text, at)) is not None:
            start, at = match.span()
            if _ADDRESS.match(match[0]):
                at = start + len(_trimmed(match[0]))
            if at > start:
                yield start, at
            else:
                at = match.end() + (match.end() == start)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        terms = [
            ("" if _IS_ATTACHED.match(term) else _START)
            + re.escape(term)
            + ("" if _IS_ATTACHED.match(term[-1:]) else _END)
            for term in sorted(self.terms, key=len, reverse=True)
        ]
        known = [_PATTERN.pattern] if self.patterns else []
        spelled = [term.replace(" ", r"\ ") if "\\ " not in term else term for term in terms]
        return re.compile("|".join([*spelled, *known]), re.VERBOSE | re.DOTALL)


NO_PROTECTION = Protection()


def numbers_differ(source: str, translation: str) -> bool:
    """Whether two texts contain different numbers, in any order.

    Separators and the script of the digits are ignored, so that 3.5 equals 3,5.
    """
    return _numbers(source) != _numbers(translation)


def _numbers(text: str) -> list[str]:
    """The digits of each number of a text, sorted."""
    return sorted(
        "".join([str(unicodedata.decimal(digit)) for digit in number[0] if digit.isdecimal()])
        for number in _NUMBER.finditer(text)
    )


def _trimmed(address: str) -> str:
    """Return a URL without the punctuation of the sentence at its end, such as a full stop or an unpaired bracket."""
    while address:
        shorter = address.rstrip(_TRAILING)
        for opening, closing in ("()", "[]"):
            if shorter.endswith(closing) and shorter.count(opening) < shorter.count(closing):
                shorter = shorter[:-1]
        if shorter == address:
            break
        address = shorter
    return address
