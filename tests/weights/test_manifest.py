"""The SHA-256 manifest of a checkpoint: a checkpoint with changed, missing or misplaced files is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weights.load import WeightsError, load_weights
from weights.manifest import ManifestError, check_manifest, write_manifest
from weights.rules import Rename


def _checkpoint(directory: Path) -> Path:
    save_file({"a": torch.arange(64.0)}, directory / "model.safetensors")
    (directory / "vocab.txt").write_text("a\nb\n")
    write_manifest(directory, ["vocab.txt", "model.safetensors"])
    return directory


def _load(directory: Path) -> None:
    load_weights(directory, [Rename("a", "a")], {"a": (64,)}, torch.float32, "cpu", lambda name, tensor: None)


def test_unchanged_checkpoint_is_loaded(tmp_path: Path):
    assert check_manifest(_checkpoint(tmp_path)) == 2
    _load(tmp_path)


def test_directory_without_a_manifest_is_accepted(tmp_path: Path):
    assert check_manifest(tmp_path) == 0


@pytest.mark.parametrize("position", [-1, -100, -200])
def test_flipped_bit_is_refused(tmp_path: Path, position: int):
    path = _checkpoint(tmp_path) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"SHA256SUMS.*: model\.safetensors$"):
        _load(tmp_path)


def test_all_differing_files_are_named(tmp_path: Path):
    (_checkpoint(tmp_path) / "vocab.txt").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"model\.safetensors, vocab\.txt"):
        check_manifest(tmp_path)


@pytest.mark.parametrize("line", ["nonsense", "00  short", "0" * 64 + "  ../outside", "0" * 64 + "  /etc/hostname"])
def test_invalid_manifest_is_refused(tmp_path: Path, line: str):
    (tmp_path / "SHA256SUMS").write_text(line + "\n")
    with pytest.raises(ManifestError) as error:
        check_manifest(tmp_path)
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)


def test_the_format_is_that_of_sha256sum(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    (tmp_path / "SHA256SUMS").write_text(f"{digest} *x\n")
    assert check_manifest(tmp_path) == 1
