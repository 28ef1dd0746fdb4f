"""Similarity of texts: the cosine of their embeddings, or the function that the checkpoint names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from server.ipc.client.call import Call
from server.ipc.wire.messages import Encode
from server.operations.cost import Cost
from server.operations.encode import prompted_items, vectors
from server.operations.ranking.embed import EmbedSpec, input_cost
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.checkpoint_text import SimilarityFunction
from server.text.tokens.truncation import TruncationSide

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class SimilaritySpec:
    """Ask for the similarity of one sentence to each of several others. prompt_name: as in `EmbedSpec`."""

    source: str
    sentences: Sequence[str]
    model: str | None = None
    truncation: TruncationSide | None = "right"
    prompt_name: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`."""
        cost = input_cost(EmbedSpec([self.source, *self.sentences], prompt_name=self.prompt_name), model)
        return replace(cost, answer_numbers=cost.sequences * model.info.hidden_size)


async def similarity(runtime: Runtime, call: Call, spec: SimilaritySpec) -> list[float]:
    """The similarity of the source and each sentence, in the order of the sentences.

    It is the cosine, from -1 to 1, unless the checkpoint names a dot product or a distance. A distance is negated.
    In `Call.truncated_inputs`, index 0 stands for the source, and the sentences follow.
    """
    model = runtime.candidates(spec.model, "similarity")[0]
    prompt = model.text.prompt(spec.prompt_name)
    runtime.admission.admit(call, model, spec.cost(model))
    texts = [prompt + text for text in (spec.source, *spec.sentences)]
    found = await prompted_items(runtime, call, model, texts, prompt, spec.truncation, "inputs")
    call.truncated_inputs = found.truncated
    message = Encode(call.next_id(), model.name, "embed", found.items, normalize=model.text.similarity.of_unit_vectors)
    rows = (await vectors(call, message)).astype(np.float64)
    return [float(score) for score in _scores(rows[0], rows[1:], model.text.similarity.function)]


def _scores(source: Vectors, others: Vectors, function: SimilarityFunction) -> Vectors:
    """source: [size]. others: [sentences, size]. Returns [sentences]."""
    scores: Vectors
    match function:
        case "cosine":
            scores = np.clip(others @ source, -1.0, 1.0)
        case "dot":
            scores = others @ source
        case "euclidean":
            scores = -np.sqrt(np.square(others - source).sum(axis=1))
        case "manhattan":
            scores = -np.abs(others - source).sum(axis=1)
    return scores
