"""Windows of models with a CTC head have 30 s, and never more labels than the model allows."""

from __future__ import annotations

import pytest

from server.ipc.wire.descriptions import ModelInfo
from server.operations.speech.sample_windows import window_frames


@pytest.mark.parametrize(("samples_per_token", "frames"), [(320, 3000), (256, 3000), (40, 1024), (1280, 3000)])
def test_a_window_has_at_most_the_labels_of_the_model(samples_per_token: int, frames: int) -> None:
    info = ModelInfo(
        "speech",
        "wav2vec2",
        "Wav2Vec2ForCTC",
        ["transcribe"],
        "float32",
        parameters=1,
        weight_bytes=4,
        vocab_size=32,
        hidden_size=8,
        context_tokens=4096,
        samples_per_token=samples_per_token,
        min_samples=400,
    )
    assert window_frames(info) == frames
    assert frames * 160 <= info.context_tokens * samples_per_token
