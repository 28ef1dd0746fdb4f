"""Time of a translated document, relative to the same texts sent to `/translate`.

    python -m benchmarks.documents                          # 4,500 sentences, which fill 300 pages
    python -m benchmarks.documents --sentences 600 --rounds 1 --tagged 3

A paragraph has three sentences. By default, two sentences of every paragraph contain formatting: one word of the first,
two words of the second. The demo translator, or the checkpoint `--model`, translates the document as HTML, as a Word
file and as plain text (`POST /translate_file`), and the same paragraphs with `POST /translate`: as plain texts
(`calls`) and with the formatting as HTML tags (`tagged`). Placing tags takes a second pass of the model over each
sentence that has some. The server divides a document into portions; the calls of `/translate` have the size of these
portions, and the same number of calls is in progress at once.

The speed of a machine changes by half within minutes. So each round measures every kind of file, and `tagged`, right
after `calls`, in every second round right before, and divides by the cost of these calls. The table has medians over
the rounds, and in brackets the medians of the ratios: elapsed time, processor time of all server processes, and number
of engine steps.

The exit status is 1 if the text of a document differs from the text that `/translate` returns, or if the median ratio
of the elapsed time of a document to that of `calls` is above 1.15. The last lines also compare each document with the
calls that send the same tags: `tagged` for HTML and Word files, `calls` for plain text.
"""

from __future__ import annotations

import argparse
import html
import http.client
import io
import json
import os
import random
import re
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.agent_turns import serving
from benchmarks.http_client import send_all
from benchmarks.process import REPOSITORY
from server.operations.translating.translate_document import PORTION_CHARACTERS, PORTION_UNITS, PORTIONS_AT_ONCE
from weights.demo.train.grammar.bilingual import sentence

MAX_RATIO = 1.15
"""Largest allowed elapsed time of a document, as a multiple of the elapsed time of the calls without tags."""
SAME_TEXTS = {"html": "tagged", "docx": "tagged", "txt": "calls"}
"""For each kind of file, the calls that send the same texts with the same tags."""
PER_PARAGRAPH = 3
"""Number of sentences in a paragraph."""
MODEL = REPOSITORY / "weights" / "demo" / "translator-en-fr"
_WORD_XML = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_BOUNDARY = "benchmark-of-documents"


@dataclass(frozen=True)
class Part:
    """A part of a paragraph. is_formatted: whether it is bold; otherwise it has no formatting."""

    text: str
    is_formatted: bool = False


Paragraph = Sequence[Part]


@dataclass(frozen=True)
class Cost:
    """The cost of one translation of all sentences.

    seconds: elapsed time. processor_seconds: processor time of all server processes.
    steps: number of engine steps.
    """

    seconds: float
    processor_seconds: float
    steps: float


def paragraphs(count: int, tagged: int) -> list[Paragraph]:
    """Paragraphs of different sentences of the demo translator's grammar.

    count: number of sentences. tagged: how many sentences of each paragraph contain formatting.
    """
    rng = random.Random(0)
    known: dict[str, None] = {}
    while len(known) < count:
        text = sentence(rng)[0]
        if len(text.split()) > 3:
            known[text] = None
    texts = list(known)
    return [
        [
            part
            for place, text in enumerate(texts[at : at + PER_PARAGRAPH])
            for part in _parts(text, place < tagged, place % 2 + 1, " " if place else "")
        ]
        for at in range(0, count, PER_PARAGRAPH)
    ]


def _parts(text: str, is_tagged: bool, num_words: int, before: str) -> Iterator[Part]:
    """Divide a sentence into plain and bold parts. num_words: number of bold words. before: white space before it."""
    words = text.split()
    if not is_tagged:
        yield Part(before + text)
        return
    place = len(words) // 2 - 1
    yield Part(f"{before}{' '.join(words[:place])} " if place else before)
    yield Part(" ".join(words[place : place + num_words]), is_formatted=True)
    yield Part(f" {' '.join(words[place + num_words :])}")


def plain(paragraph: Paragraph) -> str:
    return "".join(part.text for part in paragraph)


