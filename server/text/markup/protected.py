"""Find the parts of a text that a translation must not change: placeholders, URLs, code, hashtags, emoji.

Each pattern needs characters that ordinary prose does not have in this order. Numbers are not protected, because their
form depends on the language; `numbers_differ` checks them after the translation.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_SYMBOLS = "\u00a9\u00ae\u2122\u2190-\u2211\u2217-\u23ff\u2440-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
"""Protected symbols, as the inside of a character class: arrows, mathematical signs, dingbats, emoji, flags.

The minus sign is not among them.
"""
_EXTENSIONS = (
    "txt|pdf|docx?|xlsx?|pptx?|odt|epub|csv|json|ya?ml|toml|ini|cfg|conf|log|md|html?|css|jsx?|tsx?|py|rb|rs|java|kt|"
    "cpp|hpp|php|sh|bat|exe|dll|zip|tar|gz|tgz|7z|rar|png|jpe?g|gif|svg|webp|mp[34]|avi|mov|wav|iso|apk|sql|xml"
)
"""Suffixes of common file names, as alternatives of an expression."""
_PATTERN = re.compile(
    rf"""
    ```.{{1,4000}}?``` | ``[^`\n]{{1,400}}`` | `[^`\n]{{1,400}}`                       # code
    | (?:https?|ftps?|file|wss?)://[^\s<>"'`{{}}|\\^]+ | \bmailto:[^\s<>"'`]+           # addresses
    | (?<![\w@.])www\.[\w-]+\.[^\s<>"'`{{}}|\\^]+ | \b(?:tel|sms):\+?\d[\d().-]{{2,20}}
    | (?<![\w.+%-])[\w.+%-]{{1,64}}@(?:[\w-]{{1,63}}\.){{1,8}}[^\W\d_]{{2,24}}\b
    | (?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w.])
    | @?\{{\{{\{{?[^{{}}\n]{{0,80}}\}}\}}\}}? | [$\#%]\{{[^{{}}\n]{{1,80}}\}} | \{{%[^{{}}\n]{{1,80}}%\}}  # templates
    | \{{!![^{{}}\n]{{1,80}}!!\}} | \{{\$[^{{}}\n]{{1,80}}\}}                               # of PHP and Blade
    | \{{\s(?:\$|-[a-z])[^{{}}]{{1,400}}\}} | \{{\s[A-Z]{{3,20}}\([^(){{}}\n]{{0,80}}\)\s\}}     # of Fluent
    | \\\([^()\n]{{1,60}}(?:\([^()\n]{{0,40}}\))?\)                                      # of Swift
    | <%[^\n]{{1,200}}?%> | <\?[^\n]{{1,400}}?\?> | \[\[\w[\w.-]{{0,60}}\]\]
    | \{{\s?\w{{1,60}},\s?(?:plural|select|selectordinal|choice),
      (?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]{{0,80}}+\}}){{0,200}}+\}}){{1,400}}+\}}      # messages of ICU
    | \{{\s?\w{{1,60}},\s?(?:number|date|time|spellout|ordinal|duration)(?:,\s?[^{{}}\n]{{1,40}})?\}}
    | \{{\d{{1,3}}(?:,\s?-?\d{{1,4}})?(?::[^{{}}\n]{{1,40}})?\}}
    | \{{(?:[^\W\d][\w-]{{0,60}})?(?:[.\[][\w.\[\]'"]{{0,60}})?(?:![rsa])?(?::[^{{}}\s]{{0,20}})?\}}
    | \$\w{{1,60}}\$ | (?<![\w%$])%[^\W\d]\w{{1,60}}%(?![%\w])
    | (?<![\w$])\$(?!(?:US|CA|AU|NZ|HK|USD|CAD|AUD)\b)[A-Za-z_]\w{{0,60}}(?:\([\w.]{{1,60}}\))?
    | (?<![\w%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\)|<\w{{1,60}}>)?[-+\#0']{{0,4}}(?:\d{{1,3}}|\*)?(?:\.(?:\d{{1,3}}|\*))?
      (?:hh|h|ll|l|L|q|j|z|t)?[sdiufFeEgGxXoscpa@](?![^\W_])
    | (?<![\w%])%(?:\d{{1,2}}\$)?\#@\w{{1,60}}@ | (?<![\w%])%(?:L?[1-9]\d?|[+\#]?[nvTqbtU])(?![\w%]) | %%
    | </?\d{{1,4}}\s?/?> | </?[A-Za-z][\w.:-]{{0,40}}(?:\s[^<>\n=]{{0,80}}=[^<>\n]{{0,200}})?\s?/?>   # tags
    | &(?:[A-Za-z][A-Za-z0-9]{{1,30}}|\#\d{{1,7}}|\#x[0-9A-Fa-f]{{1,6}});
    | \b[A-Za-z]:\\[^\s<>"|?*]{{0,200}} | \\[nrt](?![a-z])                              # paths
    | (?<![\w./~<-])(?:~|\.{{1,2}})/\.?[\w@+-]+(?:[./][\w@+-]+)*
    | (?<![\w./~<-])/\.?[\w@+-]{{1,60}}(?:\.[\w@+-]{{1,60}})*(?:/\.?[\w@+-]{{1,60}}(?:\.[\w@+-]{{1,60}})*)+/?
    | (?<![\w./-])[\w-]{{1,60}}(?:[./][\w-]{{1,60}}){{0,8}}\.(?:{_EXTENSIONS})(?![\w-]|\.\w)
    | (?<![^\s(\["']):(?:(?:[+-]1|[a-z0-9][\w+-]{{1,40}}):|[a-z_]\w{{0,40}}:?)(?![\w:])      # names, emoji of chats
    | @(?:string|plurals|array|drawable|color|dimen|id|style|attr)/\w{{1,60}}
    | (?<!\w)__[A-Z][A-Z0-9_]{{0,60}}__(?!\w)
    | (?<![\w&\#/.])[\#@][^\W\d]\w{{0,60}}(?:\.[^\W\d]\w{{0,60}})*                      # hashtags, mentions
    | (?:[\d\#*]\ufe0f?\u20e3 | [{_SYMBOLS}][{_SYMBOLS}\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_HINT = re.compile(
    rf"""[`{{@\#%$<&\\{_SYMBOLS}\u20e3]|\]\(|://|www\.|mailto:|(?:tel|sms):|\[\[|__[A-Z]|\d\.\d+\.\d+\.\d|(?<![\w<])/\w
    |(?:~|\.)/|(?<![^\s(\["']):[a-z0-9_+-]|\.(?:{_EXTENSIONS})(?!\w)""",
    re.VERBOSE,
)
"""Matches in each text that has a protected part. A fast search with it rules out most texts."""
_TRAILING = ".,;:!?…'\"»”’"
"""Punctuation marks that belong to the sentence, not to the URL before them."""
_ADDRESS = re.compile(r"(?:[a-z]+://|www\.|mailto:|[A-Za-z]:\\|tel:|sms:)")
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
        return (self.patterns and _HINT.search(text) is not None) or any(term in text for term in self.terms)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each protected part of a text, as character indices, in order."""
        if not self.may_apply(text):
            return
        at = 0
        while (match := self._pattern.search(text, at)) is not None:
            start, at = match.span()
            if _ADDRESS.match(match[0]):
                at = start + len(_trimmed(match[0]))
            if at > start:
                yield start, at
            else:
                at = match.end() + (match.end() == start)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        terms = [rf"(?<!\w){re.escape(term)}(?!\w)" for term in sorted(self.terms, key=len, reverse=True)]
        known = [_PATTERN.pattern] if self.patterns else []
        spelled = [term.replace(" ", r"\ ") if "\\ " not in term else term for term in terms]
        return re.compile("|".join([*spelled, *known]), re.VERBOSE | re.DOTALL)


NO_PROTECTION = Protection()


def numbers_differ(source: str, translation: str) -> bool:
    """Whether two texts contain different numbers, in any order.

    Separators and the script of the digits are ignored, so that 3.5 equals 3,5.
    """
    return _numbers(source) != _numbers(translation)


def _numbers(text: str) -> Counter[str]:
    return Counter(
        "".join([str(unicodedata.decimal(digit)) for digit in number[0] if digit.isdecimal()])
        for number in _NUMBER.finditer(text)
    )


def _trimmed(address: str) -> str:
    """Return a URL without the punctuation of the sentence at its end, such as a full stop or an unpaired bracket."""
    while address:
        shorter = address.rstrip(_TRAILING)
        if shorter.endswith(")") and shorter.count("(") < shorter.count(")"):
            shorter = shorter[:-1]
        if shorter == address:
            break
        address = shorter
    return address
