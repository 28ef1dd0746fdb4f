"""From a `response_format` to the grammar that the engine follows, checked before anything is promised; and what else
needs to know how tokens are spelled.

llguidance is imported with the first format that a client sends. The reasons it gives are told to the client, without
the text around them.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING

from server.api.response_format import MAX_FORMAT_BYTES, Choice, JsonObject, JsonSchema, Regex, ResponseFormat, Text
from server.api.state import Model, State
from server.errors import InvalidRequest
from server.ipc.messages import Vocabulary
from server.ipc.params import GenerationParams
from server.text.token_bytes import NoTokenBytes, TokenBytes

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_REASON_CHARACTERS = 200
_PARAM = "response_format"
_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    # Compact, as `json.dumps` spaces it, or indented; white space without end would be a text without end.
    "whitespace_pattern": r"( |\n {0,20})?",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
"""Options that a schema could bring itself under `x-guidance`, and may not."""


async def prepare(
    state: State, model: Model, wanted: ResponseFormat | None, *, continues: bool
) -> tuple[str, TokenBytes | None]:
    """The grammar for one request, and how its answers are spelled; nothing where any text will do.

    The worker learns the model's token bytes, if this is the first time.
    continues: whether answers go on with a text of the same language (a decoder's prompt, a forced prefix), rather
    than begin one.
    Raises InvalidRequest with the library's reason.
    """
    if wanted is None or isinstance(wanted, Text):
        return "", None
    source = await state.in_thread(lambda: source_of(wanted))
    try:
        token_bytes = await state.in_thread(lambda: model.tokenizer.token_bytes)
    except NoTokenBytes as error:
        raise InvalidRequest(f"`{_PARAM}` is not supported for `{model.name}`: {error}", _PARAM) from None
    # An adapter spells as its model does.
    state.client.teach(Vocabulary(model.info.adapter_of or model.name, list(token_bytes.by_id)))
    return assemble(source, token_bytes.opens_with_space and not continues), token_bytes


async def spell_stops(state: State, model: Model, params: GenerationParams) -> TokenBytes | None:
    """How the answers of beams with stop strings are spelled, which the worker learns; None without them.

    Raises InvalidRequest where tokens cannot be spelled one by one.
    """
    if not params.stop_texts:
        return None
    try:
        token_bytes = await state.in_thread(lambda: model.tokenizer.token_bytes)
    except NoTokenBytes as error:
        raise InvalidRequest(f"`stop` does not go with beam search for `{model.name}`: {error}", "stop") from None
    state.client.teach(Vocabulary(model.name, list(token_bytes.by_id)))
    return token_bytes


def source_of(wanted: ResponseFormat) -> str:
    """A grammar for the text itself, as JSON. Raises InvalidRequest for one that cannot be used."""
    if isinstance(wanted, JsonSchema):
        schema = json.dumps(wanted.schema_)
        if len(schema) > MAX_FORMAT_BYTES:
            raise InvalidRequest(f"`{_PARAM}` has a schema of more than {MAX_FORMAT_BYTES} bytes", _PARAM)
        source = _json_source(schema)
    elif isinstance(wanted, JsonObject):
        source = _json_source('{"type": "object"}')
    elif isinstance(wanted, Regex):
        source = _regex_source(wanted.pattern)
    else:
        assert isinstance(wanted, Choice)
        source = _regex_source("|".join(map(_literally, wanted.choices)))
    reason = refusal(source)
    if reason is not None:
        raise InvalidRequest(f"`{_PARAM}` {reason}", _PARAM)
    return source


def assemble(source: str, opens_with_space: bool) -> str:
    """The whole grammar: the text, after the space that belongs to its first word's token bytes where there is one.

    `no_forcing`: any tokens that spell the text will do, not only those that a tokenizer would have cut it into.
    """
    start = 'start: " " @text' if opens_with_space else "start: @text"
    rules = f'%llguidance {{"no_forcing": true}}\n{start}'
    return json.dumps({"grammars": [{"name": "start", "lark_grammar": rules}, {"name": "text", **json.loads(source)}]})


def _json_source(schema: str) -> str:
    from llguidance import LLMatcher

    return _text_grammar(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS))


def _regex_source(pattern: str) -> str:
    from llguidance import LLMatcher

    return _text_grammar(LLMatcher.grammar_from_regex(pattern))


def _literally(text: str) -> str:
    """An expression for one text, whatever its characters mean in expressions."""
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _text_grammar(grammar: str) -> str:
    (rules,) = json.loads(grammar)["grammars"]
    return json.dumps({name: value for name, value in rules.items() if name != "name" and value is not None})


@lru_cache(maxsize=64)
def refusal(source: str) -> str | None:
    """Why a grammar cannot be used; None where it can. It is compiled and asked how a text may begin."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(_byte_vocabulary(), assemble(source, False), limits=limits, log_level=0)
    if matcher.is_error():
        return f"cannot be used: {_reason(matcher.get_error())}"
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        unfollowable = matcher.get_error().startswith("NoExtension")
        return "describes no text at all" if unfollowable else f"cannot be used: {_reason(matcher.get_error())}"
    assert any(mask), "a grammar that goes on allows something"
    return None


def _reason(error: str) -> str:
    """The one line that matters of what the library says."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    told = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return told[:MAX_REASON_CHARACTERS]


@cache
def _byte_vocabulary() -> LLTokenizer:
    """A vocabulary of all single bytes, which any text can be spelled with."""
    import llguidance

    tokens = [*(bytes([byte]) for byte in range(256)), b""]
    vocabulary = SimpleNamespace(tokens=tokens, eos_token_id=256, bos_token_id=None, special_token_ids=[256])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), n_vocab=257, eos_token=256)
