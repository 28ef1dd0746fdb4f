"""Rules that replace variants of punctuation marks by ASCII marks before a text is split into words.

Sources: replace-unicode-punctuation.perl and normalize-punctuation.perl of Moses, in the form of `FSMTTokenizer` of
transformers and `MosesPunctNormalizer` of sacremoses.
"""

from __future__ import annotations

from collections.abc import Sequence
from re import Match

from server.text.tokenizers.moses.located_text import Parts, Substitution

_WIDE = str.maketrans(
    {
        "，": ",",
        "、": ",",
        "”": '"',
        "“": '"',
        "∶": ":",
        "：": ":",
        "？": "?",
        "《": '"',
        "》": '"',
        "）": ")",
        "！": "!",
        "（": "(",
        "；": ";",
        "」": '"',
        "「": '"',
        "～": "~",
        "’": "'",
        "…": "...",
        "━": "-",
        "〈": "<",
        "〉": ">",
        "【": "[",
        "】": "]",
        "％": "%",
        **{chr(ord("０") + digit): str(digit) for digit in range(10)},
    }
)
"""The ASCII text for each full-width character, quotation mark and bracket of East Asian texts."""
WIDE = (
    Substitution(r"[。．]\s*", ". "),
    Substitution("[" + "".join(map(chr, _WIDE)) + "]", choose=lambda match: (match[0].translate(_WIDE),)),
)
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SPACES = Substitution(" {2,}", " ")
_FIRST = (
    Substitution("\r"),
    Substitution(r"\(", " ("),
    Substitution(r"\)", ") "),
    _SPACES,
    Substitution(r"\) ([.!:?;,])", ")", 1),
    Substitution(r"\( ", "("),
    Substitution(r" \)", ")"),
    Substitution(r"(\d) %", 1, "%"),
    Substitution(" :", ":"),
    Substitution(" ;", ";"),
    Substitution("`", "'"),
    Substitution("''", ' " '),
    Substitution("[„“”]", '"'),
    Substitution("–", "-"),
    Substitution("—", " - "),
    _SPACES,
    Substitution("´", "'"),
    Substitution("([a-zA-Z])‘([a-zA-Z])", 1, "'", 2),
    Substitution("([a-zA-Z])’([a-zA-Z])", 1, "'", 2),
    Substitution("[‘‚’]", "'"),
    Substitution("''", '"'),
    Substitution("…", "..."),
    Substitution(f"{_NO_BREAK}«{_NO_BREAK}", '"'),
    Substitution(f"«{_NO_BREAK}", '"'),
    Substitution("«", '"'),
    Substitution(f"{_NO_BREAK}»{_NO_BREAK}", '"'),
    Substitution(f"{_NO_BREAK}»", '"'),
    Substitution("»", '"'),
    Substitution(f"{_NO_BREAK}%", "%"),
    Substitution(f"nº{_NO_BREAK}", "nº "),
    Substitution(f"{_NO_BREAK}:", ":"),
    Substitution(f"{_NO_BREAK}ºC", " ºC"),
    Substitution(f"{_NO_BREAK}cm", " cm"),
    Substitution(rf"{_NO_BREAK}\?", "?"),
    Substitution(f"{_NO_BREAK}!", "!"),
    Substitution(f"{_NO_BREAK};", ";"),
    Substitution(f",{_NO_BREAK}", ", "),
    _SPACES,
)


def _dots_into_quote(match: Match[str]) -> Parts:
    return (1,) if match[2] is None else ('"', 1, 3)


_ENGLISH_QUOTE = (Substitution('"([,.]+)', 1, '"'),)
# A run of dots is matched as a whole, so that no text makes the search start again at each dot.
_OTHER_QUOTE = (Substitution(',"', '",'), Substitution(r'(\.+)("(\s*[^<]))?', choose=_dots_into_quote))
_DECIMAL_COMMA = frozenset(("de", "es", "cz", "cs", "fr"))


def punctuation_rules(language: str) -> Sequence[Substitution]:
    """Return the rules for a language, in the order in which they are applied. language: ISO 639-1 code."""
    quotes = _ENGLISH_QUOTE if language == "en" else _OTHER_QUOTE if language in ("de", "es", "fr") else ()
    separator = "," if language in _DECIMAL_COMMA else "."
    return (*_FIRST, *quotes, Substitution(rf"(\d){_NO_BREAK}(\d)", 1, separator, 2))
