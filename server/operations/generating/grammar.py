"""Compile the format of an answer into a grammar that the engine follows, and check it before the request is accepted.

Also sends the bytes of a model's tokens to the worker. It needs them for grammars, and for beam search with stop
strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Vocabulary
from server.ipc.wire.sections import AnswerSection
from server.operations.grammar_compiler import CompileBudget, GrammarCompiler
from server.operations.runtime import Runtime
from server.operations.schemas.enforced_schema import enforce
from server.operations.served_model import ServedModel
from server.text.tokens.token_bytes import NoTokenBytes, TokenBytes

MAX_FORMAT_BYTES = 1 << 16
_PARAM = "response_format"


@dataclass(frozen=True)
class JsonFormat:
    """The answer is JSON that matches a schema. Members of objects have the order of the schema.

    is_strict: refuse a schema that cannot be enforced in full. Otherwise the part that can be enforced is used.
    place: path of the schema in the client's request, for errors.
    """

    schema: Mapping[str, Any]
    is_strict: bool = True
    place: str = "response_format.schema"


@dataclass(frozen=True)
class RegexFormat:
    """The answer is a text that matches a regular expression as a whole."""

    pattern: str


@dataclass(frozen=True)
class ChoiceFormat:
    """The answer equals one of the given texts."""

    choices: Sequence[str]


TextFormat = JsonFormat | RegexFormat | ChoiceFormat


async def prepare(
    runtime: Runtime, call: Call, model: ServedModel, text_format: TextFormat | None, *, continues: bool
) -> tuple[list[AnswerSection], TokenBytes | None]:
    """Compile a format, and send the model's token bytes to the worker if it does not have them yet.

    Returns a list with the answer's only section, which has the grammar, and the token bytes. Without a format, returns
    `([], None)`.

    continues: whether the answer continues a text (a decoder's prompt, a forced prefix) instead of beginning one.
    Raises InvalidRequest with the library's reason if the format cannot be used.
    """
    if text_format is None:
        return [], None
    text = await runtime.pools.grammar.run(
        lambda: text_grammar(text_format, runtime.grammar_compiler, call.ignore), call
    )
    problem = f"`{_PARAM}` is not supported for `{model.name}`"
    token_bytes = await send_token_bytes(runtime, call, model, problem, _PARAM)
    rule = answer_rule(token_bytes.opens_with_space and not continues)
    fallback = assemble(rule, {"text": text.fallback}) if text.fallback else ""
    return [AnswerSection(grammar=assemble(rule, {"text": text.source}), fallback=fallback)], token_bytes


async def token_bytes_for_stops(runtime: Runtime, call: Call, model: ServedModel) -> TokenBytes:
    """Send the model's token bytes to the worker for beam search with stop strings, and return them.

    Raises InvalidRequest if a token's bytes depend on other tokens.
    """
    return await send_token_bytes(
        runtime, call, model, f"`stop` cannot be combined with beam search for `{model.name}`", "stop"
    )


async def send_token_bytes(runtime: Runtime, call: Call, model: ServedModel, problem: str, param: str) -> TokenBytes:
    """Send the model's token bytes to the worker if it does not have them yet, and return them.

    problem: beginning of the error message. param: the request's field that needs the token bytes.
    Raises InvalidRequest if a token's bytes depend on other tokens.
    """
    try:
        token_bytes = await runtime.pools.grammar.run(lambda: model.tokenizer.token_bytes, call)
    except NoTokenBytes as error:
        raise InvalidRequest(f"{problem}: {error}", param) from None
    # The worker stores token bytes by base model: an adapter shares its model's tokenizer.
    runtime.client.add_vocabulary(Vocabulary(model.info.adapter_of or model.name, list(token_bytes.by_id)))
    return token_bytes


@dataclass(frozen=True)
class TextGrammar:
    """The grammar of a text.

    source: the grammar in llguidance's JSON form.
    fallback: a grammar that is followed if `source` fails; empty if there is no such grammar.
    """

    source: str
    fallback: str = ""


def text_grammar(
    text_format: TextFormat, compiler: GrammarCompiler, ignore: Callable[[Iterable[str]], None] = lambda names: None
) -> TextGrammar:
    """Compile the grammar of a format.

    compiler: compiles grammars. ignore: called with the paths of the schema's keywords that are not enforced. All
        keywords of a strict schema are enforced.
    Raises InvalidRequest for a format that cannot be used.
    """
    if isinstance(text_format, JsonFormat):
        schema, budget = text_format.schema, CompileBudget()
        enforced = enforce(schema, compiler, budget, is_strict=text_format.is_strict)
        if not enforced.source:
            param = text_format.place.partition(".")[0]
            raise InvalidRequest(f"`{text_format.place}` {enforced.losses[0]}", param)
        ignore(enforced.lost_names(text_format.place))
        return TextGrammar(enforced.source, enforced.fallback)
    if isinstance(text_format, RegexFormat):
        pattern = text_format.pattern
    else:
        pattern = "|".join(map(_literal, text_format.choices))
    compiled = compiler.remember(f"pattern {pattern}", lambda: compiler.compile_pattern(pattern, CompileBudget()))
    if compiled.refused:
        raise InvalidRequest(f"`{_PARAM}` {compiled.refused}", _PARAM)
    return TextGrammar(compiled.source)


def answer_rule(opens_with_space: bool) -> str:
    """Lark rule for an answer that consists of the grammar `text`.

    opens_with_space: whether a space comes first, because the first token of a text begins with one.
    """
    return 'start: " " @text' if opens_with_space else "start: @text"


def assemble(rules: str, sources: Mapping[str, str]) -> str:
    """Assemble a complete grammar, in llguidance's JSON form.

    Its option `no_forcing` allows every token sequence that spells the text, not only the tokenizer's segmentation.

    rules: rules in llguidance's Lark syntax. `start` is the answer, and `@name` refers to another grammar.
    sources: name to each of these other grammars, in llguidance's JSON form.
    """
    start = {"name": "start", "lark_grammar": f'%llguidance {{"no_forcing": true}}\n{rules}'}
    return json.dumps(
        {"grammars": [start, *({"name": name, **json.loads(source)} for name, source in sources.items())]}
    )


def _literal(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text
    )
