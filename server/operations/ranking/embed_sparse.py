"""Compute sparse embeddings: weights of vocabulary entries for a text.

A masked language model head gives a weight for every entry (SPLADE). Other models weight only the text's own tokens
(BGE-M3). Source: Formal et al. 2021, arXiv:2109.10086; Chen et al. 2024, arXiv:2402.03216, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from server.errors import RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode
from server.operations.cost import Cost
from server.operations.encode import Numbers, encoded_items
from server.operations.ranking.embed import MAX_NUMBERS, input_cost, input_items
from server.operations.ranking.routes import of_role
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.truncation import TruncationSide


@dataclass(frozen=True)
class EmbedSparseSpec:
    """Request for the vocabulary weights of each input. The fields have the same meaning as in `EmbedAllSpec`."""

    inputs: Sequence[str | list[int]]
    model: str | None = None
    truncation: TruncationSide | None = "right"
    prompt_name: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. An answer may have a weight for every vocabulary entry."""
        return replace(
            input_cost(self, model), answer_numbers=min(len(self.inputs) * model.info.vocab_size, MAX_NUMBERS)
        )


@dataclass(frozen=True)
class SparseVector:
    """The weights above zero of one input.

    indices: ids of the vocabulary entries, ascending.
    weights: [entries], float32, in the same order.
    """

    indices: list[int]
    weights: Numbers


async def embed_sparse(runtime: Runtime, call: Call, spec: EmbedSparseSpec) -> list[SparseVector]:
    """Compute the weights of each input. Adds the indices of shortened inputs to `call`.

    Raises RequestTooLarge if the inputs could have more than `MAX_NUMBERS` weights together, and the errors of
    `input_items`.
    """
    model = of_role(runtime, runtime.candidates(spec.model, "embed_sparse")[0], spec.prompt_name, "embed_sparse")
    numbers = len(spec.inputs) * model.info.vocab_size
    if numbers > MAX_NUMBERS:
        raise RequestTooLarge(
            f"`inputs` has {len(spec.inputs)} texts; with a vocabulary of {model.info.vocab_size} tokens the limit is "
            f"{MAX_NUMBERS // model.info.vocab_size}",
            "inputs",
        )
    runtime.admission.admit(call, model, spec.cost(model))
    found = await input_items(runtime, call, model, spec)
    call.truncated_inputs = found.truncated
    special = model.tokenizer.special
    of_queries = model.text.query_weights
    if of_queries is not None and spec.prompt_name in of_queries.sides:
        around = {special.bos, special.eos, special.cls, special.sep}
        rows = (of_queries.vector(index for index in item.token_ids if index not in around) for item in found.items)
        return [SparseVector(*row) for row in rows]
    unused = {special.cls, special.eos, special.pad, special.unk} if model.info.token_weights else set()
    skipped = sorted(token_id for token_id in unused if token_id is not None)
    message = Encode(call.next_id(), model.name, "embed_sparse", found.items, skipped_ids=skipped)
    encoded = await encoded_items(call, message)
    return [SparseVector(row.token_ids, np.frombuffer(row.values, dtype="<f4")) for row in encoded]
