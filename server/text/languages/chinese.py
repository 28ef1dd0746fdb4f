"""Tell simplified from traditional Chinese characters."""

from __future__ import annotations

_MAX_CHARACTERS = 2000


def chinese_script(text: str) -> str | None:
    """Return the script of a Chinese text: `Hans` or `Hant`; None if the text has equally many characters of both.

    Counts the characters that only GB 2312 (simplified) or only Big5 (traditional) has, in the beginning of the text.
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
