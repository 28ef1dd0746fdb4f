"""Convert texts to tokens, and token ids to texts, with the tokenizer of any loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from server.ipc.client.call import Call
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import check_ids
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.computed import Computed
from server.text.tokens.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class TokenizeSpec:
    """Request to split texts into tokens.

    add_special_tokens: add the special tokens that the model expects around a text.
    """

    inputs: Sequence[str]
    add_special_tokens: bool = True
    model: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. Nothing is sent to the engine."""
        placed = sum(most_tokens(model.tokenizer, text) for text in self.inputs)
        return Cost(characters_of(self.inputs), 0, 0, placed_tokens=placed)


@dataclass(frozen=True)
class DetokenizeSpec:
    """Request to convert lists of token ids to texts. ids: each list becomes one text."""

    ids: Sequence[list[int]]
    skip_special_tokens: bool = True
    model: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. Nothing is tokenized or sent to the engine."""
        return Cost(0, sum(map(len, self.ids)), 0)


@dataclass(frozen=True)
class TextToken:
    """A token of a text.

    text: the characters that the token stands for; for a special token, its content in the vocabulary.
    start, end: position in the text, in characters, with `end` excluded; both 0 for an added special token.
    special: whether the token is a special token.
    """

    token_id: int
    text: str
    start: int
    end: int
    special: bool


async def tokenize(runtime: Runtime, call: Call, spec: TokenizeSpec) -> list[Sequence[TextToken]]:
    """Tokenize texts, and return the tokens of each text.

    Raises InvalidRequest for a too long text, RequestTooLarge and Overloaded.
    """
    model = runtime.candidates(spec.model, "tokenize")[0]
    runtime.admission.admit(call, model, spec.cost(model))
    encodings = await runtime.encode(
        model.tokenizer,
        spec.inputs,
        param="inputs",
        add_special_tokens=spec.add_special_tokens,
        offsets=True,
        call=call,
    )
    return [_tokens(model.tokenizer, *pair) for pair in zip(spec.inputs, encodings, strict=True)]


async def detokenize(runtime: Runtime, call: Call, spec: DetokenizeSpec) -> list[str]:
    """Convert each list of token ids to text. Raises InvalidRequest for an id outside the vocabulary."""
    model = runtime.candidates(spec.model, "detokenize")[0]
    runtime.admission.admit(call, model, spec.cost(model), "ids")

    def text(ids: list[int]) -> str:
        check_ids(ids, model.info, "ids")
        return model.tokenizer.decode(ids, spec.skip_special_tokens)

    return await runtime.pools.tokenize.run_pieces([partial(text, ids) for ids in spec.ids], call)


def _tokens(tokenizer: Tokenizer, text: str, encoding: Encoding) -> Sequence[TextToken]:
    def token(index: int) -> TextToken:
        token_id, special = encoding.ids[index], encoding.special[index]
        start, end = encoding.offsets[index]
        found = tokenizer.id_to_token(token_id) or "" if special else text[start:end]
        return TextToken(token_id, found, start, end, special)

    return Computed(len(encoding.ids), token)
