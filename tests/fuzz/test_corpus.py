"""Run every fuzzing target on every stored input once. `make fuzz` searches for further inputs."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_inputs(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert len(files) >= 2
    for file in files:
        TARGETS[name](file.read_bytes())


def test_every_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", ["wav", "html", "dialects", "safetensors"])
def test_a_parser_that_fails_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if a parser raises an undocumented exception, the target fails."""
    from tests.fuzz import targets

    def fail(*arguments: object) -> None:
        raise KeyError("planted")

    for function in ("read_wav", "parse", "open_checkpoint"):
        monkeypatch.setattr(targets, function, fail)
    monkeypatch.setattr(targets.body, "parse", fail)
    with pytest.raises(KeyError, match="planted"):
        for file in sorted((CORPUS / name).iterdir()):
            TARGETS[name](file.read_bytes())
