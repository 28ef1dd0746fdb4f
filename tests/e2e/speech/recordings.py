"""Artificial recordings, and functions that send them to a server."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tests.audio.wavs import wav
from tests.e2e.conftest import RunningServer
from tests.parity.speech import SHAPES, recording

ROUTE = "/v1/audio/transcriptions"
MAX_BYTES = 1 << 20
every_shape = pytest.mark.parametrize("shape", SHAPES)
LONG = {seed: recording(2.9 + 0.77 * seed, seed=seed) for seed in range(4)}


PLAIN = {"temperature_increment_on_fallback": "0", "no_speech_threshold": "1"}
"""Fields with which the server accepts every window after one decoding, as transformers does by default."""


def send(server: RunningServer, samples: np.ndarray | bytes, route: str = ROUTE, **fields) -> httpx.Response:
    data = samples if isinstance(samples, bytes) else wav(samples, bits=32, is_float=True)
    return httpx.post(server.url + route, files={"file": ("a.wav", data)}, data=PLAIN | fields, timeout=120)


def transcript(server: RunningServer, samples: np.ndarray | bytes, route: str = ROUTE, **fields) -> dict:
    response = send(server, samples, route, response_format="verbose_json", **fields)
    assert response.status_code == 200, response.text
    return response.json()
