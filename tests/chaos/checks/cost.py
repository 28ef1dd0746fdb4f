"""Check promises 16, 25 and 31: the most expensive bodies neither block the event loop nor take too much memory."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from statistics import quantiles

from tests.chaos.dearest.measure import MeasuredServer
from tests.chaos.dearest.recipe import body_bytes, content_type
from tests.chaos.dearest.search import FORGET_DOCUMENTS, Dear, corpus, measure_corpus, search
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import monitored_server
from tests.clients.models import write_models

STALL_MILLISECONDS = 50
MEMORY_MB = 1000
ANSWERED = (200, 404, 413, 422, 429)
TIMEOUT_SECONDS = 60.0
SEARCH_SECONDS = 12.0
"""Time after which a client of the search disconnects. By then, the event loop has done its work for the request."""
PROBE_SECONDS = 0.02
_TEXT_CHARACTERS = 390_000
"""Length of a large text, just below the limit. In none of the encodings below do 16 such texts fit into one body."""


def _measure(record: Record, server: MeasuredServer, path: str, bodies: Sequence[bytes], name: str) -> None:
    """Send bodies at the same time. Records the longest stall of the event loop, the memory and the statuses."""
    measured = server.measure(path, bodies, TIMEOUT_SECONDS, limit_seconds=STALL_MILLISECONDS / 1000)
    record.runs += len(bodies)
    for answer in measured.answers:
        record.must(answer.status in ANSWERED, f"{path} ({name}, {len(bodies)} at once): status {answer.status}")
    stall, memory = measured.stall_seconds * 1000, measured.peak_bytes / 1e6
    record.most("event loop stood", stall, STALL_MILLISECONDS, "ms")
    record.most("memory of the HTTP process", memory, MEMORY_MB, "MB")
    case = where(path, name, len(bodies))
    statuses = ", ".join(map(str, sorted({answer.status for answer in measured.answers})))
    record.details[case] = f"event loop {stall:.0f} ms, {memory:.0f} MB, status {statuses}"
    record.must(stall <= STALL_MILLISECONDS, f"{case}: the event loop stood {stall:.0f} ms")
    record.must(memory <= MEMORY_MB, f"{case}: {memory:.0f} MB")


def where(path: str, name: str, count: int) -> str:
    """Name of a case. name: name of the body. count: number of bodies that are sent at the same time."""
    return f"{path} ({name}, {count} at once)"


def large_texts(rounds: int, together: int = 16) -> Record:
    """Promise 16: the worst texts at the limit of length, sixteen at once, for a BPE and a WordPiece tokenizer.

    together: number of texts that are sent at the same time.
    """
    record = Record("request")
    texts = {
        name: (part * _TEXT_CHARACTERS)[: _TEXT_CHARACTERS // size]
        for name, part, size in (
            ("one word", "a", 1),
            ("spaces", " ", 1),
            ("short words", "a b", 1),
            ("marks", "!?", 1),
            ("accents", "é", 1),
            ("CJK", "日本", 2),
            ("emoji", "👍🏽", 4),
        )
    }
    requests = [(model, name) for model in ("story", "sentence-encoder") for name in texts][:rounds]
    with monitored_server() as server:
        for model, name in requests:
            body = json.dumps({"model": model, "inputs": texts[name]}, ensure_ascii=False).encode()
            _measure(record, server, "/tokenize", [body] * together, f"{model}, {name}")
    return record


def known_bodies() -> list[tuple[str, str, dict[str, object]]]:
    """Expensive bodies that were written by hand: (name, path, body)."""
    words = " ".join(["fox"] * 60_000)
    long_text = "The old fox saw a boat. " * 8000
    prompts = ["a " * 200] * 64
    scored = {"prompt_logprobs": True, "top_logprobs": 20, "max_new_tokens": 1}
    rerank = {"model": "cross-encoder", "query": words, "texts": ["the dog"] * 1000}
    fields = {f"field_{i}": {"type": "string", "maxLength": 20 + i} for i in range(60)}
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": fields, "required": list(fields)}}
    return [
        ("300 kB query, 1,000 texts", "/rerank", rerank),
        ("30 kB query, 1,000 texts", "/rerank", rerank | {"query": words[:30_000]}),
        ("stride below the window", "/token_classify", {"model": "ner", "inputs": long_text, "stride": 45}),
        ("log-probabilities of 64 prompts", "/generate", {"model": "story", "prompt": prompts, **scored}),
        ("1,024 long texts", "/embed", {"model": "sentence-encoder", "inputs": ["a " * 500] * 1024}),
        ("512 long texts", "/embed_all", {"model": "sentence-encoder", "inputs": ["a " * 500] * 512}),
        ("one text of 2 MB", "/translate", {"inputs": "A. B. " * 316_000}),
        ("1,000 texts of 120 sentences", "/translate", {"inputs": ["One two three. " * 120] * 1000}),
        ("schema of 60 fields", "/generate", {"model": "story", "prompt": "a", "response_format": schema}),
    ]


def dearest(tries: int, together: int = 16, known: int = 100, with_corpus: int = 1, seconds: float = 1500.0) -> Record:
    """Promise 25: measure expensive bodies, alone and sixteen at once.

    The bodies are known ones (`known_bodies`), those that earlier searches found (the corpus), and new ones. Known
    bodies and the corpus must be finished in `seconds`. The search for new bodies uses the remaining time, and starts
    at another route each day.

    tries: number of new bodies for each route. together: number of equal bodies that are sent at the same time.
    known: number of known bodies to send. with_corpus: whether to send the corpus.
    seconds: time of all measurements.
    """
    record = Record("request")
    began = time.monotonic()
    end = began + seconds

    def report(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        models = write_models(Path(directory))
        with monitored_server(*models, *FORGET_DOCUMENTS) as server:
            for name, path, body in known_bodies()[:known]:
                content = json.dumps(body).encode()
                for count in (1, together):
                    _measure(record, server, path, [content] * count, name)
                    case = where(path, name, count)
                    report(f"{case}: {record.details[case]}")
            found: list[Dear] = []
            if with_corpus:
                found += measure_corpus(server, (1, together), timeout=SEARCH_SECONDS, report=report, end=end)
                left = 2 * len(corpus()) - len(found)
                record.must(not left, f"{left} measurements of bodies found earlier were not made in {seconds:g} s")
            if tries:
                first = date.today().toordinal()
                searched = search(server, tries, timeout=SEARCH_SECONDS, report=report, end=end, first=first)
                record.details["search"] = f"{len(searched) // 2} routes"
                found += searched
            for row in found:
                record.runs += 1
                stall, memory = row.stall_seconds * 1000, row.peak_bytes / 1e6
                record.most("event loop stood", stall, STALL_MILLISECONDS, "ms")
                record.most("memory of the HTTP process", memory, MEMORY_MB, "MB")
                dear = stall > STALL_MILLISECONDS or memory > MEMORY_MB
                record.must(not dear, f"{row.path}: {stall:.0f} ms, {memory:.0f} MB: {json.dumps(row.recipe)[:120]}")
    return record


def turns(together: int) -> Record:
    """Promise 31: calls with thousands of rows share the event loop, and `/health` answers during expensive requests.

    together: number of equal bodies that are sent at once; 0 to run only the tests.
    """
    record = run_tests(Record("test or probe"), "tests/ipc/test_large_calls.py", "tests/test_loop_iterations.py")
    if not together:
        return record
    with monitored_server() as server, ThreadPoolExecutor(together) as threads:
        for path, recipe in corpus():
            if path not in ("/v1/completions", "/translate", "/v2/glossaries", "/v3/glossaries"):
                continue
            body, kind = body_bytes(recipe), content_type(recipe)
            sent = [
                threads.submit(server.request, path, body, SEARCH_SECONDS, content_type=kind) for _ in range(together)
            ]
            seconds = []
            while not all(request.done() for request in sent):
                seconds.append(server.request("/health").seconds)
                time.sleep(PROBE_SECONDS)
            record.runs += len(seconds)
            if len(seconds) >= 10:
                record.most("/health p99 beside them", quantiles(seconds, n=100)[-1] * 1000, 100, "ms")
    return record