def as_text(found: Sequence[Paragraph]) -> bytes:
    return "\n\n".join(map(plain, found)).encode()


def tagged(paragraph: Paragraph) -> str:
    """A paragraph as HTML, with a `b` element for each formatted part."""

    def shown(part: Part) -> str:
        text = html.escape(part.text, quote=False)
        return f"<b>{text}</b>" if part.is_formatted else text

    return "".join(map(shown, paragraph))


def as_html(found: Sequence[Paragraph]) -> bytes:
    """The paragraphs as an HTML page, with a `p` element for each paragraph."""
    body = "\n".join(f"<p>{tagged(paragraph)}</p>" for paragraph in found)
    return f"<!DOCTYPE html>\n<html><head><meta charset=utf-8></head><body>\n{body}\n</body></html>\n".encode()


def as_word(found: Sequence[Paragraph]) -> bytes:
    """The paragraphs as a Word file. Each run has a font and a size, as in the files of office programs."""

    def run(part: Part) -> str:
        text = html.escape(part.text, quote=False)
        bold = "<w:b/>" if part.is_formatted else ""
        properties = f'<w:rPr><w:rFonts w:ascii="Arial" w:hAnsi="Arial"/>{bold}<w:sz w:val="22"/></w:rPr>'
        return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'

    body = "".join(f"<w:p>{''.join(run(part) for part in paragraph if part.text)}</w:p>" for paragraph in found)
    types = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", types)
        document = f'<w:document xmlns:w="{_WORD_XML}"><w:body>{body}</w:body></w:document>'
        archive.writestr("word/document.xml", document)
    return output.getvalue()


def text_paragraphs(name: str, data: bytes) -> list[str]:
    """The text of each paragraph of a translated file. name: file name."""
    if name.endswith(".txt"):
        return data.decode().split("\n\n")
    text, tag = data.decode(errors="replace"), "p"
    if name.endswith(".docx"):
        text, tag = zipfile.ZipFile(io.BytesIO(data)).read("word/document.xml").decode(), "w:p"
    return [without_tags(found[1]) for found in re.finditer(rf"<{tag}>(.*?)</{tag}>", text, re.S)]


def without_tags(text: str) -> str:
    """The characters of an HTML or XML text."""
    return html.unescape(re.sub(r"<[^<>]*>", "", text))


