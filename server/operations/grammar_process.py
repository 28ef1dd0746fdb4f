"""The process that compiles grammars, separate from the server because a small schema can take minutes or gigabytes.

Usage: `python -P grammar_process.py CPU_SECONDS MEMORY_BYTES`. Each line of stdin is a JSON request, a list of formats;
each line of stdout is its reply, one entry for each format:

- `{"source": ...}`: the grammar of the text, in llguidance's JSON form;
- `{"refused": ...}`: the reason why the format cannot be used.

A format is `{"schema": JSON text, "options": ...}` or `{"pattern": regular expression}`. A request that takes more than
the processor time or the memory ends the process without a reply. The library's reasons are shown to the client,
without the text around them.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import llguidance

MAX_REASON_CHARACTERS = 200


def compile(text_format: dict[str, Any]) -> dict[str, str]:
    """The reply for one format. Compiles the grammar and computes the mask of a first byte."""
    try:
        source = _source(text_format)
    except ValueError as error:
        return {"refused": f"cannot be used: {_reason(str(error))}"}
    reason = _refusal(source)
    return {"source": source} if reason is None else {"refused": reason}


def _source(text_format: dict[str, Any]) -> str:
    """The grammar of a text, in llguidance's JSON form. Raises ValueError for a format that llguidance cannot read."""
    if "schema" in text_format:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text_format["schema"], overrides=text_format["options"])
    else:
        grammar = llguidance.LLMatcher.grammar_from_regex(text_format["pattern"])
    (rules,) = json.loads(grammar)["grammars"]
    return json.dumps({name: value for name, value in rules.items() if name != "name" and value is not None})


def _refusal(source: str) -> str | None:
    start = {"name": "start", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @text'}
    grammar = json.dumps({"grammars": [start, {"name": "text", **json.loads(source)}]})
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
    """The first line of the library's message that states the error."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["unknown reason"]
    line = next((one.removeprefix("error: ") for one in lines if one.startswith("error: ")), lines[0])
    return line[:MAX_REASON_CHARACTERS]


@cache
def _byte_vocabulary() -> llguidance.LLTokenizer:
    """A vocabulary of all single bytes, so that every text can be spelled."""
    tokens = [*(bytes([byte]) for byte in range(256)), b""]
    vocabulary = SimpleNamespace(tokens=tokens, eos_token_id=256, bos_token_id=None, special_token_ids=[256])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), n_vocab=257, eos_token=256)


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space, and forbid core files."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_alarm(cpu_seconds: float) -> None:
    """End the process after this processor time; 0 for no limit. Time in which other processes run is not included."""
    if sys.platform == "win32":
        return
    import signal

    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    cpu_seconds, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    compile({"pattern": "[ab]"})
    _limit_memory(memory_bytes)
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        _set_alarm(cpu_seconds)
        reply = json.dumps([compile(text_format) for text_format in json.loads(line)])
        _set_alarm(0)
        output.write(reply.encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
