"""Check promises 33 and 34: hostile tokenizers cost little, and hostile checkpoints are refused quickly."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from server.errors import CheckpointError
from server.text import checkpoint_text
from server.text.tokens.tokenizer import TokenizerError
from tests.chaos.record import Record
from tests.chaos.server import command, monitored_server
from tests.e2e.conftest import REPOSITORY
from tests.hostile.base import tokenizer, write_checkpoint
from tests.hostile.cases import CASES, write_case
from tests.hostile.measure import measured
from tests.text import test_bounded_tokenizers as bounded

MAX_SECONDS, MAX_MIB = 5.0, 1024.0
REQUEST_SECONDS, REQUEST_BYTES = 1.0, 256e6
_FIRST = ("rank_pattern that backtracks", "num_hidden_layers 1,000", "top_k 1e30", "in the same bytes")
"""A short run has only the cases whose names contain one of these texts."""
_STARTED = ("head_dim 1e9", "top_k 1e30", "tensor's name with escapes", "pickle of plain numbers")
"""Names of the cases that are also passed to `triptych check`, which must fail with a message of one line."""


def files(starts: int, only_first: bool = False) -> Record:
    """Promise 34: each hostile checkpoint is refused with a message of one line, in 5 s and 1 GiB.

    starts: number of cases that are also passed to `triptych check`. only_first: whether to check only a few cases.
    """
    record = Record("hostile checkpoint")
    cases = {name: case for group in CASES.values() for name, case in group.items()}
    for name, case in cases.items():
        if only_first and not any(part in name for part in _FIRST):
            continue
        with tempfile.TemporaryDirectory() as root:
            directory = Path(root) / "checkpoint"
            write_checkpoint(directory)
            refusal = measured(*write_case(case, directory))
            record.runs += 1
            record.must(bool(refusal.message), f"{name}: accepted")
            record.must(refusal.message.isprintable(), f"{name}: control characters, or several lines")
            record.most("refused after", refusal.seconds, MAX_SECONDS, "s")
            record.most("peak memory", refusal.mib, MAX_MIB, "MiB")
            if name in _STARTED[:starts]:
                _start(record, name, directory)
    return record


def _start(record: Record, name: str, directory: Path) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [*command(), "check", str(directory)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    record.most("`triptych check` ended after", time.monotonic() - started, 60.0, "s")
    lines = done.stderr.splitlines()
    record.must(done.returncode == 1 and len(lines) == 1, f"{name}: {len(lines)} lines, status {done.returncode}")


def tokenizers(refused: int) -> Record:
    """Promise 33: hostile `tokenizer.json` files are refused, or cost little while they are used.

    A Rust panic in the tokenizer library must be an error of one request only.

    refused: number of hostile files to check.
    """
    record = Record("hostile tokenizer")
    for name, change in list(bounded.REFUSED.items())[:refused]:
        with tempfile.TemporaryDirectory() as root:
            write_checkpoint(Path(root))
            tokenizer(change)(Path(root))
            started = time.process_time()
            try:
                checkpoint_text.load("llm", Path(root))
                record.must(False, f"{name}: accepted")
            except (CheckpointError, TokenizerError):
                pass
            record.runs += 1
            record.most("refused after", time.process_time() - started, MAX_SECONDS, "s")
    with tempfile.TemporaryDirectory() as root:
        write_checkpoint(Path(root))
        # A tokenizer that lengthens texts as much as is accepted, and whose decoder panics for the token `a`.
        growing = [bounded._replace({"String": "e"}, "x" * 32), {"type": "Fuse"}]
        strip = {"type": "Strip", "content": "a", "start": 1, "stop": 1}
        tokenizer(lambda content: content.update(decoder={"type": "Sequence", "decoders": [strip, *growing]}))(
            Path(root)
        )
        tokenizer(lambda content: content.update(normalizer=bounded._replace({"String": "e"}, "x" * 32)))(Path(root))
        _serve(record, Path(root))
    return record


def _serve(record: Record, directory: Path) -> None:
    a, e = (json.loads((directory / "tokenizer.json").read_bytes())["model"]["vocab"][letter] for letter in "ae")
    with monitored_server(f"llm={directory}") as server:
        for path, body in (
            ("/tokenize", {"inputs": ["e" * 20_000]}),
            ("/detokenize", {"ids": [[e] * 4096]}),
            ("/generate", {"prompt": "e" * 100_000, "max_new_tokens": 1}),
        ):
            found = server.measure(path, [json.dumps({"model": "llm", **body}).encode()])
            record.runs += 1
            record.most("event loop stood", found.stall_seconds * 1e3, 50.0, "ms")
            record.most("seconds of a request", found.answers[0].seconds, REQUEST_SECONDS, "s")
            record.most("memory of a request", found.grown_bytes / 1e6, REQUEST_BYTES / 1e6, "MB")
            record.must(found.answers[0].status in (200, 413, 422), f"{path}: status {found.answers[0].status}")
        answer = server.request("/detokenize", json.dumps({"model": "llm", "ids": [[a]]}).encode())
        record.runs += 1
        is_engine_error = answer.status == 500 and '"engine_error"' in answer.text
        record.must(is_engine_error, f"a panic: status {answer.status}, {answer.text[:80]}")
        record.must(server.request("/health").status == 200, "the server does not answer after a panic")
