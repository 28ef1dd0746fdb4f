"""Compute the similarity of texts: the cosine of their embeddings, or another function that the checkpoint names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode
from server.operations.cost import Cost
from server.operations.encode import prompted_items, vectors
from server.operations.ranking.embed import EmbedSpec, input_cost
from server.operations.ranking.routes import of_role
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.checkpoint_text import SimilarityFunction
from server.text.tokens.truncation import TruncationSide

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class SimilaritySpec:
    """Request for the similarity of a source sentence to each of several sentences.

    truncation: side on which a long sentence loses tokens, or None to refuse it.
    prompt_name: name of a prompt of the checkpoint to put before each sentence.
    """

    source: str
    sentences: Sequence[str]
    model: str | None = None
    truncation: TruncationSide | None = "right"
    prompt_name: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        cost = input_cost(EmbedSpec([self.source, *self.sentences], prompt_name=self.prompt_name), model)
        return replace(cost, answer_numbers=cost.sequences * model.info.hidden_size)


async def similarity(runtime: Runtime, call: Call, spec: SimilaritySpec) -> list[float]:
    """Compute the similarity of the source and each sentence, in the order of the sentences.

    It is the cosine, from -1 to 1, unless the checkpoint names a dot product or a distance. A distance is negated.
    In `Call.truncated_inputs`, index 0 is the source, and the following indices are the sentences.
    Raises the errors of `prompted_items`.
    """
    model = of_role(runtime, runtime.candidates(spec.model, "similarity")[0], spec.prompt_name, "similarity")
    prompt = model.text.prompt(spec.prompt_name)
    runtime.admission.admit(call, model, spec.cost(model))
    texts = [prompt + text for text in (spec.source, *spec.sentences)]
    found = await prompted_items(runtime, call, model, texts, prompt, spec.truncation)
    call.truncated_inputs = found.truncated
    message = Encode(call.next_id(), model.name, "embed", found.items, normalize=model.text.similarity.of_unit_vectors)
    rows = (await vectors(call, message)).astype(np.float64)
    return [float(score) for score in _scores(rows[0], rows[1:], model.text.similarity.function)]


def _scores(source: Vectors, others: Vectors, function: SimilarityFunction) -> Vectors:
    """Similarity of one vector to others. source: [size]. others: [sentences, size]. Returns [sentences]."""
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
