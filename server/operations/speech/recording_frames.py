"""Decode the recording of a request, and get its log-mel frames from the worker."""

from __future__ import annotations

from server.audio import frames as audio
from server.audio.frames import Samples
from server.audio.read import read_audio
from server.audio.wav import AudioError
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.encode import matrices
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.speech.transcribe_spec import TranscribeSpec

WAVES_PER_MESSAGE = 8
"""Number of parts of a recording that are sent to the worker in one message."""


def read_samples(runtime: Runtime, spec: TranscribeSpec) -> Samples:
    """Decode the samples of the recording, mono at 16 kHz, float32.

    Raises InvalidRequest for a file that cannot be decoded or is longer than `spec.max_seconds`.
    """
    try:
        return read_audio(spec.file.data, spec.max_seconds, runtime.audio_decoder)
    except AudioError as error:
        raise InvalidRequest(str(error), "file") from None


async def log_mel_frames(runtime: Runtime, call: Call, model: ServedModel, waves: list[Samples]) -> audio.Frames:
    """Let the worker compute the log-mel frames of a whole recording.

    waves: the recording, cut by `split_samples`. The list is emptied, to free memory.
    """
    found: list[audio.Frames] = []
    while waves:
        items = [EncodeItem([], samples=wave.astype("<f4").tobytes()) for wave in waves[:WAVES_PER_MESSAGE]]
        del waves[:WAVES_PER_MESSAGE]
        found += await matrices(call, Encode(call.next_id(), model.name, "log_mel", items))
    return await runtime.pools.audio.run(lambda: audio.join_log_mel(found), call)
