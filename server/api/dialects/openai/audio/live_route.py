"""The route of live transcription over plain HTTP, without a WebSocket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.bodies.body import check_codings, validate
from server.api.bodies.sse import EventStream
from server.api.dialects.openai.audio.answer import TranscriptionAnswer
from server.api.dialects.openai.audio.live_query import LiveQuery
from server.api.dialects.openai.audio.live_stream import LiveStream
from server.api.dialects.openai.common import ERRORS
from server.api.entry.scope import KEY_LIMITS
from server.api.fields.ignored_parameters import HEADER as IGNORED_PARAMETERS
from server.api.fields.ignored_parameters import header_value
from server.api.routes.route import Route
from server.api.state import of
from server.errors import InvalidRequest
from server.operations.speech.transcribe import check, transcribe
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript

PATH = "/v1/audio/transcriptions/live"
_EXAMPLE: Mapping[str, Any] = {"model": "speech", "language": "en", "rate": 16000}


@dataclass(frozen=True, kw_only=True)
class LiveRoute(Route[LiveQuery, TranscribeSpec, Transcript]):
    """A route whose request body is a stream of audio, sent while it is spoken. Its parameters are in the query.

    body: schema of the query's parameters.
    parse: converts the query to the specification of one turn, without its audio. Raises InvalidRequest.
    """

    parse: Callable[[LiveQuery], TranscribeSpec]
    media_type: ClassVar[str] = "audio/wav"
    fields_in_query: ClassVar[bool] = True

    async def respond(self, request: Request) -> Response:
        state = of(request)
        query = _query(request)
        check_codings(request)
        deadline = state.deadline(request, None) if "x-timeout-ms" in request.headers else None
        spec = self.with_default_model(state, self.parse(query))
        live = LiveStream(request, state, query, spec, deadline)
        headers = {}
        if state.runtime.registry is None:
            with self.errors.renaming():
                dropped = check(state.runtime, spec)
            headers = {IGNORED_PARAMETERS: header_value(dropped)} if dropped else {}
        opened = ExitStack()
        opened.enter_context(state.live.open(request.scope.get(KEY_LIMITS), live.stop))
        return _LiveResponse(live, opened, headers)


class _LiveResponse(EventStream):
    """Response that begins before the request body has ended.

    opened: exit stack that counts the stream as open. It is closed at the end of the response.
    """

    def __init__(self, live: LiveStream, opened: ExitStack, headers: Mapping[str, str]) -> None:
        self._live, self._opened = live, opened
        super().__init__(live.events, live.gone.set, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._opened:
            await super().__call__(scope, self._live.disconnected, send)


def _query(request: Request) -> LiveQuery:
    """Parse the query. An empty parameter counts as absent, as in forms.

    Raises InvalidRequest for an invalid or repeated parameter.
    """
    given = [(name, value) for name, value in request.query_params.multi_items() if value]
    if len(dict(given)) < len(given):
        raise InvalidRequest("the query has a parameter twice")
    return validate(dict(given), LiveQuery)


ROUTE = LiveRoute(
    path=PATH,
    operation="transcribe",
    name="live_transcriptions",
    description="The text of audio while it is spoken, as server-sent events. The body is a stream of WAV or PCM, in "
    "chunks; the answer begins before it ends. The parameters are in the query.",
    body=LiveQuery,
    parse=LiveQuery.spec,
    answer=TranscriptionAnswer,
    example=(_EXAMPLE, {"text": "The garden is small.", "usage": {"type": "duration", "seconds": 3}}),
    run=transcribe,
    errors=ERRORS,
)
