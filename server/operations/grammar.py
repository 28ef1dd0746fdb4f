"""Compile a text format into the grammar that the engine follows, and check it before the request is accepted.

Also sends the bytes of a model's tokens to the worker, which needs them for grammars and for beams with stop strings.
llguidance is imported with the first format that a client sends. Its reasons for refusing a format are shown to the
client, without the text around them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from server.errors import InvalidRequest
from server.ipc.call import Call
from server.ipc.messages import Vocabulary
from server.ipc.sections import AnswerSection
from server.operations.runtime import Runtime, ServedModel
from server.text.token_bytes import NoTokenBytes, TokenBytes

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_FORMAT_BYTES = 1 << 16
MAX_REASON_CHARACTERS = 200
_PARAM = "response_format"
_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    # Compact, as `json.dumps` spaces it, or indented. Unlimited white space would allow an endless answer.
    "whitespace_pattern": r"( |\n {0,20})?",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
"""All options that a schema can set under `x-guidance`. The values here override those of the schema."""


@dataclass(frozen=True)
class JsonFormat:
    """JSON that matches a schema, members in the order of the schema."""

    schema: Mapping[str, Any]


@dataclass(frozen=True)
class RegexFormat:
    """A text that a regular expression matches from beginning to end."""

    pattern: str


@dataclass(frozen=True)
class ChoiceFormat:
    """An answer that equals one of the given texts."""

    choices: Sequence[str]


TextFormat = JsonFormat | RegexFormat | ChoiceFormat


async def prepare(
    runtime: Runtime, call: Call, model: ServedModel, text_format: TextFormat | None, *, continues: bool
) -> tuple[list[AnswerSection], TokenBytes | None]:
    """The answer's only section and the bytes of the model's tokens; `([], None)` without a format.

    Sends the token bytes to the worker if the worker does not have them yet.
    continues: the answer continues a text (a decoder's prompt, a forced prefix) instead of beginning one.
    Raises InvalidRequest with the library's reason.
    """
    if text_format is None:
        return [], None
    source = await runtime.pools.grammar.run(lambda: source_of(text_format), call)
    problem = f"`{_PARAM}` is not supported for `{model.name}`"
    token_bytes = await send_token_bytes(runtime, call, model, problem, _PARAM)
    grammar = assemble(answer_rule(token_bytes.opens_with_space and not continues), {"text": source})
    return [AnswerSection(grammar=grammar)], token_bytes


async def token_bytes_for_stops(runtime: Runtime, call: Call, model: ServedModel) -> TokenBytes:
    """The bytes of the model's tokens, for beam search with stop strings. Sends them to the worker.

    Raises InvalidRequest if a token's bytes depend on other tokens.
    """
    return await send_token_bytes(
        runtime, call, model, f"`stop` cannot be combined with beam search for `{model.name}`", "stop"
    )


async def send_token_bytes(runtime: Runtime, call: Call, model: ServedModel, problem: str, param: str) -> TokenBytes:
    """The bytes of the model's tokens. Sends them to the worker if the worker does not have them yet.

    Raises InvalidRequest with `problem` and a reason if a token's bytes depend on other tokens.
    """
    try:
        token_bytes = await runtime.pools.grammar.run(lambda: model.tokenizer.token_bytes, call)
    except NoTokenBytes as error:
        raise InvalidRequest(f"{problem}: {error}", param) from None
    # The worker stores token bytes by base model: an adapter shares its model's tokenizer.
    runtime.client.add_vocabulary(Vocabulary(model.info.adapter_of or model.name, list(token_bytes.by_id)))
    return token_bytes


def source_of(text_format: TextFormat) -> str:
    """The grammar of the text itself, as JSON. Raises InvalidRequest for a format that cannot be followed."""
    if isinstance(text_format, JsonFormat):
        schema = json.dumps(text_format.schema)
        if len(schema) > MAX_FORMAT_BYTES:
            raise InvalidRequest(
                f"`{_PARAM}` has a schema of {len(schema)} bytes; the limit is {MAX_FORMAT_BYTES}", _PARAM
            )
        source = json_source(schema)
    elif isinstance(text_format, RegexFormat):
        source = _regex_source(text_format.pattern)
    else:
        source = _regex_source("|".join(map(_literal, text_format.choices)))
    reason = refusal(source)
    if reason is not None:
        raise InvalidRequest(f"`{_PARAM}` {reason}", _PARAM)
    return source


def answer_rule(opens_with_space: bool) -> str:
    """The rule of an answer that is one text, after a space if the first token of a text begins with a space."""
    return 'start: " " @text' if opens_with_space else "start: @text"


def assemble(rules: str, sources: Mapping[str, str]) -> str:
    """A complete grammar.

    rules: in llguidance's Lark syntax; the answer is `start`, and `@name` is another grammar.
    sources: the other grammars by name, as JSON.
    `no_forcing` allows every token sequence that spells the text, not only the tokenizer's own segmentation.
    """
    start = {"name": "start", "lark_grammar": f'%llguidance {{"no_forcing": true}}\n{rules}'}
    return json.dumps({"grammars": [start, *({"name": name, **json.loads(one)} for name, one in sources.items())]})


def json_source(schema: str) -> str:
    """The grammar of JSON that matches a schema. schema: as JSON text."""
    from llguidance import LLMatcher

    return _text_grammar(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS))


def _regex_source(pattern: str) -> str:
    from llguidance import LLMatcher

    return _text_grammar(LLMatcher.grammar_from_regex(pattern))


def _literal(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _text_grammar(grammar: str) -> str:
    (rules,) = json.loads(grammar)["grammars"]
    return json.dumps({name: value for name, value in rules.items() if name != "name" and value is not None})


@lru_cache(maxsize=256)
def refusal(source: str) -> str | None:
    """The reason why a grammar cannot be used, or None. Compiles the grammar and computes the mask of a first byte.

    source: the grammar of a text, as JSON.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(_byte_vocabulary(), assemble(answer_rule(False), {"text": source}), limits=limits, log_level=0)
    if matcher.is_error():
        return f"cannot be used: {_reason(matcher.get_error())}"
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        unfollowable = matcher.get_error().startswith("NoExtension")
        return "matches no text" if unfollowable else f"cannot be used: {_reason(matcher.get_error())}"
    assert any(mask), "a grammar without an error allows some token"
    return None


def _reason(error: str) -> str:
    """The first line of the library's message that states the error."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    line = next((one.removeprefix("error: ") for one in lines if one.startswith("error: ")), lines[0])
    return line[:MAX_REASON_CHARACTERS]


@cache
def _byte_vocabulary() -> LLTokenizer:
    """A vocabulary of all single bytes, so that every text can be spelled."""
    import llguidance

    tokens = [*(bytes([byte]) for byte in range(256)), b""]
    vocabulary = SimpleNamespace(tokens=tokens, eos_token_id=256, bos_token_id=None, special_token_ids=[256])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), n_vocab=257, eos_token=256)
