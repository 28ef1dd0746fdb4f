"""Late chunking: vectors of parts of one long text. The model reads the whole text once, and then each part is pooled.

The vector of a part therefore depends on the text around it. Source: Guenther et al. 2024, arXiv:2409.04701.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import Cost, most_tokens
from server.operations.encode import Numbers, check_tokens, matrices, type_ids_or_none
from server.operations.ranking.embed import check_dimensions, cut_vectors, vector_size
from server.operations.ranking.routes import of_role
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.languages.sentences import split_sentences
from server.text.tokens.tokenizer import Encoding

MAX_CHUNKS = 1024


@dataclass(frozen=True)
class EmbedChunksSpec:
    """Request for one vector per part of a text.

    chunks: (start, end) of each part, in characters; None for the sentences of the text.
    pooling: "mean" pools by the mean, without the checkpoint's dense layers. None is only allowed if the checkpoint
        pools by the mean.
    The other fields have the same meaning as in `EmbedSpec`.
    """

    text: str
    chunks: Sequence[tuple[int, int]] | None = None
    model: str | None = None
    normalize: bool = True
    dimensions: int | None = None
    prompt_name: str | None = None
    pooling: Literal["mean"] | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. A text has at most one sentence per character."""
        prompt = model.text.prompt(self.prompt_name)
        count = min(len(self.text), MAX_CHUNKS) if self.chunks is None else len(self.chunks)
        tokens = most_tokens(model.tokenizer, prompt, self.text)
        return Cost(
            len(prompt) + len(self.text),
            min(tokens, model.max_input_tokens),
            1,
            answer_numbers=count * vector_size(self.pooling, model),
            placed_tokens=tokens,
        )


@dataclass(frozen=True)
class ChunkVector:
    """The vector of a part of a text. start, end: range of the part, in characters; `end` is exclusive."""

    start: int
    end: int
    vector: Numbers


async def embed_chunks(runtime: Runtime, call: Call, spec: EmbedChunksSpec) -> list[ChunkVector]:
    """Compute the vectors of all parts, in the order of the request or of the text.

    Raises ContextLengthExceeded for a text that is too long, and InvalidRequest for a part outside of the text or
    without a token, or if the checkpoint pools otherwise than by the mean.
    """
    model = of_role(runtime, runtime.candidates(spec.model, "embed")[0], spec.prompt_name, "embed")
    if spec.pooling is None and model.info.pooling != ["mean"]:
        raise InvalidRequest(
            f"`chunks` are pooled by their mean, but the pooling of `{model.name}` is {', '.join(model.info.pooling)}; "
            "send `pooling`: mean",
            "pooling",
        )
    check_dimensions(spec.dimensions, vector_size(spec.pooling, model))
    runtime.check_characters([spec.text], "inputs")
    runtime.admission.admit(call, model, spec.cost(model))
    chunks = await runtime.pools.tokenize.run(lambda: _chunks(spec), call)
    prompt = model.text.prompt(spec.prompt_name)
    (encoding,) = await runtime.encode(model.tokenizer, [prompt + spec.text], param="inputs", offsets=True, call=call)
    token_ids = check_tokens(encoding.ids, model, "inputs")
    spans = _token_spans(encoding, [(start + len(prompt), end + len(prompt)) for start, end in chunks])
    message = Encode(
        call.next_id(),
        model.name,
        "embed_spans",
        [EncodeItem(token_ids, type_ids_or_none(encoding.type_ids), spans=spans)],
        pooling=spec.pooling,
        normalize=spec.normalize and spec.dimensions is None,
    )
    (rows,) = await matrices(call, message)
    rows = cut_vectors(rows, spec.dimensions, spec.normalize)
    return [ChunkVector(start, end, row) for (start, end), row in zip(chunks, rows, strict=True)]


def _chunks(spec: EmbedChunksSpec) -> list[tuple[int, int]]:
    return _sentences(spec.text) if spec.chunks is None else _checked(spec.chunks, spec.text)


def _sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence, in characters. Raises InvalidRequest for no sentence or more than `MAX_CHUNKS`."""
    places = []
    start = 0
    for sentence in split_sentences(text):
        if sentence.text:
            places.append((start, start + len(sentence.text)))
        start += len(sentence.text) + len(sentence.separator)
    if not 1 <= len(places) <= MAX_CHUNKS:
        raise InvalidRequest(f"`inputs` has {len(places)} sentences; from 1 to {MAX_CHUNKS} are allowed", "inputs")
    return places


def _checked(chunks: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    for place, (start, end) in enumerate(chunks):
        if not start < end <= len(text):
            raise InvalidRequest(
                f"`chunks[{place}]` is {start} to {end}: it must be a part of the text of {len(text)} characters",
                "chunks",
            )
    return list(chunks)


def _token_spans(encoding: Encoding, chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first token, end) of the tokens that each part overlaps, as indices in the encoding.

    chunks: (start, end) of each part, in characters. Raises InvalidRequest for a part without any token.
    """
    indices = [index for index, special in enumerate(encoding.special) if not special]
    starts, ends = (
        np.fromiter((encoding.offsets[index][side] for index in indices), np.int64, len(indices)) for side in (0, 1)
    )
    spans = []
    for place, (start, end) in enumerate(chunks):
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(starts, end, side="left"))
        if first >= last:
            raise InvalidRequest(f"`chunks[{place}]` is a part of the text without any token", "chunks")
        spans.append((indices[first], indices[last - 1] + 1))
    return spans
