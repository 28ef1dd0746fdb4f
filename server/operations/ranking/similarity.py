"""Similarity of texts: the cosine of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from server.ipc.client.call import Call
from server.ipc.wire.messages import Encode
from server.operations.cost import Cost
from server.operations.encode import prompted_items, vectors
from server.operations.ranking.embed import EmbedSpec, input_cost
from server.operations.runtime import Runtime, ServedModel
from server.text.tokens.truncation import TruncationSide


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
    """The cosine between the source and each sentence, from -1 to 1, in the order of the sentences.

    In `Call.truncated_inputs`, place 0 is the source, and the sentences follow.
    """
    model = runtime.candidates(spec.model, "similarity")[0]
    prompt = model.text.prompt(spec.prompt_name)
    runtime.admission.admit(call, model, spec.cost(model))
    texts = [prompt + text for text in (spec.source, *spec.sentences)]
    found = await prompted_items(runtime, call, model, texts, prompt, spec.truncation, "inputs")
    call.truncated_inputs = found.truncated
    message = Encode(call.next_id(), model.name, "embed", found.items, normalize=True)
    source, *others = (await vectors(call, message)).astype(np.float64)
    return [min(1.0, max(-1.0, float(source @ other))) for other in others]
