"""Vulnerabilities of other model servers (2025 and 2026): paths from metadata, compression bombs, growing caches."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import pytest
import torch

from models.checkpoint.quantize_checkpoint import quantize_checkpoint
from models.config import ConfigError
from server.engine.grammars.marker_tokens import MAX_CACHED, MarkerTokens
from tests.hostile.advisories import ADVISORIES, written
from tests.hostile.base import config, write_checkpoint, write_json
from weights.errors import ResolveError, WeightsError
from weights.read import open_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "in")
    return tmp_path / "in"


def _written(directory: Path, checkpoint: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {checkpoint.name}


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors", "a/../../outside.safetensors"])
def test_quantize_takes_no_path_from_an_index(name: str, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint.parent / "outside.safetensors")
    write_json(checkpoint, "model.safetensors.index.json", {"weight_map": {"model.norm.weight": name}})
    with pytest.raises((WeightsError, ResolveError), match="own directory"):
        quantize_checkpoint(checkpoint, checkpoint.parent / "out", "int8-fast")
    assert _written(checkpoint.parent, checkpoint) == {"outside.safetensors"}


@pytest.mark.parametrize("folder", ["../../up", "/tmp", "a/../../.."])
def test_quantize_takes_no_folder_from_modules(folder: str, checkpoint: Path) -> None:
    write_json(checkpoint, "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": folder}])
    with pytest.raises((ConfigError, WeightsError, ResolveError)):
        quantize_checkpoint(checkpoint, checkpoint.parent / "out", "int8-fast")
    assert _written(checkpoint.parent, checkpoint) == set()


def test_quantize_copies_no_file_through_a_link(checkpoint: Path) -> None:
    secret = checkpoint.parent / "secret.txt"
    secret.write_text("secret")
    (checkpoint / "vocab.txt").symlink_to(secret)
    with pytest.raises(ResolveError, match="leads out"):
        quantize_checkpoint(checkpoint, checkpoint.parent / "out", "int8-fast")
    assert _written(checkpoint.parent, checkpoint) == {"secret.txt"}


def test_quantize_compares_sizes_first(checkpoint: Path) -> None:
    config(num_hidden_layers=1000)(checkpoint)
    with pytest.raises(ConfigError, match="1,000 layers"):
        quantize_checkpoint(checkpoint, checkpoint.parent / "out", "int8-fast")


def test_a_compressed_archive_is_not_unpacked(checkpoint: Path) -> None:
    plain = io.BytesIO()
    torch.save({"model.norm.weight": torch.zeros(1 << 20)}, plain)
    (checkpoint / "model.safetensors").unlink()
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(checkpoint / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(WeightsError, match="a compressed archive"), open_checkpoint(checkpoint):
        pass


def test_markers_of_requests_do_not_fill_memory() -> None:
    tokens = MarkerTokens([b"<a>", b"<b", b"c"])
    for number in range(3 * MAX_CACHED):
        tokens._with(b"<%d>" % number)
        tokens._beginning_with(b"<%d>" % number, False)
    assert len(tokens._containing) <= MAX_CACHED and len(tokens._beginning) <= MAX_CACHED
    assert tokens._with(b"<a") == [0], "an answer is the same after others were forgotten"


def test_an_escape_in_a_file_reaches_no_terminal(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "config.json").read_bytes())
    write_json(checkpoint, "config.json", {**content, "hidden_act": "\x1b[2J"})
    with pytest.raises(ConfigError) as caught:
        quantize_checkpoint(checkpoint, checkpoint.parent / "out", "int8-fast")
    assert str(caught.value).isprintable()


def test_each_class_of_advisories_has_tests_that_exist() -> None:
    for advisory in ADVISORIES:
        assert advisory.tests, advisory.name
        for test in advisory.tests:
            path, _, name = test.partition("::")
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), test


def test_the_page_has_the_present_table() -> None:
    page = (ROOT / "docs" / "advisories.md").read_text(encoding="utf-8")
    assert written(page) == page