def call_texts(paragraph_texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts of each `/translate` call: as many paragraphs as fit into one portion of a document."""
    texts: list[str] = []
    size = 0
    for text in paragraph_texts:
        if texts and (len(texts) == PORTION_UNITS or size + len(text) > PORTION_CHARACTERS):
            yield texts
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    if texts:
        yield texts


class Client:
    """Sends paragraphs to a server on this machine, and measures the cost.

    url: address of the server. found: the paragraphs.
    """

    def __init__(self, url: str, found: Sequence[Paragraph]) -> None:
        address = urlsplit(url)
        assert address.hostname is not None and address.port is not None
        self._host, self._port = address.hostname, address.port
        self._paragraphs = found
        self._files = {"a.html": as_html(found), "a.docx": as_word(found), "a.txt": as_text(found)}
        self._pids = sorted(_server_pids())

    def calls(self, with_tags: bool) -> list[str]:
        """Translate the paragraphs with `/translate`. Returns the translation of each paragraph, without tags.

        with_tags: send HTML with the formatting, not plain text.
        """
        written = map(tagged if with_tags else plain, self._paragraphs)
        options = {"source_lang": "en", "target_lang": "fr", "format": "html" if with_tags else "text"}
        bodies = [json.dumps({"inputs": texts, **options}).encode() for texts in call_texts(written)]
        answers, _ = send_all(self._port, [("/translate", body) for body in bodies], PORTIONS_AT_ONCE)
        found = [text["text"] for answer in answers for text in json.loads(answer.body)["translations"]]
        return [without_tags(text) for text in found] if with_tags else found

    def document(self, name: str) -> list[str]:
        """Translate the paragraphs as one file, and fetch the result. Returns the translation of each paragraph.

        name: file name, one of `a.html`, `a.docx` and `a.txt`.
        """
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"'
        fields = [f"{head.format(field)}\r\n\r\n{value}\r\n" for field, value in (("source", "en"), ("target", "fr"))]
        file = f'{head.format("file")}; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        body = "".join([*fields, file]).encode() + self._files[name] + f"\r\n--{_BOUNDARY}--\r\n".encode()
        given = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}", "x-timeout-ms": "600000"}
        link = json.loads(self._request("POST", "/translate_file", body, given))["translatedFileUrl"]
        return text_paragraphs(name, self._request("GET", urlsplit(link).path))

    def _request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=600)
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content

    def measured(self, translate: Callable[[], list[str]]) -> tuple[Cost, list[str]]:
        """Run a translation. Returns its cost and its texts."""
        steps, worked, began = self._steps(), _processor_seconds(self._pids), time.perf_counter()
        texts = translate()
        seconds = time.perf_counter() - began
        return Cost(seconds, _processor_seconds(self._pids) - worked, self._steps() - steps), texts

    def _steps(self) -> float:
        metrics = self._request("GET", "/metrics").decode()
        return sum(map(float, re.findall(r"^triptych_step_seconds_count\S* (\S+)$", metrics, re.M)))


def _server_pids() -> Iterator[int]:
    """Process ids of all descendants of this process: the server, its workers and its helpers."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() and pid != ancestor:
            yield pid


def _processor_seconds(pids: Sequence[int]) -> float:
    """Processor time of the processes `pids` so far, with all their threads, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=4_500)
    parser.add_argument("--tagged", type=int, default=2, help="sentences of each paragraph with formatting (0 to 3)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL, help="checkpoint that translates from English to French")
    parser.add_argument("--kinds", nargs="+", default=["html", "docx", "txt"], choices=["html", "docx", "txt"])
    options = parser.parse_args(arguments)

    found = paragraphs(options.sentences, options.tagged)
    kinds = ("tagged", *options.kinds)
    pairs: dict[str, list[tuple[Cost, Cost]]] = {kind: [] for kind in kinds}
    differing = 0
    with serving(str(options.model), "--no-access-log", "--max-timeout-seconds", "3600") as url:
        warm = Client(url, found[:40])
        for kind in ("html", "docx"):  # starts the process that reads documents
            warm.document(f"a.{kind}")
        client = Client(url, found)
        ways: dict[str, Callable[[], list[str]]] = {
            "tagged": partial(client.calls, True),
            **{kind: partial(client.document, f"a.{kind}") for kind in options.kinds},
        }
        calls = partial(client.calls, False)
        for number in range(options.rounds):
            shown = []
            for kind, way in ways.items():
                order = (calls, way) if number % 2 == 0 else (way, calls)
                (base, expected), (cost, texts) = [client.measured(each) for each in order][:: 1 - 2 * (number % 2)]
                pairs[kind].append((base, cost))
                differing += len(texts) != len(expected) or sum(map(str.__ne__, texts, expected))
                shown.append(f"{kind} {cost.seconds:.2f} s beside {base.seconds:.2f}")
            print(f"round {number + 1}: " + ", ".join(shown), flush=True)
    ratios: dict[str, float] = {"calls": 1.0}
    print("            seconds          processor s      steps")
    for kind, own in pairs.items():
        columns = []
        for name in ("seconds", "processor_seconds", "steps"):
            values = [(getattr(base, name), getattr(cost, name)) for base, cost in own]
            ratio = statistics.median([value / base for base, value in values])
            ratios.setdefault(kind, ratio)
            columns.append(f"{statistics.median([value for _, value in values]):9.2f} ({ratio:5.3f})")
        print(f"{kind:6}", *columns)
    print(f"{differing} paragraphs differ from those of /translate")
    for kind in options.kinds:
        print(
            f"{kind}: {ratios[kind]:.3f} times as long as /translate without tags (goal: at most {MAX_RATIO}), "
            f"{ratios[kind] / ratios[SAME_TEXTS[kind]]:.3f} times as long as with the same tags"
        )
    return int(differing > 0 or max(ratios[kind] for kind in options.kinds) > MAX_RATIO)


if __name__ == "__main__":
    sys.exit(main())
