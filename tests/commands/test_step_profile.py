"""`triptych check --profile` measures the operations of a step, for decoders, encoders and encoder-decoders."""

from __future__ import annotations

import pytest
import torch

from server.commands import step_profile
from server.errors import CheckpointError
from server.settings.settings import Settings
from tests.families.checkpoints import write_checkpoint


@pytest.mark.parametrize(
    ("name", "step", "operations"),
    [
        ("llama", "step: a token after 63 others", {"rms_norm", "rotate", "attend", "output head"}),
        ("bert", "step: a text of 39 tokens", {"layer_norm", "attend"}),
        ("bart", "step: a token after 39 others", {"layer_norm", "attend", "output head"}),
    ],
)
def test_operations_are_listed_with_their_time(tmp_path, name, step, operations):
    settings = Settings(threads=torch.get_num_threads())
    table = step_profile.profile(str(write_checkpoint(tmp_path / name, name)), settings, "cpu")
    assert table[0][0] == step
    rows = {title.strip(): float(text.split(" ms")[0]) for title, text in table}
    assert operations <= rows.keys() and all(milliseconds >= 0 for milliseconds in rows.values())
    assert sum(rows.values()) == pytest.approx(2 * rows[step], abs=0.001 * len(rows))


def test_a_model_without_a_program_says_so(tmp_path):
    settings = Settings(threads=torch.get_num_threads())
    ((_, text),) = step_profile.profile(str(write_checkpoint(tmp_path / "l", "longformer")), settings, "cpu")
    assert "runs without a program" in text


def test_other_devices_and_speech_are_refused(tmp_path):
    settings = Settings(threads=torch.get_num_threads())
    with pytest.raises(CheckpointError, match="on a CPU, not on cuda"):
        step_profile.profile(str(tmp_path), settings, "cuda")
    with pytest.raises(CheckpointError, match="this one reads speech"):
        step_profile.profile(str(write_checkpoint(tmp_path / "w", "whisper")), settings, "cpu")
