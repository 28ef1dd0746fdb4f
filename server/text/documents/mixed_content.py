"""XML elements of text and children (OpenDocument, XLIFF) as text with inline formatting, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.text.documents.inline import Fragment, Inline
from server.text.documents.xml_tree import Element, local_name


def add_content(element: Element, fragment: Fragment, is_formatted: Callable[[Element], bool]) -> None:
    """Add the text and the children of an element to a fragment.

    is_formatted: whether a child is formatted text. Any other child stays as it is.
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
            fragment.atom(child)
        fragment.text(child.tail or "")


def fill(element: Element, nodes: Sequence[str | Inline]) -> None:
    """Replace the content of an element."""
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
