"""The process that compiles grammars, separate from the server because a small schema can take minutes or gigabytes.

Usage: `python -P grammar_process.py MEMORY_BYTES`. Each line of stdin is a format, as JSON:
`{"schema": JSON text, "options": ...}`, `{"pattern": regular expression}` or `{"grammar": a whole grammar}`, with
`cpu_seconds`, its limit of processor time. Each line of stdout is its reply:

- `source`: the grammar of the text, in llguidance's JSON form; empty for a whole grammar; or
- `refused`: the reason why the format cannot be used;
- `seconds`: the processor time.

A format that takes more than the processor time, the memory or the stack ends the process without a reply. The
library's reasons are shown to the client, without the text around them.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import llguidance

MAX_REASON_CHARACTERS = 200
PART_CHARACTERS = 5
"""In an error, a word of at least this length is hidden even if it is only a part of a word of the request."""
_WORD = re.compile(r"\w\w+")
_COMMON_WORDS = {"array", "boolean", "const", "enum", "format", "integer", "items", "maximum", "minimum", "null"} | {
    "number",
    "object",
    "pattern",
    "properties",
    "regex",
    "schema",
    "string",
    "type",
}
"""Words that an error may contain even if the request contains them too."""
STACK_BYTES = 4 << 20
"""Half of the usual stack size of a thread. The worker compiles accepted formats together in a thread, which must not
need more stack."""


def compile(text_format: dict[str, Any]) -> dict[str, str]:
    """Compile one format, compute the mask of the first byte, and return the reply: `source` or `refused`."""
    source, grammar = "", text_format.get("grammar")
    if grammar is None:
        try:
            source = _source(text_format)
        except ValueError as error:
            return {"refused": f"cannot be used: {_without_words(_reason(str(error)), text_format)}"}
        start = {"name": "start", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @text'}
        grammar = json.dumps({"grammars": [start, {"name": "text", **json.loads(source)}]})
    reason = _refusal(grammar)
    return {"source": source} if reason is None else {"refused": _without_words(reason, text_format)}


def _source(text_format: dict[str, Any]) -> str:
    """The grammar of a schema or pattern, in llguidance's JSON form. Raises ValueError if llguidance cannot read it."""
    if "schema" in text_format:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text_format["schema"], overrides=text_format["options"])
    else:
        grammar = llguidance.LLMatcher.grammar_from_regex(text_format["pattern"])
    (rules,) = json.loads(grammar)["grammars"]
    return json.dumps({name: value for name, value in rules.items() if name != "name" and value is not None})


def _refusal(grammar: str) -> str | None:
    """The reason why a whole grammar cannot be used, or None if it can."""
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(_byte_vocabulary(), grammar, limits=limits, log_level=0)
    if matcher.is_error():
        return f"cannot be used: {_reason(matcher.get_error())}"
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        unfollowable = matcher.get_error().startswith("NoExtension")
        return "matches no text" if unfollowable else f"cannot be used: {_reason(matcher.get_error())}"
    assert any(mask), "a grammar without an error allows some token"
    return None


def _reason(error: str) -> str:
    """The line of the library's message that states the error, shortened."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["unknown reason"]
    line = next((text.removeprefix("error: ") for text in lines if text.startswith("error: ")), lines[0])
    return line[: 10 * MAX_REASON_CHARACTERS]


def _without_words(reason: str, text_format: dict[str, Any]) -> str:
    """Replace words in a reason that the library has copied from the request by `...`, because errors quote no request.

    The library may copy parts of words, with or without JSON escapes. text_format: the format in the request.
    """
    asked = json.dumps(text_format, ensure_ascii=False).lower()
    for text in filter(None, map(text_format.get, ("schema", "pattern", "grammar"))):
        asked += f" {text} ".lower()
        with contextlib.suppress(ValueError, RecursionError):
            asked += " ".join(_texts(json.loads(text))).lower()
    taken = set(_WORD.findall(asked)) - _COMMON_WORDS

    def shown(word: re.Match[str]) -> str:
        found = word[0].lower()
        is_part = len(found) >= PART_CHARACTERS and found not in _COMMON_WORDS and found in asked
        return "..." if is_part or found in taken else word[0]

    return _WORD.sub(shown, reason)[:MAX_REASON_CHARACTERS]


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, including names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


@cache
def _byte_vocabulary() -> llguidance.LLTokenizer:
    """A vocabulary with one token for each byte, so that every text can be spelled, and an end token."""
    tokens = [*(bytes([byte]) for byte in range(256)), b""]
    vocabulary = SimpleNamespace(tokens=tokens, eos_token_id=256, bos_token_id=None, special_token_ids=[256])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), n_vocab=257, eos_token=256)


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space and the stack of this process, and forbid core files. Does nothing on Windows."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_alarm(cpu_seconds: float) -> None:
    """End this process after it has used this much processor time; 0 for no limit. Does nothing on Windows."""
    if sys.platform == "win32":
        return
    import signal

    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    compile({"pattern": "[ab]"})
    _limit_memory(int(sys.argv[1]))
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        text_format = json.loads(line)
        _set_alarm(text_format["cpu_seconds"])
        started = time.process_time()
        reply = compile(text_format)
        _set_alarm(0)
        output.write(json.dumps({**reply, "seconds": time.process_time() - started}).encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
