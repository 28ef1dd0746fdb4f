"""The process that renders chat templates, separate from the server because a template is untrusted code.

Usage: `python -P chat_process.py MEMORY_BYTES`. Each line of stdin is a JSON request, each line of stdout its reply.
Jinja's sandbox keeps templates away from Python's internals. This process also limits memory and open files, and the
server kills it when a template takes too long. Templates find the functions and filters that transformers offers:
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Rejected(TemplateError):
    """The template called `raise_exception` because it does not accept the messages."""


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training. Rendering keeps the text and drops the tags."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON (the filter `tojson`), without Jinja's HTML escapes.

    `SentArguments` and their numbers are written exactly as the client wrote them.
    """
    sent: dict[str, str] = {}
    value = _without_sent(value, sent)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _MARKED.sub(lambda found: sent[found[0]], text) if sent else text


def _without_sent(value: Any, sent: dict[str, str]) -> Any:
    """Return a JSON value with a unique placeholder for each part that must be printed as the client wrote it.

    sent: filled with the client's text of each such part, by its placeholder in quotation marks.
    """
    if isinstance(value, SentArguments | _SentNumber):
        mark = f"{_MARK}{len(sent)}"
        sent[f'"{mark}"'] = value._sent
        return mark
    if isinstance(value, dict):
        return {key: _without_sent(part, sent) for key, part in value.items()}
    return [_without_sent(part, sent) for part in value] if isinstance(value, list | tuple) else value


_MARK = f"sent-{secrets.token_hex(8)}-"
_MARKED = re.compile(f'"{_MARK}[0-9]+"')


class _SentNumber(float):
    """A float that is printed with the digits that the client sent."""

    _sent: str

    def __new__(cls, sent: str) -> _SentNumber:
        number = super().__new__(cls, sent)
        number._sent = sent
        return number

    def __str__(self) -> str:
        return self._sent


class SentArguments(dict[str, Any]):
    """Arguments of a call that a client sent as text, for templates that take an object.

    `tojson` writes the text as it was sent, with its white space and numbers. If the text is not a JSON object, for
    example because the call was cut off, the dict has one member, `arguments`, with the text.

    sent: the text.
    """

    def __init__(self, sent: str) -> None:
        try:
            value = json.loads(sent, parse_float=_SentNumber)
        except (ValueError, RecursionError):
            value = None
        super().__init__(value if isinstance(value, dict) else {"arguments": sent})
        self._sent = sent


def _with_objects(messages: list[dict[str, Any]]) -> None:
    """Replace the arguments of calls that are strings by `SentArguments`, in place."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            if isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = SentArguments(call["function"]["arguments"])


def _raise_exception(message: str) -> None:
    raise _Rejected(message)


def environment() -> ImmutableSandboxedEnvironment:
    """Create the Jinja sandbox that templates run in, with the filters and functions that transformers offers."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return sandbox


def render(
    compile: Callable[[str], Template],
    source: str,
    context: dict[str, Any],
    max_characters: int,
    arguments_as_objects: bool = False,
) -> dict[str, str]:
    """Render a template. Returns one of four replies.

    `{"text": ...}`: the rendered text.
    `{"rejected": ...}`: the template does not accept the messages; the value is the reason it states.
    `{"failed": ...}`: the template raised an exception; the value is the name of its class.
    `{"too_long": ""}`: the text has more than `max_characters` characters.

    compile: makes a Jinja template of its source.
    context: variables of the template.
    arguments_as_objects: parse the arguments of calls that are strings into objects.
    """
    parts: list[str] = []
    size = 0
    if arguments_as_objects:
        _with_objects(context["messages"])
    try:
        for part in compile(source).generate(**context):
            parts.append(part)
            size += len(part)
            if size > max_characters:
                return {"too_long": ""}
    except _Rejected as error:
        return {"rejected": str(error)}
    except Exception as error:
        return {"failed": type(error).__name__}
    return {"text": "".join(parts)}


def _limit_resources(memory_bytes: int) -> None:
    """Limit the address space, and forbid core files and opening any further file. No effect on Windows."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _line(reply: dict[str, str]) -> bytes:
    """Encode a reply as one line of JSON: as UTF-8, which is short, or with escapes if it has lone surrogates."""
    try:
        return json.dumps(reply, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(reply).encode() + b"\n"


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    compile = lru_cache(maxsize=16)(environment().from_string)
    # Rendering once loads lazy imports and the time zone while files can still be opened.
    render(compile, "{{ strftime_now('%Y') }}{{ x | tojson(indent=1) }}{{ raise_exception('') }}", {"x": {}}, 99)
    _limit_resources(int(sys.argv[1]))
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        output.write(_line(render(compile, **json.loads(line))))
        output.flush()


if __name__ == "__main__":
    main()
