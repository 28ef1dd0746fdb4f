"""The tokenizer routes that lm-eval's `local-completions` reads: `tokenizer_info`, `tokenize` and `detokenize`.

vLLM has the same routes. A path `/models/{model}/...` names a model. Without a name, the first model that generates
text is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from server.api.fields.fields import Body, TokenIds
from server.api.routes.error_shape import AnswerBody
from server.api.routes.get_route import GetRoute
from server.api.routes.route import JsonRoute, Route
from server.api.state import State
from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.tokenize import DetokenizeSpec, TokenizeSpec, detokenize, tokenize
from server.text.tokens.computed import Computed


class PromptTokensBody(Body):
    """Body of `POST /tokenize` with the field `prompt`."""

    prompt: str
    add_special_tokens: bool | None = None

    def spec(self) -> TokenizeSpec:
        return TokenizeSpec([self.prompt], self.add_special_tokens is not False, self.model)


class PromptTokensAnswer(AnswerBody):
    tokens: list[int]
    count: int
    max_model_len: int


class PromptTextBody(Body):
    """Body of `POST /detokenize` with the field `tokens`. The text of the answer includes special tokens."""

    tokens: Annotated[TokenIds, Field(max_length=1 << 20)]

    def spec(self) -> DetokenizeSpec:
        return DetokenizeSpec([self.tokens], False, self.model)


class PromptTextAnswer(AnswerBody):
    prompt: str


class TokenizerInfo(AnswerBody):
    """A model's special tokens and chat template; null for each that the checkpoint does not have."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    model_max_length: int
    chat_template: str | None


@dataclass(frozen=True)
class PromptTokens:
    """Token ids of one text. context_tokens: the model's context length, in tokens."""

    token_ids: Sequence[int]
    context_tokens: int


async def _tokenize(runtime: Runtime, call: Call, spec: TokenizeSpec) -> PromptTokens:
    model = _model(runtime, spec.model)
    (tokens,) = await tokenize(runtime, call, replace(spec, model=model.name))
    ids = Computed(len(tokens), lambda index: tokens[index].token_id)
    return PromptTokens(ids, model.info.context_tokens)


async def _detokenize(runtime: Runtime, call: Call, spec: DetokenizeSpec) -> list[str]:
    return await detokenize(runtime, call, replace(spec, model=_model(runtime, spec.model).name))


def _model(runtime: Runtime, name: str | None) -> ServedModel:
    return runtime.candidates(name, "generate")[0]


def _info(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    model = _model(state.runtime, parameters.get("model"))
    special, templates = model.tokenizer.special, model.text.chat_templates.by_name
    named = {"bos": special.bos, "eos": special.eos, "pad": special.pad, "unk": special.unk}
    spelled = {
        f"{name}_token": None if token is None else model.tokenizer.id_to_token(token) for name, token in named.items()
    }
    return spelled | {"model_max_length": model.info.context_tokens, "chat_template": templates.get("default")}


ROUTES: tuple[Route[Any, Any, Any], ...] = (
    JsonRoute(
        path="/tokenize",
        operation="tokenize",
        name="prompt_tokens",
        field="prompt",
        description="The token ids of one text.",
        body=PromptTokensBody,
        answer=PromptTokensAnswer,
        example=({"prompt": "a text"}, {"tokens": [64, 2420], "count": 2, "max_model_len": 1024}),
        parse=PromptTokensBody.spec,
        run=_tokenize,
        render=lambda body, found: {
            "tokens": iter(found.token_ids),
            "count": len(found.token_ids),
            "max_model_len": found.context_tokens,
        },
        aliases=("/models/{model}/tokenize",),
    ),
    JsonRoute(
        path="/detokenize",
        operation="detokenize",
        name="prompt_text",
        field="tokens",
        description="The text of one list of token ids.",
        body=PromptTextBody,
        answer=PromptTextAnswer,
        example=({"tokens": [64, 2420]}, {"prompt": "a text"}),
        parse=PromptTextBody.spec,
        run=_detokenize,
        render=lambda body, texts: {"prompt": texts[0]},
        aliases=("/models/{model}/detokenize",),
    ),
)
GET_ROUTES: tuple[GetRoute, ...] = (
    GetRoute(
        path="/tokenizer_info",
        name="tokenizer_info",
        description="The special tokens and the chat template of a model that generates.",
        answer=TokenizerInfo,
        example={
            "bos_token": None,
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": None,
            "model_max_length": 1024,
            "chat_template": None,
        },
        render=_info,
        aliases=("/models/{model}/tokenizer_info",),
    ),
)
