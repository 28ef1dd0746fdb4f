"""Check the components of a `tokenizer.json` from an unknown source before the `tokenizers` library builds them.

Components are the normalizer, pre-tokenizer, post-processor and decoder. Each has limits: on the special tokens that a
post-processor adds, on the factor by which a normalizer or decoder lengthens a text, on the words of a WordPiece model.
Regular expressions are timed on texts made to be slow (`server.text.tokenizers.expressions`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Regex, normalizers
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.bounds import (
    MAX_ADDED_BYTES,
    MAX_ADDED_TOKENS,
    MAX_ENTRIES,
    MAX_ENTRY,
    MAX_MERGES,
    check,
)
from server.text.tokenizers.expressions import check_expression, is_published
from server.text.tokens.token_bound import character_map_texts
from server.text.tokens.tokenizer import TokenizerError

MAX_COMPONENT_BYTES = 4 << 20
MAX_STEPS = 64
"""Most parts of one component, including parts of parts."""
MAX_SPECIAL_TOKENS = 256
"""Most special tokens that are added around a text, or a pair of texts."""
MAX_GROWTH = 32
"""Most characters that all replacements of a normalizer, or of a decoder, may together make of one character."""
MAX_MAPPED_BYTES = 256
"""Longest text, in bytes, that a character map makes of one character. In the map of NFKC it has 33 bytes."""
MAX_WORD = 256
"""Longest word, in characters, that a WordPiece model divides. The time grows with the square of the length."""
MAX_AFFIX = 64
MAX_EXPRESSIONS = 8
"""Most regular expressions of one file that are timed. Each takes half a second."""

_ONCE = ("ByteLevel", "Precompiled", "Metaspace")
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
_NONE = msgspec.Raw(b"null")


class _Added(msgspec.Struct):
    content: str


class _Model(msgspec.Struct):
    vocab: msgspec.Raw = _NONE
    merges: msgspec.Raw = _NONE
    max_input_chars_per_word: int | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] | None = None
    normalizer: msgspec.Raw = _NONE
    pre_tokenizer: msgspec.Raw = _NONE
    post_processor: msgspec.Raw = _NONE
    decoder: msgspec.Raw = _NONE


def check_tokenizer_json(content: bytes) -> int | None:
    """Check a `tokenizer.json` against all limits.

    Returns the highest id of its vocabulary plus one. Returns None if the id cannot be found without parsing the whole
    vocabulary; the length of the entries is then unchecked. Raises TokenizerError, one line, for a file that exceeds a
    limit or is damaged.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
        added = file.added_tokens or []
        check(len(added), MAX_ADDED_TOKENS, "added tokens")
        check(sum(len(token.content.encode()) for token in added), MAX_ADDED_BYTES, "bytes of added tokens")
        check(max((len(token.content) for token in added), default=0), MAX_ENTRY, "characters in one added token")
        _check_model(file.model)
        _check_components(
            *(_parsed(part) for part in (file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder))
        )
        return _measured_size(bytes(file.model.vocab))
    except (msgspec.MsgspecError, RecursionError, AttributeError, TypeError, KeyError, binascii.Error) as error:
        reason = " ".join(str(error).split())[:120]
        raise TokenizerError(f"tokenizer.json is damaged or of a newer format: {reason}") from None


def check_built(backend: LibraryTokenizer) -> None:
    """Check the components of a tokenizer that the library has built. Raises TokenizerError if one exceeds a limit.

    `check_tokenizer_json` may read a file differently from the library, which accepts components without a type and
    ignores unknown members.
    """
    built = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
    states = [msgspec.json.decode(b"null" if part is None else part.__getstate__()) for part in built]
    for state in states:
        check(sum(1 for _ in _steps(state)), MAX_STEPS, "parts in one component")
    _check_components(*states)


def _check_components(normalizer: Any, pre_tokenizer: Any, post_processor: Any, decoder: Any) -> None:
    components = (normalizer, pre_tokenizer, post_processor, decoder)
    expressions = {_expression(step) for component in components for step in _steps(component)} - {None}
    foreign = sum(expression is not None and not is_published(expression) for expression in expressions)
    check(foreign, MAX_EXPRESSIONS, "expressions that no published tokenizer has")
    _check_growth("normalizer", normalizer)
    _check_growth("decoder", decoder)
    _check_once("pre_tokenizer", pre_tokenizer)
    for step in _steps(pre_tokenizer):
        _check_pattern("pre_tokenizer", step)
        if step.get("type") == "FixedLength" and step["length"] < 1:
            raise TokenizerError("tokenizer.json: its pre_tokenizer cuts texts into parts of no length")
    for step in _steps(post_processor):
        _check_template(step)


