"""Convert XML elements that mix text and child elements (OpenDocument, XLIFF) to formatted text, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.text.documents.inline import SPACES, Fragment, Inline
from server.text.documents.xml_tree import Element, local_name


def add_content(element: Element, fragment: Fragment, is_formatted: Callable[[Element], bool]) -> None:
    """Add the text and the children of an XML element to a fragment.

    is_formatted: tells whether a child element is formatted text. Other children become objects without text.
    """
    fragment.text(element.text or "")
    for child in element:
        if local_name(child) == "soft-page-break":
            pass
        elif is_formatted(child):
            fragment.open(child)
            add_content(child, fragment, is_formatted)
            fragment.close()
        else:
            fragment.atom(child, "br" if local_name(child) in SPACES else "x")
        fragment.text(child.tail or "")


def fill(element: Element, nodes: Sequence[str | Inline]) -> None:
    """Replace the content of an XML element. nodes: texts, formatted texts and objects, whose originals are elements.

    Originals that are strings (characters that XML cannot contain) are left out.
    """
    for child in list(element):
        element.remove(child)
    element.text = ""
    last: Element | None = None
    for node in nodes:
        text = node if isinstance(node, str) else ""
        if not isinstance(node, str) and not isinstance(node.original, str):
            last = node.original
            last.tail = ""
            if node.children is not None:
                fill(last, node.children)
            element.append(last)
        elif last is None:
            element.text += text
        else:
            last.tail += text
