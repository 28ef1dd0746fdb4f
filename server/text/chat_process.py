"""The process that renders chat templates, apart from the server: a checkpoint's template is a stranger's program.

`python -m server.text.chat_process BYTES`: one line of JSON in, one out. Jinja's sandbox keeps a template from Python's
insides; here it also has no files to open and no more memory than it was given, and whoever asked ends the process
when it takes too long. What a template finds is what transformers gives it:
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
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


class _Refused(TemplateError):
    """What a template says itself when it does not take the messages."""


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; the text between the tags is all there is here."""

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
    """Without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise _Refused(message)


def environment() -> ImmutableSandboxedEnvironment:
    """Where templates run."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def render(compile: Callable[[str], Template], source: str, context: dict[str, Any], most: int) -> dict[str, str]:
    """`{"text"}`, or why not: `{"refused"}` in the template's own words, `{"failed"}` with the kind of fault.

    most: characters of the text.
    """
    parts: list[str] = []
    size = 0
    try:
        for part in compile(source).generate(**context):
            parts.append(part)
            size += len(part)
            if size > most:
                return {"failed": f"its text is longer than {most} characters"}
    except _Refused as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"failed": type(error).__name__}
    return {"text": "".join(parts)}


def _confine(memory_bytes: int) -> None:
    """No more memory than that, no core file, and no file beyond those that are open."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Answer until the input ends."""
    compile = lru_cache(maxsize=16)(environment().from_string)
    # Once before the files are gone: what is only imported at need, and the time zone.
    render(compile, "{{ strftime_now('%Y') }}{{ x | tojson(indent=1) }}{{ raise_exception('') }}", {"x": {}}, 99)
    _confine(int(sys.argv[1]))
    answer = sys.stdout.buffer
    answer.write(b"\n")
    answer.flush()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        answer.write(json.dumps(render(compile, asked["source"], asked["context"], asked["most"])).encode() + b"\n")
        answer.flush()


if __name__ == "__main__":
    main()
