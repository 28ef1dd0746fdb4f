"""Tell simplified from traditional Chinese characters."""

from __future__ import annotations

_MAX_CHARACTERS = 2000


def chinese_script(text: str) -> str | None:
    """`Hans` or `Hant`, by the characters that only one of the scripts has; None for a text without any.

    The character sets GB 2312 (simplified) and Big5 (traditional) are the tables.
    """
    simplified = traditional = 0
    for character in text[:_MAX_CHARACTERS]:
        if "\u4e00" <= character <= "\u9fff":
            in_gb, in_big5 = _is_in(character, "gb2312"), _is_in(character, "big5")
            simplified += in_gb and not in_big5
            traditional += in_big5 and not in_gb
    if simplified == traditional:
        return None
    return "Hans" if simplified > traditional else "Hant"


def _is_in(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
