"""Read and write Markdown (CommonMark with tables).

The texts of paragraphs, headings, list items, table cells and links are translated. Code and URLs stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.text.documents.inline import Fragment, text_of
from server.text.documents.units import Document, TextDocument, TextUnit, decoded
from server.text.documents.web import html_parts
from server.text.markup.line_breaks import BREAK_TAG

_FENCE = re.compile(r"\s*(?:>\s?)*(`{3,}|~{3,}|\$\$(?!.*\$\$))")
_RULE = re.compile(r"\s*(?:[-*_=]\s*){3,}$|\s*=+\s*$|\s*-+\s*$")
_DEFINITION = re.compile(r"\s{0,3}\[(?!\^)(?P<label>[^\]]+)\]:\s*\S")
_DIRECTIVE = re.compile(
    r"\s*(?::{3,}|!!!\s|\?{3}\+?\s|(?:>\s*)+\[![A-Za-z]+\][+-]?\s*$|\[\[?_?toc_?\]?\]\s*$|\{:[^{}]{1,200}\}\s*$"
    r"""|import\s(?:[\w*{][^'"]{0,200}\sfrom\s)?['"][^'"]+['"];?\s*$)""",
    re.I,
)
"""A line that opens or closes a container (Docusaurus), opens an admonition (MkDocs) or an alert (GitHub), stands for
a table of contents, has attributes of a block (kramdown), or imports a component (MDX)."""
_TABLE_RULE = re.compile(r"\s*(?:\|\s*)?:?-+:?\s*(?:\|\s*(?:(?::?-+:?|::?)\s*)?)+$")
"""The line of dashes and bars below the header of a table.

No two parts of the expression match the same white space, so that a long line of spaces takes linear time.
"""
_PREFIX = re.compile(
    r"(?:\s*>)*\s*(?:(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?|#{1,6}\s+|:\s+|\[\^[^\]\s]{1,100}\]:\s+)?(?:>\s*)*"
)
_STARTS_BLOCK = re.compile(r"(?:\s*>)*\s*(?:(?:[-*+:]|\d{1,9}[.)])\s|#{1,6}\s|\[\^[^\]\s]{1,100}\]:\s)")
_QUOTED = re.compile(r"(?:\s*>)*")
_INDENTED = re.compile(r"(?: {4}|\t)")
_HTML_BLOCK = re.compile(r"\s{0,3}</?(?:[a-zA-Z][\w-]*[\s/>]|[a-zA-Z][\w-]*$)|\s{0,3}<!")
_LONG_HTML = re.compile(r"\s{0,3}<(?:(?P<comment>!--)|(?P<name>script|pre|style|textarea)\b)", re.I)
"""The beginning of HTML that may have blank lines inside (CommonMark 0.31, section 4.6)."""
_INLINE_HTML = re.compile(r"\s{0,3}</?(?:a|abbr|b|br|code|em|i|img|kbd|mark|q|s|small|span|strong|sub|sup|u)\b", re.I)
_TARGET = r"""(?:\([^()\s]*(?:\s+"[^"]*")?\)|\[[^\[\]]*\])"""
"""The address of a link or an image, or the label that stands for it."""
_INLINE = re.compile(
    r"""
    (?P<code>(`+)(?!`).+?(?<!`)\2(?!`)) | (?P<kept>\$\$[^$\n]{1,400}\$\$ | \$(?=[^\s$])[^$\n]{1,400}(?<=[^\s$])\$(?!\d)
      | (?:\[!\[[^\]]*\]@target\]|!\[[^\]]*\])@target
      | <[a-zA-Z][a-zA-Z+.-]*:[^<>\s]*> | </?[a-zA-Z][^<>]{0,400}> | <!--.*?--> | \[\^[^\]]+\]
      | !?\[\[[^\[\]|\n]{1,200}\]\](?!\() | (?<!\{)\{:?[ ]?[\#.][\w:.-][^{}\n]{0,200}\} | (?<!\{)\{:[^{}\n]{1,200}\}
      | \S{0,100}\\[!-/:-@[-`{-~]\S* | &\#?\w{1,31}; | (?:[ ]{2,}|\\)\n)
    | \[(?P<link>[^\[\]]+)\](?P<target>(?!\[\])@target)
    | \[(?P<label>[^\[\]]+)\](?:\[\])?
    | \[\[(?P<page>[^\[\]|\n]{1,200})\|(?P<alias>[^\[\]\n]+)\]\]
    | (?P<mark>\*\*\*|\*\*|\*|~~)(?=[^\s*~])(?P<marked>.+?)(?<=[^\s*~])(?P=mark)(?![*])
    | (?<!\w)(?P<line>__|_)(?=[^\s_])(?P<lined>.+?)(?<=[^\s_])(?P=line)(?!\w)
    """.replace("@target", _TARGET),
    re.VERBOSE | re.DOTALL,
)
_BREAK = re.compile(rf"(?:[ ]{{2,}}|\\)\n|{BREAK_TAG}", re.IGNORECASE)
"""A hard line break."""
_LOOK_AHEAD = 100
"""Number of characters after a line break among which the first letter is searched for."""


@dataclass
class MarkdownDocument(TextDocument):
    """A Markdown file.

    sources: each unit as it is written in the file, by the unit's index.
    fragments: text of each unit; None for a unit inside embedded HTML.
    """

    sources: list[str] = field(default_factory=list)
    fragments: list[Fragment | None] = field(default_factory=list)

    def shown(self, place: int, translation: str) -> str:
        fragment = self.fragments[place]
        if translation == self.units[place].text:
            return self.sources[place]
        return translation if fragment is None else text_of(fragment.restored(translation))


def read_markdown(data: bytes) -> Document:
    """Find the texts to translate in a Markdown file. Code, front matter and the marks of its structure stay.

    Raises DocumentError for a file in another encoding than UTF-8 or UTF-16, or with too many texts or HTML tags.
    """
    text, encoding = decoded(data)
    return _Reader(MarkdownDocument(encoding=encoding), text.splitlines(keepends=True)).read()


class _Reader:
    """Reads the lines of a Markdown file into a document, block by block."""

    def __init__(self, document: MarkdownDocument, lines: list[str]) -> None:
        self.document, self.lines, self.at = document, lines, 0
        self.in_list = False
        defined = filter(None, map(_DEFINITION.match, lines))
        self._labels = frozenset(_normalized(match["label"]) for match in defined)
        self._missing: set[str] = set()
        """Ends of HTML that the rest of the file does not have. It is searched for each only once."""
        self._rows = range(0)
        self._is_table = False

    def read(self) -> Document:
        if self.lines and re.fullmatch(r"(?:---|\+\+\+)\s*", self.lines[0]):  # front matter
            end = next((i for i, line in enumerate(self.lines[1:], 1) if line.strip() == self.lines[0].strip()), 0)
            self._keep(end + 1 if end else 0)
        while self.at < len(self.lines):
            self._block()
        return self.document

    def _keep(self, count: int) -> None:
        """Copy the next lines unchanged. count: number of lines."""
        self.document.parts.append("".join(self.lines[self.at : self.at + count]))
        self.at += count

    def _block(self) -> None:
        line = self.lines[self.at]
        after_blank = self.at == 0 or not self.lines[self.at - 1].strip()
        fence = _FENCE.match(line)
        if line.strip() and not line[0].isspace() and not _STARTS_BLOCK.match(line):
            self.in_list = False
        if not line.strip():
            self._keep(1)
        elif fence and (end := self._end_of(fence[1])) is not None:
            self._keep(end + 1 - self.at)
        elif (
            _RULE.match(line)
            or _DEFINITION.match(line)
            or _TABLE_RULE.match(line)
            or _DIRECTIVE.match(line)
            or (_INDENTED.match(line) and after_blank and not self.in_list)
        ):
            self._keep(1)
        elif _HTML_BLOCK.match(line) and not _INLINE_HTML.match(line):
            self._html()
        elif self._is_table_row(self.at):
            self._table_row()
        else:
            self._paragraph()

    def _end_of(self, fence: str) -> int | None:
        """Find the line that closes a block of code or a formula, which begins at the current line. Returns its index.

        fence: characters that open the block. Code that is never closed ends with the file. None for a formula (`$$`)
        that is never closed: its first line is then ordinary text.
        """
        lines = range(self.at + 1, len(self.lines))
        end = next((place for place in lines if self.lines[place].lstrip("> \t").startswith(fence)), None)
        return len(self.lines) - 1 if end is None and fence != "$$" else end

    def _is_table_row(self, at: int) -> bool:
        if "|" not in self.lines[at]:
            return False
        if at not in self._rows:
            start, end = at, at + 1
            while start > 0 and "|" in self.lines[start - 1]:
                start -= 1
            while end < len(self.lines) and "|" in self.lines[end]:
                end += 1
            self._rows = range(start, end)
            self._is_table = any(_TABLE_RULE.match(line) for line in self.lines[start : start + 3])
        return self._is_table

    def _table_row(self) -> None:
        for part in re.split(r"((?<!\\)\||[\r\n]+)", self.lines[self.at]):
            self._text(part, part)
        self.at += 1

    def _html(self) -> None:
        end = self._end_of_html()
        for part in html_parts("".join(self.lines[self.at : end])):
            if isinstance(part, str):
                self.document.parts.append(part)
            else:
                self._add(part, part.text, None)
        self.at = end

    def _end_of_html(self) -> int:
        """Index after the last line of the HTML block at the current line."""
        lines = range(self.at, len(self.lines))
        long = _LONG_HTML.match(self.lines[self.at])
        closing = "-->" if long is None or long["comment"] else f"</{long['name'].lower()}>"
        if long is not None and closing not in self._missing:
            last = next((place for place in lines if closing in self.lines[place].lower()), None)
            if last is not None:
                return last + 1
            self._missing.add(closing)
        return next((place for place in lines if not self.lines[place].strip()), len(self.lines))

    def _paragraph(self) -> None:
        """Read a paragraph, a heading, or a list item as one text. Headings have one line."""
        line = self.lines[self.at]
        match = _PREFIX.match(line)
        prefix = match[0] if match else ""
        self.in_list = bool(re.search(r"[-*+.)]\s", prefix)) or (self.in_list and line[:1].isspace())
        self.document.parts.append(prefix)
        lines, source = [line[len(prefix) :]], [line[len(prefix) :]]
        self.at += 1
        depth = prefix.count(">")
        while "#" not in prefix and self.at < len(self.lines) and self._continues(self.lines[self.at], depth):
            source.append(self.lines[self.at])
            lines.append(self.lines[self.at].lstrip("> \t"))
            self.at += 1
        self._text("".join(lines), "".join(source))

    def _continues(self, line: str, depth: int) -> bool:
        """Whether the current line continues a paragraph.

        line: the current line. depth: number of `>` characters before the paragraph's first line.
        """
        quoted = _QUOTED.match(line)
        if quoted is not None and quoted[0].count(">") > depth:
            return False
        others = (_STARTS_BLOCK, _RULE, _FENCE, _HTML_BLOCK, _DEFINITION, _DIRECTIVE)
        is_block = any(other.match(line) for other in others) and not _INLINE_HTML.match(line)
        return bool(line.strip(" \t>\r\n")) and not is_block and not self._is_table_row(self.at)

    def _text(self, text: str, source: str) -> None:
        """Add a text with inline markup as a unit. White space around it stays, as does a text without letters.

        source: the text as it is in the file, where its further lines have an indentation or marks of a quotation.
        """
        core = text.strip()
        start = text.find(core) if core else 0
        self.document.parts.append(text[:start])
        if core and any(map(str.isalpha, core)):
            fragment = Fragment()
            _inline(core, fragment, self._labels)
            self._add(fragment.unit(), source.strip(), fragment)
        else:
            self.document.parts.append(source.strip())
        self.document.parts.append(text[start + len(core) :])

    def _add(self, unit: TextUnit, source: str, fragment: Fragment | None) -> None:
        self.document.parts.append(self.document.add(unit))
        self.document.sources.append(source)
        self.document.fragments.append(fragment)


def _normalized(label: str) -> str:
    """A label of a link definition in the form in which labels are compared (CommonMark 0.31, section 4.7)."""
    return " ".join(label.split()).casefold()


def _markup(text: str, labels: frozenset[str]) -> Iterator[re.Match[str]]:
    """Yield the inline markup of a text. Brackets around other texts than labels are no markup."""
    at = 0
    while (match := _INLINE.search(text, at)) is not None:
        if match["label"] is None or _normalized(match["label"]) in labels:
            yield match
            at = match.end()
        else:
            at = match.start() + 1


def _inline(text: str, fragment: Fragment, labels: frozenset[str]) -> None:
    """Add the text of a Markdown paragraph, heading or cell to a fragment, with its inline markup.

    Emphasis and links become formatting. Code, formulas, images, HTML tags, URLs, attributes in braces, links between
    notes and escapes become objects without text, as do line breaks.

    labels: labels of the file's link definitions, normalized.
    """
    at = 0
    for match in _markup(text, labels):
        fragment.text(text[at : match.start()])
        at = match.end()
        if match["code"] or match["kept"]:
            if not _BREAK.fullmatch(match[0]):
                fragment.atom(match[0])
            else:
                fragment.line_break(match[0], text[at : at + _LOOK_AHEAD])
            continue
        if match["link"]:
            opening, inner, closing = "[", match["link"], f"]{match['target']}"
        elif match["label"]:  # the label is also the text of the link, which changes
            opening, inner, closing = "[", match["label"], f"][{match['label']}]"
        elif match["alias"]:
            opening, inner, closing = f"[[{match['page']}|", match["alias"], "]]"
        else:
            opening = closing = match["mark"] or match["line"]
            inner = match["marked"] or match["lined"]
        fragment.open((opening, closing))
        _inline(inner, fragment, labels)
        fragment.close()
    fragment.text(text[at:])
