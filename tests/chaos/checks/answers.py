"""Check promises 10, 17 and 18: every answer goes to its own request, and its characters arrive unchanged."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from server.api.bodies import sse
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.detokenizer import IncrementalDetokenizer
from tests.chaos.connection import Connection
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.text.checkpoints import CORPUS, TORTURE, write_byt5, write_byte_level, write_llama

CLIENTS = 32
WORDS = ("the fox", "a king", "two ships", "no moon", "red wine", "old songs", "cold rain", "my house")


def canaries(requests: int) -> Record:
    """Promise 10: every request carries a number that its answer must contain, and no other request's number.

    A response format with a single choice forces the worker to generate the number, so that the number passes through
    the whole server.
    """
    record = Record("request")

    def request(i: int) -> tuple[str, dict[str, object]]:
        canary = f"canary {i:06d} end"
        choice = {"type": "choice", "choices": [canary]}
        return [
            ("/generate", {"prompt": "Once", "response_format": choice, "max_new_tokens": 40}),
            ("/generate", {"prompt": "Once", "response_format": choice, "max_new_tokens": 40, "stream": True}),
            ("/generate", {"prompt": ["Once", "The"], "response_format": choice, "max_new_tokens": 40, "num_beams": 2}),
            ("/v1/completions", {"model": "story", "prompt": canary, "echo": True, "max_tokens": 4, "temperature": 0}),
            ("/tokenize", {"model": "story", "inputs": canary}),
        ][i % 5]

    embeddings: dict[str, object] = {}

    async def client(url: str, numbers: Iterator[int]) -> None:
        async with Connection(url) as connection:
            for i in numbers:
                path, body = request(i)
                answer = await connection.request("POST", path, body, {"x-request-id": f"canary-{i:06d}"})
                record.must(answer.headers.get("x-request-id") == f"canary-{i:06d}", "the id of another request")
                record.runs += 1
                if not record.must(answer.status == 200, f"{path}: status {answer.status}"):
                    continue
                text = _text(path, bool(body.get("stream")), answer.body)
                record.must(f"{i:06d}" in text, f"{path}: its own canary is missing")
                foreign = [part for part in text.split() if len(part) == 6 and part.isdigit() and part != f"{i:06d}"]
                record.must(not foreign, f"{path}: a foreign canary")
                if i % 10 == 0:
                    await embed(connection, WORDS[i // 10 % len(WORDS)])
                    record.runs += 1

    async def embed(connection: Connection, text: str) -> None:
        """Embed a text. An embedding contains no number, so it is compared with the one that the text got alone."""
        answer = await connection.request("POST", "/embed", {"inputs": text})
        if not record.must(answer.status == 200, f"/embed: status {answer.status}"):
            return
        if not record.must(isinstance(answer.json, list), "/embed: the answer of another route"):
            return
        vector = answer.json[0]
        known = embeddings.setdefault(text, vector)
        same = all(abs(a - b) < 1e-4 for a, b in zip(vector, known, strict=True))  # type: ignore[call-overload]
        record.must(same, "the embedding of another text")

    async def everything(url: str) -> None:
        async with Connection(url) as connection:
            for text in WORDS:
                await embed(connection, text)
        numbers = iter(range(requests))
        await asyncio.gather(*(client(url, numbers) for _ in range(CLIENTS)))

    with server() as running:
        asyncio.run(everything(running.url))
    return record


def _text(path: str, streams: bool, body: bytes) -> str:
    """All text of an answer. For a stream, its deltas are joined. body: body of the answer."""
    if not streams:
        document = json.loads(body)
        if path == "/tokenize":
            return "".join(token["text"] for tokens in document for token in tokens if not token["special"])
        return " ".join(choice["text"] for choice in document.get("choices", []))
    found = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if fields.get("event") == "token":
            found.append(json.loads(fields["data"])["text"])
    return "".join(found)


def splits(count: int) -> Record:
    """Promise 17: the joined deltas of a stream equal the decoded text of all its tokens.

    The texts have emoji, CJK and combining marks, and are split at random tokens.
    """
    record = Record("split")
    rng = random.Random(17)
    alphabet = [*"👍🏽👩‍👩‍👧🇫🇷日本語שלום\u0301\u200déÜ▁ .,'!?ntsmve\n", *CORPUS[:40], *TORTURE]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        tokenizers = [
            load_tokenizer(path)
            for path in (
                write_llama(root / "llama"),
                write_byte_level(root / "gpt2", "gpt2"),
                write_byt5(root / "byt5"),
            )
        ]
    for number in range(count):
        tokenizer = tokenizers[number % len(tokenizers)]
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 12)))
        ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
        whole = tokenizer.decode(ids)
        stop = (
            [text[start : start + rng.randint(1, 4)]] if (start := rng.randrange(len(text) or 1)) % 2 and text else []
        )
        detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)
        deltas = []
        while ids:
            size = rng.randint(1, 3)
            deltas.append(detokenizer.push(ids[:size]))
            ids = ids[size:]
        deltas.append(detokenizer.finish())
        expected = whole.split(stop[0])[0] if stop and stop[0] in whole else whole
        record.must("".join(deltas) == expected, f"split {number}: the deltas are not the decoding")
        record.must("\ufffd" in whole or not any("\ufffd" in delta for delta in deltas), "a replacement character")
        record.runs += 1
    return record


def frames(step: int = 64) -> Record:
    """Promise 18: three parsers read events with every character of Unicode's basic plane correctly.

    step: characters in one event.
    """
    record = Record("event")
    for start in range(0, 0x10000, step):
        text = "".join(chr(code) for code in range(start, start + step) if not 0xD800 <= code <= 0xDFFF)
        if not text:
            continue
        sent = sse.frame("token", {"text": text}) + sse.frame("done", {"text": text[::-1]})
        expected = [("token", {"text": text}), ("done", {"text": text[::-1]})]
        for parser in (_by_bytes, _by_any_line, _by_chunks):
            try:
                found = parser(sent)
            except (ValueError, KeyError):
                found = []
            record.must(found == expected, f"{parser.__name__}: U+{start:04X} to U+{start + step - 1:04X}")
            record.runs += 1
    return record


def _fields(lines: list[str]) -> tuple[str, object]:
    fields = dict(line.split(": ", 1) for line in lines if line)
    return fields["event"], json.loads(fields["data"])


def _by_bytes(sent: bytes) -> list[tuple[str, object]]:
    """Parse events as the standard defines them: lines end at CR, LF or both."""
    text = sent.decode().replace("\r\n", "\n").replace("\r", "\n")
    return [_fields(block.split("\n")) for block in text.split("\n\n") if block]


def _by_any_line(sent: bytes) -> list[tuple[str, object]]:
    """Parse events like clients that split lines with `str.splitlines`, which accepts eleven line ends (httpx)."""
    blocks: list[list[str]] = [[]]
    for line in sent.decode().splitlines():
        if line:
            blocks[-1].append(line)
        else:
            blocks.append([])
    return [_fields(block) for block in blocks if block]


def _by_chunks(sent: bytes) -> list[tuple[str, object]]:
    """Parse events like clients that decode each network chunk separately: here, chunks of seven bytes, in Latin-1."""
    text = "".join(sent[start : start + 7].decode("latin-1") for start in range(0, len(sent), 7))
    return [_fields(block.split("\n")) for block in text.split("\n\n") if block]
