"""Find words for a mask in a text, with a masked language model.

A score is the word's probability over the whole vocabulary, even if the request restricts the words to targets.
Source: Devlin et al. 2019, arXiv:1810.04805.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from server.errors import InvalidRequest, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import encoded_items, text_items
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.tokenizer import Tokenizer

DEFAULT_TOP_K = 5
MAX_ANSWERS = 1 << 14
"""Maximum number of words in one answer, over all texts. Each word costs decoding its whole text."""


@dataclass(frozen=True)
class FillMaskSpec:
    """Request for words in place of the mask in each text.

    top_k: number of words per text.
    targets: consider only these words. Each must be one token of the vocabulary. Empty for all words.
    """

    inputs: Sequence[str]
    model: str | None = None
    top_k: int = DEFAULT_TOP_K
    targets: Sequence[str] = ()

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. Each word of the answer repeats its text."""
        characters = characters_of(self.inputs) * (1 + self.top_k) + characters_of(self.targets)
        tokens = sum(min(most_tokens(model.tokenizer, text), model.max_input_tokens) for text in self.inputs)
        words = len(self.inputs) * self.top_k
        return Cost(characters, tokens, len(self.inputs), answer_numbers=words, scored_tokens=words)


class FilledMask(Struct, frozen=True, gc=False):
    """A word for the mask. score: its probability. sequence: the text with the word in place of the mask."""

    score: float
    token_id: int
    token: str
    sequence: str


async def fill_mask(runtime: Runtime, call: Call, spec: FillMaskSpec) -> list[list[FilledMask]]:
    """Find words for the mask in each text, by descending probability.

    Raises RequestTooLarge for more than `MAX_ANSWERS` words, and InvalidRequest for a text without exactly one mask,
    or for a target that is not one token.
    """
    model = runtime.candidates(spec.model, "fill_mask")[0]
    words = len(spec.inputs) * (min(spec.top_k, len(spec.targets)) if spec.targets else spec.top_k)
    if words > MAX_ANSWERS:
        raise RequestTooLarge(
            f"`top_k` asks for {words:,} words over all texts; the limit of one answer is {MAX_ANSWERS:,}", "top_k"
        )
    runtime.admission.admit(call, model, spec.cost(model))
    items = await _items(runtime, call, model, spec.inputs)
    message = Encode(
        call.next_id(),
        model.name,
        "fill_mask",
        items,
        top_k=spec.top_k,
        target_ids=await runtime.pools.tokenize.run(lambda: _target_ids(model, spec.targets), call),
    )
    encoded = await encoded_items(call, message)
    word = cache(partial(model.tokenizer.decode, skip_special_tokens=False))
    pieces = [partial(_filled, model.tokenizer, word, *pair) for pair in zip(items, encoded, strict=True)]
    return await runtime.pools.tokenize.run_pieces(pieces, call)


async def _items(runtime: Runtime, call: Call, model: ServedModel, texts: Sequence[str]) -> list[EncodeItem]:
    """One engine item per text, with the index of its mask. Texts are never truncated, because the mask could be lost.

    Raises InvalidRequest for a text without exactly one mask, and ContextLengthExceeded for a long text.
    """
    mask = model.tokenizer.special.mask
    if mask is None:
        raise InvalidRequest(f"the tokenizer of `{model.name}` has no mask token", "model")
    items = []
    for item in (await text_items(runtime, call, model, texts, None, "inputs")).items:
        count = item.token_ids.count(mask)
        if count != 1:
            spelling = model.tokenizer.id_to_token(mask)
            raise InvalidRequest(f"`inputs` contains a text with {count} masks; each needs one {spelling}", "inputs")
        items.append(replace(item, mask_index=item.token_ids.index(mask)))
    return items


def _target_ids(model: ServedModel, words: Sequence[str]) -> list[int]:
    """The token ids of words, without duplicates. Raises InvalidRequest for a word that is not one token."""
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


def _filled(
    tokenizer: Tokenizer, word: Callable[[tuple[int]], str], item: EncodeItem, encoded: Encoded
) -> list[FilledMask]:
    """Convert the engine's answer for one text to words. word: returns the text of a token."""
    scores = np.frombuffer(encoded.values, dtype="<f4").tolist()
    filled = []
    for score, token in zip(scores, encoded.token_ids, strict=True):
        ids = [token if at == item.mask_index else other for at, other in enumerate(item.token_ids)]
        sequence = tokenizer.decode(
            [token_id for token_id in ids if token_id != tokenizer.special.pad], skip_special_tokens=True
        )
        filled.append(FilledMask(score, token, word((token,)), sequence))
    return filled
