"""The number of recordings in memory is limited, and every request that ends makes room for another one."""

from __future__ import annotations

import httpx
import pytest

from server.api.dialects import registry
from server.api.dialects.openai.audio.live_turn import transcribe_turn
from server.api.entry.door import RECORDING_PATHS
from server.api.routes.recording_route import RecordingRoute
from server.errors import Overloaded
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec
from tests.api.conftest import Bench
from tests.audio.wavs import wav
from tests.parity.speech import recording

ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations")


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_over_the_limit_is_refused_before_its_body_is_read(
    bench: Bench, http: httpx.AsyncClient, route: str
) -> None:
    bench.become_ready()
    bench.state.recordings = bench.state.settings.max_recordings
    answer = await http.post(route, content=b"not a form")
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "overloaded"
    assert answer.headers["retry-after"] == "1"
    bench.state.recordings -= 1
    assert (await http.post(route, content=b"not a form")).status_code == 415


@pytest.mark.parametrize("route", ROUTES)
async def test_a_refused_request_makes_room_for_another(bench: Bench, http: httpx.AsyncClient, route: str) -> None:
    bench.become_ready()
    for _ in range(2 * bench.state.settings.max_recordings):
        answer = await http.post(route, files={"file": ("a.wav", wav(recording(0.1)))})
        assert answer.status_code == 400 and "no loaded model" in answer.json()["error"]["message"]
    assert bench.state.recordings == 0


def test_the_door_knows_the_paths_of_all_recordings() -> None:
    """`RECORDING_PATHS` has the path of every recording route.

    Requests to these paths wait for room when the door is full; the door refuses other requests at once.
    """
    assert {route.path for route in registry.ROUTES if isinstance(route, RecordingRoute)} == RECORDING_PATHS


async def test_a_turn_of_a_live_session_over_the_limit_is_refused(bench: Bench) -> None:
    bench.state.recordings = bench.state.settings.max_recordings
    with pytest.raises(Overloaded, match="audio requests are in progress"):
        await transcribe_turn(bench.state, {}, TranscribeSpec(RecordingFile(b""), 1800), b"", is_whole=True)
    assert bench.state.recordings == bench.state.settings.max_recordings
