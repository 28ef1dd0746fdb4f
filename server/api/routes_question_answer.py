"""`POST /question_answer`: the part of a text that answers a question. API.md section 5.

A long context is read in windows, each with the whole question before it.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.generation import text_runs
from server.api.replies import json_response
from server.api.schemas import QuestionAnswerBody
from server.api.spans import answers, best_spans
from server.api.state import Model, State, of
from server.api.windows import room, window_item, windows
from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.messages import Encode
from server.text.tokenizer import Encoding

router = APIRouter()

WINDOW_TOKENS = 384
STRIDE = 128
"""As in transformers: what models for this task are trained with, question included."""


@router.post("/question_answer", **operation("question_answer", QuestionAnswerBody))
async def question_answer(request: Request) -> Response:
    """The likeliest answers by falling score, with their places in the context; one unless `top_k` asks for more."""
    state = of(request)
    body = await read(request, QuestionAnswerBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("question_answer",), "/question_answer")[0]
    encoding, run = await _encode(state, model, body.question, body.context)
    limit = min(encode.limit(model.info), WINDOW_TOKENS)
    width = room(encoding, run, limit)
    if width < 1:
        text = f"`question` leaves no room for the context in the {limit} tokens that are read at once"
        raise ContextLengthExceeded(text, "question")
    stride = min(STRIDE, limit // 2)
    cut = windows(encoding, run, limit, stride if stride < width else width // 2)
    items = [window_item(encoding, one) for one in cut]
    for item in items:
        encode.fitting(item.token_ids, model.info, "context")
    message = Encode(state.client.next_id(), model.name, "classify_tokens", items, deadline=deadline)
    logits = await encode.matrices(request, state, message, deadline)
    parts, cls_id, top_k = list(zip(cut, logits, strict=True)), model.tokenizer.special.cls, body.top_k or 1
    spans = await state.in_thread(lambda: best_spans(encoding, run, parts, cls_id, top_k))
    return json_response(answers(spans, body.context))


async def _encode(state: State, model: Model, question: str, context: str) -> tuple[Encoding, tuple[int, int]]:
    """Both as a pair, and where the context's tokens are. Raises InvalidRequest where one of them has none."""
    (encoding,) = await state.encode(model.tokenizer, [question], pairs=[context], param="context", offsets=True)
    run = _context_run(encoding)
    if run is not None:
        return encoding, run
    alone = await state.encode(model.tokenizer, [question, context], param="context", add_special_tokens=False)
    for name, found in zip(("question", "context"), alone, strict=True):
        if not found.ids:
            raise InvalidRequest(f"`{name}` is a text without any token", name)
    raise InvalidRequest(f"the tokenizer of `{model.name}` sets nothing between a question and a context", "model")


def _context_run(encoding: Encoding) -> tuple[int, int] | None:
    """(start, end) of the pair's second text, also where its tokenizer sets nothing between the two (GPT-2)."""
    if encoding.sides:
        places = [index for index, side in enumerate(encoding.sides) if side == 1]
        return (places[0], places[-1] + 1) if places and 0 in encoding.sides else None
    runs = text_runs(encoding)
    return runs[1] if len(runs) == 2 else None
