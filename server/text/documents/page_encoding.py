"""The character encoding of an HTML page, which the page declares in a `meta` element (WHATWG Encoding Standard)."""

from __future__ import annotations

import codecs
import re

from server.text.documents.units import DocumentError, decoded

SEARCHED_BYTES = 1024
"""The declaration of a page is within so many bytes of its beginning (WHATWG HTML, section 4.2.5.4)."""
_DECLARATION = re.compile(rb"""<meta\s[^>]{0,400}?charset\s*=\s*["']?\s*([\w:.-]{1,40})""", re.IGNORECASE)
_IN_BROWSERS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
}
"""Encodings that browsers read as a larger one, by Python's names."""
_KNOWN = frozenset(
    {f"cp{page}" for page in (866, 874, 932, 949, *range(1250, 1259))}
    | {f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
    | {"gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "koi8-r", "koi8-u", "mac-roman"}
)
"""Encodings of the standard besides UTF-8, by Python's names."""


def decoded_page(data: bytes) -> tuple[str, str]:
    """Decode an HTML page. Returns its text and the Python name of its encoding.

    The encoding is the declared one. A page that has other characters than ASCII and is valid UTF-8 is UTF-8, whatever
    it declares. Raises DocumentError if the bytes are not valid in the encoding.
    """
    declared = _declared(data)
    if declared is None or (not data.isascii() and _is_utf_8(data)):
        return decoded(data)
    try:
        return data.decode(declared), declared
    except UnicodeDecodeError:
        raise DocumentError("the page has bytes that are not valid in the encoding that it declares") from None


def _declared(data: bytes) -> str | None:
    """The encoding that a page declares; None for UTF-8, an unknown one, or none."""
    match = _DECLARATION.search(data[:SEARCHED_BYTES])
    try:
        name = codecs.lookup(match[1].decode("ascii", "replace")).name if match else ""
    except LookupError:
        return None
    name = _IN_BROWSERS.get(name, name)
    return name if name in _KNOWN else None


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
