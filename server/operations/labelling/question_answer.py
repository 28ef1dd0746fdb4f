"""Answer a question with parts of a context. A long context is read in windows, each with the whole question."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import MAX_ADDED_TOKENS, Cost, max_windows
from server.operations.encode import matrices, window_item
from server.operations.labelling.spans import MAX_ANSWER_TOKENS, best_spans
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import text_runs
from server.text.tokens.windows import TokenWindow, window_room, windows

WINDOW_TOKENS = 384
"""Maximum length of a window, including the question. Models are trained with this length, and transformers uses it."""
STRIDE_TOKENS = 128
"""Number of context tokens by which neighbouring windows overlap, as in transformers."""
LEAST_ADVANCE = 1 / 16
"""Each window starts at least this fraction of a window after the window before it. With a long question, transformers
advances by only a few tokens, and the work would have no useful bound."""


def _advance(width: int, limit: int) -> int:
    """Number of context tokens from the start of one window to the start of the next.

    width: number of tokens in a window for the context. limit: number of all tokens in a window.
    """
    stride = min(STRIDE_TOKENS, limit // 2)
    return max(width - stride, int(limit * LEAST_ADVANCE), 1) if stride < width else width - width // 2


def _least_advance(width: int, limit: int) -> int:
    """The smallest result of `_advance` for all widths from `width` to `limit`."""
    return min(_advance(larger, limit) for larger in range(width, limit + 1))


@dataclass(frozen=True)
class QuestionAnswerSpec:
    """Request for the `top_k` likeliest answers to a question, each of at most `max_answer_tokens` tokens."""

    question: str
    context: str
    model: str | None = None
    top_k: int = 1
    max_answer_tokens: int = MAX_ANSWER_TOKENS

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. The question is repeated in every window."""
        limit = min(model.max_input_tokens, WINDOW_TOKENS)
        bound = model.tokenizer.token_bound
        width = max(1, limit - bound(self.question) - MAX_ADDED_TOKENS)
        sequences = max_windows(bound(self.context), _least_advance(width, limit))
        characters = 2 * (len(self.question) + len(self.context))
        tokens = sequences * limit
        placed = bound(self.question) + bound(self.context)
        return Cost(characters, tokens, sequences, answer_numbers=2 * tokens, placed_tokens=placed)


@dataclass(frozen=True)
class ContextAnswer:
    """An answer to the question. start, end: its range in the context, in characters; `end` is exclusive."""

    answer: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class _Pair:
    """A tokenized question and context.

    run: (start, end) of the context's tokens in the encoding.
    cut: the windows over the context. items: the engine items for the windows.
    """

    encoding: Encoding
    run: tuple[int, int]
    cut: list[TokenWindow]
    items: list[EncodeItem]


async def question_answer(runtime: Runtime, call: Call, spec: QuestionAnswerSpec) -> list[ContextAnswer]:
    """Find the likeliest answers, by descending score.

    Raises InvalidRequest for a question or context without tokens, ContextLengthExceeded for a question that leaves no
    room for the context, and the errors of `Runtime.encode_with`.
    """
    model = runtime.candidates(spec.model, "question_answer")[0]
    runtime.admission.admit(call, model, spec.cost(model), "context")
    pair = await _pair(runtime, call, model, spec)
    message = Encode(call.next_id(), model.name, "classify_tokens", pair.items)
    logits = await matrices(call, message)
    cls_id = model.tokenizer.special.cls
    spans = await runtime.pools.tokenize.run(
        lambda: best_spans(
            pair.encoding, pair.run, zip(pair.cut, logits, strict=True), cls_id, spec.top_k, spec.max_answer_tokens
        ),
        call,
    )
    return [ContextAnswer(spec.context[span.start : span.end], span.score, span.start, span.end) for span in spans]


async def _pair(runtime: Runtime, call: Call, model: ServedModel, spec: QuestionAnswerSpec) -> _Pair:
    """Tokenize question and context, and cut the context into windows.

    Raises InvalidRequest if the question or the context has no token, or if the tokenizer does not separate them.
    """
    (found,) = await runtime.encode_with(
        model.tokenizer,
        [spec.question],
        lambda encoding: _cut(encoding, model),
        pairs=[spec.context],
        param="context",
        offsets=True,
        call=call,
    )
    if found is not None:
        return found
    alone = await runtime.encode(
        model.tokenizer, [spec.question, spec.context], param="context", add_special_tokens=False, call=call
    )
    for name, encoding in zip(("question", "context"), alone, strict=True):
        if not encoding.ids:
            raise InvalidRequest(f"`{name}` is a text without any token", name)
    raise InvalidRequest(f"the tokenizer of `{model.name}` does not separate the question from the context", "model")


def _cut(encoding: Encoding, model: ServedModel) -> _Pair | None:
    """Cut the context of a tokenized pair into windows. None if question and context cannot be told apart.

    Raises ContextLengthExceeded if the question leaves no room for the context.
    """
    run = _context_run(encoding)
    if run is None:
        return None
    limit = min(model.max_input_tokens, WINDOW_TOKENS)
    width = window_room(encoding, run, limit)
    if width < 1:
        raise ContextLengthExceeded(
            f"`question` leaves no room for the context in a window of {limit} tokens", "question"
        )
    cut = windows(encoding, run, limit, width - _advance(width, limit))
    return _Pair(encoding, run, cut, [window_item(encoding, window, model, "context") for window in cut])


def _context_run(encoding: Encoding) -> tuple[int, int] | None:
    """(start, end) of the tokens of a pair's second text, or None if it cannot be told apart from the first text.

    Also works for tokenizers that put no separator between the texts (GPT-2).
    """
    if encoding.sides:
        places = [index for index, side in enumerate(encoding.sides) if side == 1]
        return (places[0], places[-1] + 1) if places and 0 in encoding.sides else None
    runs = text_runs(encoding)
    return runs[1] if len(runs) == 2 else None
