"""`POST /fill_mask`: the words that a masked language model would put in a gap. API.md section 5.

Devlin et al. 2019, arXiv:1810.04805. A score is the word's probability among the whole vocabulary, also with `targets`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.replies import json_response
from server.api.schemas import FillMaskBody
from server.api.state import Model, State, of
from server.errors import InvalidRequest
from server.ipc.messages import Encode, Encoded, EncodeItem
from server.text.tokenizer import Tokenizer

router = APIRouter()

TOP_K = 5


@router.post("/fill_mask", **operation("fill_mask", FillMaskBody))
async def fill_mask(request: Request) -> Response:
    """Words for the one mask of each text, by falling probability; nested for a list of texts."""
    state = of(request)
    body = await read(request, FillMaskBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("fill_mask",), "/fill_mask")[0]
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    items = await _items(state, model, texts)
    message = Encode(
        state.client.next_id(),
        model.name,
        "fill_mask",
        items,
        top_k=body.top_k or TOP_K,
        target_ids=await state.in_thread(lambda: _targets(model, body.targets or [])),
        deadline=deadline,
    )
    encoded = await encode.answers(request, state, message, deadline)
    filled = await state.in_thread(
        lambda: [_words(model.tokenizer, item, one) for item, one in zip(items, encoded, strict=True)]
    )
    return json_response(filled[0] if isinstance(body.inputs, str) else filled)


async def _items(state: State, model: Model, texts: list[str]) -> list[EncodeItem]:
    """Every text as ids, and where its mask is. Never cut: the mask might be lost."""
    mask = model.tokenizer.special.mask
    if mask is None:
        raise InvalidRequest(f"the tokenizer of `{model.name}` has no mask token", "model")
    items = []
    for item in await encode.text_items(state, model, texts, False, "right", "inputs"):
        if item.token_ids.count(mask) != 1:
            found, spelling = item.token_ids.count(mask), model.tokenizer.id_to_token(mask)
            raise InvalidRequest(f"`inputs` holds a text with {found} masks; each needs one {spelling}", "inputs")
        items.append(replace(item, mask_index=item.token_ids.index(mask)))
    return items


def _targets(model: Model, words: list[str]) -> list[int]:
    """One id for each word, each once. Raises InvalidRequest for a word that is not one token of the vocabulary."""
    ids = []
    for place, word in enumerate(words):
        found = model.tokenizer.token_to_id(word)
        if found is None:
            (encoding,) = model.tokenizer.encode([word], add_special_tokens=False, offsets=False)
            known = len(encoding.ids) == 1 and encoding.ids[0] != model.tokenizer.special.unk
            found = encoding.ids[0] if known else None
        if found is None or found >= model.info.vocab_size:
            raise InvalidRequest(f"`targets[{place}]` is not one token of the vocabulary of `{model.name}`", "targets")
        ids.append(found)
    return list(dict.fromkeys(ids))


def _words(tokenizer: Tokenizer, item: EncodeItem, encoded: Encoded) -> list[dict[str, Any]]:
    scores = np.frombuffer(encoded.values, dtype="<f4").tolist()
    words = []
    for score, token in zip(scores, encoded.token_ids, strict=True):
        ids = [token if at == item.mask_index else other for at, other in enumerate(item.token_ids)]
        kept = [one for one in ids if one != tokenizer.special.pad]
        sequence = tokenizer.decode(kept, skip_special_tokens=True)
        spelled = tokenizer.decode([token], skip_special_tokens=False)
        words.append({"score": score, "token": token, "token_str": spelled, "sequence": sequence})
    return words