def _check_once(name: str, component: Any) -> None:
    """Raise TokenizerError if two parts of a component that lengthen texts are of the same kind.

    The second part would lengthen the text that the first part has added. name: name of the component, for the message.
    """
    kinds = [step.get("type") for step in _steps(component)]
    for kind in _ONCE:
        check(kinds.count(kind), 1, f"parts of the type {kind} in its {name}")


def check_character_map(charsmap: bytes, file: str) -> None:
    """Raise TokenizerError for a SentencePiece character map that turns one character into too long a text.

    file: name of the file, for the message.
    """
    check(
        max(map(len, character_map_texts(charsmap))), MAX_MAPPED_BYTES, "bytes in one text of its character map", file
    )


def _parsed(component: msgspec.Raw) -> Any:
    check(len(component), MAX_COMPONENT_BYTES, "bytes in one component")
    parsed = msgspec.json.decode(component)
    check(sum(1 for _ in _steps(parsed)), MAX_STEPS, "parts in one component")
    return parsed


def _check_model(model: _Model) -> None:
    # Each entry of an object has `":`, and each pair of a list has a bracket. Texts may have a few more of either.
    vocab = bytes(model.vocab)
    entries = vocab.count(b'":') if vocab.startswith(b"{") else vocab.count(b"[")
    check(entries, MAX_ENTRIES + (1 << 14), "entries in its vocabulary")
    check(len(_quotes(model.merges)) // 2, 2 * MAX_MERGES, "parts of merges")
    check(model.max_input_chars_per_word or 0, MAX_WORD, "for max_input_chars_per_word")
    for affix in (model.continuing_subword_prefix, model.end_of_word_suffix):
        check(len(affix or ""), MAX_AFFIX, "characters in a prefix or suffix of its entries")
    if model.continuing_subword_prefix:
        _check_prefix(model.continuing_subword_prefix, model.merges)


def _check_prefix(prefix: str, merges: msgspec.Raw) -> None:
    """Raise TokenizerError if the second part of a merge is shorter than the prefix that the library cuts from it.

    The library would panic, and write many lines. prefix: text that the library cuts.
    merges: JSON list of texts or pairs.
    """
    for merge in msgspec.json.decode(merges, type=list[str | list[str]] | None) or ():
        second = merge.split(" ")[-1] if isinstance(merge, str) else merge[-1] if merge else ""
        if len(second.encode()) < len(prefix.encode()):
            raise TokenizerError("tokenizer.json has a merge whose second part is shorter than its prefix of subwords")


def _measured_size(vocabulary: bytes) -> int | None:
    """Return the highest id of a vocabulary plus one, if no entry is longer than `MAX_ENTRY` bytes; else None.

    Works on the bytes of the JSON text with numpy. A loop over the entries would add a quarter to the time of loading.

    vocabulary: JSON object with the id of each entry, with the same white space around all ids. None is returned for
        any other JSON.
    """
    if rb"\\" in vocabulary or rb"\"" in vocabulary:
        vocabulary = vocabulary.replace(rb"\\", b"__").replace(rb"\"", b"__")
    quotes = _quotes(vocabulary)
    if not vocabulary.startswith(b"{") or len(quotes) < 4 or np.diff(quotes).max() > MAX_ENTRY:
        return None
    starts, ends = quotes[1:-1:2] + 1, quotes[2::2]
    # Of ids with the same spaces around them, the longest are the highest, and equally long ones sort as their texts.
    longest = int((ends - starts).max())
    content, starts = np.frombuffer(vocabulary, np.uint8), starts[ends - starts == longest]
    for column in range(longest):
        digits = content[starts + column]
        starts = starts[digits == digits.max()]
    highest, last = vocabulary[starts[0] : starts[0] + longest], vocabulary[quotes[-1] + 1 :]
    found = [re.search(rb":\s*(\d{1,9})\s*[,}]", text) for text in (highest, last)]
    return max(int(match[1]) for match in found if match) + 1 if all(found) else None


def _quotes(text: bytes | msgspec.Raw) -> npt.NDArray[np.intp]:
    """Indices of the quotation marks in a text."""
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))


