"""The hub's task automatic-speech-recognition. The body is a recording, or JSON with a recording in base64."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body import read, receive
from server.api.bodies.body_limits import body_limits
from server.api.bodies.json_answer import json_response
from server.api.dialects.huggingface.hub_bodies import HubSpeechBody
from server.api.routes.recording_route import RecordingRoute
from server.api.state import State, of
from server.errors import InvalidRequest
from server.operations.speech.transcribe_spec import Transcript


def is_recording(request: Request) -> bool:
    """Whether the body is a file, judged by its content type.

    No content type counts as a file, because `huggingface_hub` sends none for bytes without a filename.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("", "application/octet-stream") or kind.startswith(("audio/", "video/"))


class HubSpeechRoute(RecordingRoute[HubSpeechBody]):
    """The route of speech recognition. It takes a recording as the body, or JSON with a recording in base64."""

    async def receive(self, request: Request, state: State) -> tuple[HubSpeechBody, bytes]:
        if is_recording(request):
            settings = state.settings
            data = await receive(request, settings.max_audio_bytes, settings.audio_timeout_seconds)
            if not data:
                raise InvalidRequest("the body is empty; it has to be a recording")
            return HubSpeechBody.model_construct(inputs="", model=request.path_params.get("model")), data
        body = await read(request, HubSpeechBody, body_limits(state))
        try:
            return body, await of(request).runtime.pools.parse.run(
                lambda: base64.b64decode(body.inputs.encode(), validate=True)
            )
        except (binascii.Error, UnicodeEncodeError):
            raise InvalidRequest("`inputs` has to be a recording in base64", "inputs") from None


def render(body: HubSpeechBody, transcript: Transcript) -> Response:
    """Render a transcript, with the times of its parts or words if the body asks for them."""
    times = body.parameters.return_timestamps if body.parameters else None
    if not times:
        return json_response({"text": transcript.text})
    parts = [word for line in transcript.lines for word in line.words] if times == "word" else transcript.lines
    chunks = [{"text": part.text, "timestamp": [round(part.start, 3), round(part.end, 3)]} for part in parts]
    return json_response({"text": transcript.text, "chunks": chunks})
