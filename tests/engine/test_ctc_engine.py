"""Recordings in an engine with a CTC head: labels equal transformers, and an item that fails does not affect others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from tests.engine.harness import Pair, engine, run
from tests.parity.checkpoints import load
from tests.parity.ctc import write
from tests.parity.speech import recording

NAME = "wav2vec2-base"
SHORTEST = 400


@pytest.fixture(scope="module")
def pair(tmp_path_factory, device) -> Pair:
    directory = tmp_path_factory.mktemp(NAME)
    oracle = write(directory, NAME).to(device)
    loaded = LoadedCheckpoint(
        ModelSpec(NAME, str(directory), "float32"), load(directory, device), torch.float32, device, 0.0
    )
    return Pair(NAME, oracle, loaded)


def item(samples: np.ndarray) -> EncodeItem:
    return EncodeItem([], samples=samples.astype("<f4").tobytes())


@torch.inference_mode()
def test_labels_and_their_probabilities_equal_transformers(pair):
    clips = [recording(1.2, seed=1), recording(0.4, seed=2), recording(0.9, seed=3)]
    results = run(engine([pair]), [Encode(1, NAME, "ctc", [item(clip) for clip in clips])])
    for index, clip in enumerate(clips):
        best = pair.oracle(torch.from_numpy(clip).to(pair.oracle.device)[None]).logits[0].log_softmax(-1).max(-1)
        assert results.words[1, index] == best.indices.tolist()
        assert results.rows[1, index] == len(best.indices)
        values = np.frombuffer(results.encoded[1, index], "<f4")
        np.testing.assert_allclose(values, best.values.cpu().numpy(), atol=2e-4)


def test_a_recording_of_nan_fails_alone(pair):
    spoiled = np.full(2000, np.nan)
    messages = [Encode(1, NAME, "ctc", [item(recording(0.3))]), Encode(2, NAME, "ctc", [item(spoiled)])]
    results = run(engine([pair]), messages)
    assert list(results.encoded) == [(1, 0)] and list(results.failed) == [2]


@pytest.mark.parametrize(
    "message",
    [
        Encode(1, NAME, "ctc", []),
        Encode(1, NAME, "embed", [item(recording(0.3))]),
        Encode(1, NAME, "ctc", [EncodeItem([1, 2])]),
        Encode(1, NAME, "ctc", [item(np.zeros(SHORTEST - 1))]),
        Encode(1, NAME, "ctc", [item(np.zeros(4096 * 320 + 1))]),
        Encode(1, NAME, "ctc", [EncodeItem([], samples=bytes(4 * SHORTEST + 2))]),
    ],
    ids=["no items", "another task", "tokens", "too short", "too long", "half a sample"],
)
def test_wrong_messages_fail(pair, message):
    failed = run(engine([pair]), [message]).failed
    assert [one.code for one in failed.values()] == ["engine_error"]