def _steps(component: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a component, at any depth; the component itself if it has none.

    Stops after `MAX_STEPS` + 1 parts, which is enough to see that there are too many.
    """
    waiting, seen = [component], 0
    while waiting and seen <= MAX_STEPS:
        step = waiting.pop()
        seen += 1
        inner = [part for name in _LISTS for part in step.get(name) or ()] if _is_sequence(step) else []
        if inner:
            waiting += inner[: MAX_STEPS + 1]
            yield {"type": "Sequence"}
        elif step is not None:
            yield step


def _is_sequence(step: Any) -> bool:
    """Whether a part of a component consists of parts itself. In old files, it may have no type."""
    return step is not None and step.get("type", "Sequence") == "Sequence"


def _check_growth(name: str, component: Any) -> None:
    """Raise TokenizerError if a normalizer or a decoder can lengthen a text too much.

    Each pattern, prefix and suffix has a limit. All replacements together may make at most `MAX_GROWTH` characters of
    one character.

    name: `normalizer` or `decoder`, for the message. component: JSON value of the component.
    """
    steps = list(_steps(component))
    _check_once(name, component)
    check(sum(len(step.get("prepend") or "") for step in steps), MAX_AFFIX, "characters in texts that are prepended")
    for step in steps:
        _check_pattern(name, step)
        if step.get("type") == "Precompiled":
            charsmap = base64.b64decode(step.get("precompiled_charsmap") or "")
            check_character_map(charsmap, "tokenizer.json")
            try:
                normalizers.Precompiled(charsmap)
            except Exception:  # within a file, the library would panic, which writes several lines
                raise TokenizerError("tokenizer.json has a character map that cannot be read") from None
        check(len(step.get("suffix") or "") + len(step.get("prefix") or ""), MAX_AFFIX, "characters in a prefix")
    growth = prod(_growth(step) for step in steps)
    if growth > MAX_GROWTH:
        raise TokenizerError(
            f"tokenizer.json: the replacements of its {name} make up to {growth:,} characters of one; the limit is "
            f"{MAX_GROWTH}"
        )


def _growth(step: Mapping[str, Any]) -> int:
    """Largest number of characters by which one step of a component can replace one character."""
    if step.get("type", "Replace") != "Replace" or "content" not in step or "pattern" not in step:
        return 1
    length, pattern = len(step["content"]), step["pattern"]
    text, expression = pattern.get("String"), pattern.get("Regex")
    check(len(text or ""), MAX_AFFIX, "characters in a text that is replaced")
    if text:
        return max(1, -(-length // len(text)))
    may_be_empty = not text and expression is None
    if expression is not None:
        # An expression may match nothing at a place that has certain neighbours.
        replace = normalizers.Replace(Regex(expression), "x")
        may_be_empty = any(mark in expression for mark in ("(?", "\\b", "\\B", "\\G")) or bool(
            replace.normalize_str("")
        )
    return 1 + length if may_be_empty else max(1, length)


def _expression(step: Mapping[str, Any]) -> str | None:
    """The regular expression of a part of a component; None if the part has no expression."""
    pattern = step.get("pattern")
    return pattern.get("Regex") if isinstance(pattern, dict) else None


def _check_pattern(name: str, step: Mapping[str, Any]) -> None:
    expression = _expression(step)
    if expression is not None:
        check_expression(expression, name)


def _check_template(step: Mapping[str, Any]) -> None:
    """Raise TokenizerError if a template of a post-processor repeats a text, or adds too many special tokens."""
    special = step.get("special_tokens") or {}
    sizes = {name: len(token["ids"]) for name, token in special.items()} if isinstance(special, dict) else {}
    for side in ("single", "pair"):
        pieces = step.get(side) or []
        check(len(pieces), MAX_SPECIAL_TOKENS, f"parts in the template {side!r} of its post-processor")
        texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
        if len(set(texts)) < len(texts):
            raise TokenizerError(f"tokenizer.json: the template {side!r} of its post-processor repeats a text")
        added = sum(sizes.get(piece["SpecialToken"]["id"], 1) for piece in pieces if "SpecialToken" in piece)
        check(added, MAX_SPECIAL_TOKENS, f"special tokens in the template {side!r} of its post-processor")
