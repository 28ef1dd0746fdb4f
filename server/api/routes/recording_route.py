"""Routes whose body contains a recording. The number of recordings in memory is limited; their bodies wait for room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.form import read_form
from server.api.fields.ignored_parameters import ignored_parameters
from server.api.routes.route import Route, call_headers, leaving_on_disconnect
from server.api.state import State, of
from server.errors import Overloaded
from server.ipc.client.call import Call
from server.ipc.wire.time_limits import TimeLimits
from server.limits.refusals import RECORDINGS
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript

FormT = TypeVar("FormT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class RecordingRoute(Route[FormT, TranscribeSpec, Transcript], Generic[FormT]):
    """A route whose body is a form with a recording.

    parse: creates the specification from the form's fields, the file, and the longest recording that the server
        accepts, in seconds. Raises InvalidRequest.
    render: creates the response from the form's fields and the transcript.
    lists: form fields that may be repeated.
    """

    media_type: ClassVar[str] = "multipart/form-data"
    parse: Callable[[FormT, RecordingFile, float], TranscribeSpec]
    render: Callable[[FormT, Transcript], Response]
    lists: frozenset[str] = frozenset()

    async def respond(self, request: Request) -> Response:
        state = of(request)
        held = HeldRecording(state)
        try:
            response = await self._respond(request, state, held)
        except BaseException:
            held.release()
            raise
        if not held.is_streaming:
            held.release()
        return response

    async def _respond(self, request: Request, state: State, held: HeldRecording) -> Response:
        settings = state.settings
        length = request.headers.get("content-length", "")
        size = min(int(length[:20]), settings.max_audio_bytes) if length.isdigit() else settings.max_audio_bytes
        await state.door.wait_for_body(
            request.scope, size, TimeLimits(state.deadline(request, None), settings.queue_timeout_seconds)
        )
        form, file = await self.receive(request, state)
        call = self.call(request, state, form)
        try:
            call.ignore(ignored_parameters(form))
            recording = RecordingFile(file, lambda: state.door.drop_body(request.scope))
            del file
            with self.errors.renaming():
                spec = self.with_default_model(state, self.parse(form, recording, settings.max_audio_seconds))
                return await self.transcribe_and_answer(request, state, call, form, spec, held)
        except BaseException:
            call.close()
            raise

    async def receive(self, request: Request, state: State) -> tuple[FormT, bytes]:
        """Receive the body. Returns the fields of the form, and the bytes of the file. Raises RequestError."""
        settings = state.settings
        form, file, _ = await read_form(
            request, self.body, self.lists, settings.max_audio_bytes, settings.audio_timeout_seconds
        )
        return form, file

    async def transcribe_and_answer(
        self, request: Request, state: State, call: Call, form: FormT, spec: TranscribeSpec, held: HeldRecording
    ) -> Response:
        """Transcribe the recording and answer. Raises RequestError.

        held: the place that the recording takes in memory. A streamed answer sets its `is_streaming` and releases it.
        """
        with call, leaving_on_disconnect(request, call):
            await state.runtime.prepare(call, self.operation, spec)
            transcript = await self.run(state.runtime, call, spec)
        response = self.render(form, transcript)
        response.headers.update(call_headers(call))
        return response


class HeldRecording:
    """One of the limited places for recordings in memory. It is taken at creation and held until `release`.

    is_streaming: set to True if a stream releases the place at its end.
    Raises Overloaded if all places are taken.
    """

    def __init__(self, state: State) -> None:
        most = state.settings.max_recordings
        if state.recordings >= most:
            raise Overloaded(
                f"{state.recordings:,} audio requests are in progress", RECORDINGS.refusal(f"{most:,}"), retry_after=1
            )
        state.recordings += 1
        self._state: State | None = state
        self.is_streaming = False

    def release(self) -> None:
        """Give the place back for another recording. A second call does nothing."""
        state, self._state = self._state, None
        if state is not None:
            state.recordings -= 1
