"""Fixtures for all speech tests: a server with two small Whisper models, and transformers with the same checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.speech.oracle import Oracle
from tests.e2e.speech.recordings import MAX_BYTES
from tests.parity.speech import SHAPES, write, write_tokenizer


@pytest.fixture(scope="package")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    root, found = tmp_path_factory.mktemp("speech"), {}
    for shape in SHAPES:
        # Like distil-whisper, the second checkpoint names alignment heads that its decoder lacks. The default heads
        # are then used.
        heads = [[1, 2], [0, 3]] if shape == "whisper" else [[9, 0]]
        model = write(root / shape, shape, alignment_heads=heads)
        model.generation_config.alignment_heads = heads if shape == "whisper" else [[0, 0], [0, 1]]
        write_tokenizer(root / shape)
        found[shape] = Oracle(root / shape, model)
    return found


@pytest.fixture(scope="package")
def server(oracles: dict[str, Oracle], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    english = tmp_path_factory.mktemp("english")
    write(english, "whisper", is_multilingual=False)
    write_tokenizer(english)
    models = [f"{shape}={oracle.directory}" for shape, oracle in oracles.items()]
    models += [f"english={english}", f"story={REPOSITORY / 'weights' / 'demo' / 'story'}"]
    limits = ["--max-audio-bytes", str(MAX_BYTES), "--max-audio-seconds", "20", "--threads", "1"]
    with serving(tmp_path_factory.mktemp("server") / "log", *models, *limits) as running:
        yield running
