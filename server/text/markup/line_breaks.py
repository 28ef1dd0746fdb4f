"""Line breaks inside a text: the element `br` of HTML, which documents use for tabs and line breaks too."""

from __future__ import annotations

import re

BREAK = "br"
"""Name of the element."""
BREAK_TAG = rf"<{BREAK}\s*/?>"
"""Expression of a tag without attributes."""
_TO_BREAK = re.compile(rf"(?:<[^<>]*>\s*)*?<{BREAK}\b", re.IGNORECASE)
"""Tags up to a line break."""
_ONLY_BREAKS = re.compile(rf"(?:<{BREAK}\b[^<>]*>\s*)+", re.IGNORECASE)


def has_break(tags: str) -> bool:
    """Whether tags have a line break among them, so that they separate the words around them."""
    return _TO_BREAK.match(tags) is not None


def are_breaks(tags: str) -> bool:
    """Whether tags are one or more line breaks, without other tags such as an image."""
    return _ONLY_BREAKS.fullmatch(tags) is not None
