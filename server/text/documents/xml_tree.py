"""Parse and write XML files with lxml, without custom entities, external document types, or network access."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from server.text.documents.units import DocumentError

Element = Any
"""An lxml element. The type is Any because lxml has no type annotations."""
SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def parse_xml(data: bytes) -> Element:
    """Parse XML. Returns the root element.

    Raises DocumentError for XML that is not well-formed, is nested too deep, or declares entities, and MemoryError
    if memory does not suffice.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        if error.code == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from None
        line = getattr(error, "lineno", None)
        raise DocumentError(f"a part of the document is not well-formed XML (line {line})") from None
    except ValueError:
        raise DocumentError("a part of the document is not well-formed XML") from None
    dtd = root.getroottree().docinfo.internalDTD
    if dtd is not None and any(True for _ in dtd.iterentities()):
        raise DocumentError("a part of the document declares entities, which are refused")
    return root


def xml_bytes(root: Element) -> bytes:
    """Return the XML file of a root element, in UTF-8, with the XML declaration and the document type."""
    from lxml import etree

    standalone = root.getroottree().docinfo.standalone
    found: bytes = etree.tostring(root.getroottree(), encoding="UTF-8", xml_declaration=True, standalone=standalone)
    return found


def local_name(element: Element) -> str:
    """The name of an element without its namespace; empty for a comment or a processing instruction."""
    tag = element.tag
    return _without_namespace(tag) if isinstance(tag, str) else ""


@lru_cache(maxsize=4096)
def _without_namespace(tag: str) -> str:
    return tag.rpartition("}")[2]
