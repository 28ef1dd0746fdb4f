"""Find named entities in texts, from the class scores of each token. A long text is read in overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import MAX_ADDED_TOKENS, Cost, characters_of, max_windows, most_tokens
from server.operations.encode import Numbers, matrices, window_item
from server.operations.labelling.entities import (
    OUTSIDE,
    Aggregation,
    NamedEntity,
    entities,
    text_tokens,
    without_overlaps,
)
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import text_runs
from server.text.tokens.windows import TokenWindow, window_room, windows

DEFAULT_STRIDE_TOKENS = 64


@dataclass(frozen=True)
class TokenClassifySpec:
    """Request for the entities of texts.

    aggregation: rule by which scores of tokens become entities, an argument of `entities`.
    stride_tokens: number of text tokens by which neighbouring windows overlap; None for 64, or half of a window if that
        is less.
    ignored_labels: labels whose entities are left out.
    """

    inputs: Sequence[str]
    model: str | None = None
    aggregation: Aggregation = "simple"
    stride_tokens: int | None = None
    ignored_labels: Sequence[str] = (OUTSIDE,)

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        width = model.max_input_tokens - MAX_ADDED_TOKENS
        stride = default_stride(width) if self.stride_tokens is None else self.stride_tokens
        lengths = [most_tokens(model.tokenizer, text) for text in self.inputs]
        sequences = sum(max_windows(length, width - stride) for length in lengths)
        tokens = min(sequences * model.max_input_tokens, sum(lengths) * (1 + width // max(1, width - stride)))
        numbers = tokens * len(model.info.labels)
        return Cost(characters_of(self.inputs), tokens, sequences, answer_numbers=numbers, placed_tokens=sum(lengths))


async def token_classify(runtime: Runtime, call: Call, spec: TokenClassifySpec) -> list[list[NamedEntity]]:
    """Find the entities of each text, in the order of the text.

    Raises InvalidRequest for a model that needs labels in the request, or a stride that is not less than a window.
    """
    fitting = runtime.candidates(spec.model, "token_classify")
    model = next((candidate for candidate in fitting if candidate.info.labelled_spans is None), fitting[0])
    if model.info.labelled_spans is not None:
        raise InvalidRequest(
            f"`labels` is required: `{model.name}` finds the entities of labels in the request", "labels"
        )
    runtime.admission.admit(call, model, spec.cost(model))

    def cut(encoding: Encoding) -> tuple[Encoding, list[TokenWindow], list[EncodeItem]]:
        found = _windows(model, encoding, spec.stride_tokens)
        return encoding, found, [window_item(encoding, window, model, "inputs") for window in found]

    parts = await runtime.encode_with(model.tokenizer, spec.inputs, cut, param="inputs", offsets=True, call=call)
    items = [item for _, _, of_text in parts for item in of_text]
    message = Encode(call.next_id(), model.name, "classify_tokens", items)
    logits = iter(await matrices(call, message))
    pieces = [
        partial(_entities, spec, model, text, encoding, of_text, [next(logits) for _ in of_text])
        for text, (encoding, of_text, _) in zip(spec.inputs, parts, strict=True)
    ]
    return await runtime.pools.tokenize.run_pieces(pieces, call)


def _entities(
    spec: TokenClassifySpec,
    model: ServedModel,
    text: str,
    encoding: Encoding,
    of_text: list[TokenWindow],
    logits: list[Numbers],
) -> list[NamedEntity]:
    tokens = [text_tokens(text, encoding, *window, model.tokenizer) for window in zip(of_text, logits, strict=True)]
    labels = model.info.labels
    found = chain.from_iterable(
        entities(window_tokens, spec.aggregation, labels, model.tokenizer, spec.ignored_labels)
        for window_tokens in tokens
    )
    return without_overlaps(list(found)) if len(of_text) > 1 else list(found)


def _windows(model: ServedModel, encoding: Encoding, stride: int | None) -> list[TokenWindow]:
    """Divide a tokenized text into windows. stride: overlap in text tokens; None for the default.

    Raises InvalidRequest for a stride that is not less than the number of text tokens in a window.
    """
    limit = model.max_input_tokens
    runs = text_runs(encoding) or [(0, 0)]
    run = (runs[0][0], runs[-1][1])
    width = window_room(encoding, run, limit)
    if stride is not None and stride >= width:
        raise InvalidRequest(f"`stride` {stride} must be less than the {width} tokens of a window", "stride")
    return windows(encoding, run, limit, default_stride(width) if stride is None else stride)


def default_stride(width: int) -> int:
    """Default overlap of neighbouring windows, in text tokens. width: number of text tokens in a window."""
    return min(DEFAULT_STRIDE_TOKENS, width // 2)
