"""The texts that all models are compared on: prose, documentation, code and dialogue.

Prose is four pages of this repository as they were in November 2026 (`prose.txt`), so that results stay comparable when
the pages change. Documentation and code come with the running Python: its language reference (`pydoc_data.topics`) and
modules of its standard library. The dialogue was written for this purpose (`dialogue.txt`).
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

from server.text.tokens.tokenizer import Tokenizer

WINDOW = 512
"""Number of tokens of a text. Each text is computed without the others as context, so that models can be compared."""

_HERE = Path(__file__).parent
_MODULES = ("json/decoder.py", "textwrap.py", "heapq.py", "statistics.py", "queue.py", "shutil.py", "ast.py")
_TOPICS = ("assignment", "class", "function", "import", "objects", "operator-summary", "specialnames", "types", "with")
_CALIBRATION_TOPICS = (
    "in",
    "for",
    "lambda",
    "try",
    "exprlists",
    "dynamic-features",
    "strings",
    "formatstrings",
    "debugger",
)
_CALIBRATION_MODULES = ("argparse.py", "csv.py", "pathlib.py")
_KINDS = ("prose", "documentation", "code", "prose", "documentation", "code", "prose", "dialogue")
"""Kinds of the texts in the order in which texts are taken. The order is repeated until there are enough tokens.

A kind without further texts is skipped."""


def windows(tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """Token ids of texts of `WINDOW` tokens each, special tokens included. Together they have at least `tokens` tokens.

    Raises ValueError if there are not enough texts.
    """
    start = tokenizer.encode([""])[0].ids[:1]
    left = {kind: _pieces(tokenizer.encode([text])[0].ids, start) for kind, text in _texts().items()}
    found: list[list[int]] = []
    while len(found) * WINDOW < tokens:
        before = len(found)
        for kind in _KINDS:
            if left[kind] and len(found) * WINDOW < tokens:
                found.append(left[kind].pop(0))
        if len(found) == before:
            raise ValueError(f"the texts have {before * WINDOW} tokens, and {tokens} were asked for")
    return found


def calibration(tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """Token ids of texts for calibration, `WINDOW` tokens each, which `windows` never returns.

    tokens: number of tokens of all texts together, if the sources have that many.
    """
    library = Path(sysconfig.get_path("stdlib"))
    parts = ["\n\n".join(topics[name] for name in _CALIBRATION_TOPICS)]
    parts += [(library / name).read_text() for name in _CALIBRATION_MODULES]
    each = -(-tokens // (WINDOW * len(parts)))
    return [
        text
        for part in parts
        for text in _pieces(tokenizer.encode([part])[0].ids, tokenizer.encode([""])[0].ids[:1])[:each]
    ]


def _pieces(ids: list[int], start: list[int]) -> list[list[int]]:
    """Cut token ids into windows of `WINDOW` tokens. Token ids that do not fill a window are left out.

    start: special tokens at the beginning of each window.
    """
    size = WINDOW - len(start)
    ids = ids[len(start) :] if ids[: len(start)] == start else ids
    return [[*start, *ids[at : at + size]] for at in range(0, len(ids) - size, size)]


def sentences(count: int) -> list[str]:
    """`count` different sentences from the prose and the documentation, of 40 to 300 characters each.

    Raises ValueError if there are not enough sentences.
    """
    texts = _texts()
    lines = " ".join((texts["prose"] + " " + texts["documentation"]).split()).split(". ")
    found = [fromkey for fromkey in dict.fromkeys(lines) if 40 <= len(fromkey) <= 300]
    if len(found) < count:
        raise ValueError(f"the texts have {len(found)} sentences, and {count} were asked for")
    step = len(found) / count
    return [found[int(number * step)] for number in range(count)]


def _texts() -> dict[str, str]:
    library = Path(sysconfig.get_path("stdlib"))
    return {
        "prose": (_HERE / "prose.txt").read_text(),
        "documentation": "\n\n".join(topics[name] for name in _TOPICS),
        "code": "\n\n".join((library / name).read_text() for name in _MODULES),
        "dialogue": (_HERE / "dialogue.txt").read_text(),
    }
