"""Tokenizers of untrusted checkpoints.

Components without bounds on time or memory are refused, and a panic of the library fails only one request.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from server.errors import EngineFailure
from server.text.tokenizers import expressions
from server.text.tokenizers.components import MAX_GROWTH, MAX_SPECIAL_TOKENS
from server.text.tokenizers.expressions import check_expression
from server.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.library_calls import BUSY_SECONDS, LibraryCalls
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from tests.hostile.base import tokenizer as change_tokenizer
from tests.hostile.base import write_checkpoint

Change = Callable[[dict[str, Any]], None]


def _put(**components: Any) -> Change:
    return lambda content: content.update(components)


def _template(count: int, pieces: list[Any] | None = None) -> Change:
    special = {"<s>": {"id": "<s>", "ids": [256] * count, "tokens": ["<s>"] * count}}
    single = pieces or [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return _put(post_processor={"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special})


def _replace(old: dict[str, str], new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": old, "content": new}


def _decoder(*steps: dict[str, Any]) -> Change:
    return _put(decoder={"type": "Sequence", "decoders": [*steps, {"type": "Fuse"}]})


def _normalizer(*steps: dict[str, Any]) -> Change:
    return _put(normalizer={"type": "Sequence", "normalizers": list(steps)})


def _split(expression: str) -> Change:
    return _put(pre_tokenizer=_splits(expression))


def _splits(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _pre_tokenizer(*steps: dict[str, Any]) -> Change:
    return _put(pre_tokenizer={"type": "Sequence", "pretokenizers": list(steps)})


def _model(**settings: Any) -> Change:
    return lambda content: content["model"].update(settings)


def _charsmap(longest: int) -> dict[str, Any]:
    content = (0).to_bytes(4, "little") + b"a" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def _nested(depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return step


_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
_METASPACES = [{"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True} for mark in "▁_"]
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_HIDDEN = _replace({"String": "e"}, "x" * 1000)
REFUSED: dict[str, Change] = {
    "a normalizer that writes bytes as characters twice": _normalizer({"type": "ByteLevel"}, {"type": "ByteLevel"}),
    "a pre-tokenizer that writes bytes as characters twice": _pre_tokenizer(_BYTES, _BYTES),
    "a pre-tokenizer that puts two characters before each part": _pre_tokenizer(*_METASPACES),
    "a pre-tokenizer that cuts parts of no length": _pre_tokenizer({"type": "FixedLength", "length": 0}),
    "two character maps": _normalizer(_charsmap(8), _charsmap(8)),
    "sixty texts before a text": _normalizer(*[{"type": "Prepend", "prepend": "xx"}] * 60),
    "a replacement with an inner list that is not read": _put(normalizer={**_HIDDEN, "normalizers": [{"type": "NFC"}]}),
    "a pre-tokenizer with a second list": _put(
        pre_tokenizer={
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}],
            "pretokenizers": [_splits("(a+)+$")],
        }
    ),
    "a replacement without a type": _put(
        normalizer={key: value for key, value in _HIDDEN.items() if key != "type"}, decoder=_HIDDEN
    ),
    "an expression that remembers much of each character": _split("(?:" * 60 + "a" + "|x)" * 60 + "*"),
    "an expression with a bracket in a class": _split("(?:[])]" + "(?:" * 60 + "a" + "|x)" * 60 + ")*"),
    "an expression that calls itself": _split(r"(?<x>a\g<x>?)"),
    "a quadratic expression of a script": _split(r"\p{Thai}+\p{Lao}"),
    "a quadratic expression of a category": _split(r"\p{Sc}+\p{Zl}"),
    "a quadratic expression of escapes": _split(r"[\x{3b1}-\x{3c9}]+[\x{2028}\x{2029}]"),
    "many expressions": _pre_tokenizer(*[_splits(f"x{{{number}}}") for number in range(1, 30)]),
    "100,000 special tokens around a text": _template(100_000),
    "a template that repeats the text": _template(1, [_TEXT] * 200),
    "a template with 100,000 parts": _template(1, [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 100_000),
    "two templates in a row": _put(
        post_processor={
            "type": "Sequence",
            "processors": [
                {"type": "TemplateProcessing", "single": [_TEXT, _TEXT], "pair": [], "special_tokens": {}},
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            ],
        }
    ),
    "a decoder that replaces e by a million letters": _decoder(_replace({"String": "e"}, "x" * 1_000_000)),
    "a decoder that doubles e thirty times": _decoder(*[_replace({"String": "e"}, "ee")] * 30),
    "a decoder that replaces nothing by letters": _decoder(_replace({"String": ""}, "x" * 1000)),
    "a decoder with a long pattern": _decoder(_replace({"String": "e" * 100_000}, "x")),
    "a decoder with a long prefix": _put(decoder={"type": "WordPiece", "prefix": "x" * 100_000, "cleanup": True}),
    "a normalizer that replaces e by many letters": _normalizer(_replace({"String": "e"}, "x" * 1000)),
    "a normalizer that replaces what an expression finds": _normalizer(_replace({"Regex": "[a-z]"}, "x" * 1000)),
    "a normalizer that finds nothing everywhere": _normalizer(_replace({"Regex": "(?=e)"}, "x" * MAX_GROWTH)),
    "a normalizer that doubles e thirty times": _normalizer(*[_replace({"String": "e"}, "ee")] * 30),
    "a normalizer that puts much before a text": _normalizer({"type": "Prepend", "prepend": "x" * 100_000}),
    "a character map with a long text": _normalizer(_charsmap(1_000_000)),
    "a hundred steps": _normalizer(*[{"type": "NFC"}] * 100),
    "steps inside of steps": _put(normalizer=_nested(200)),
    "an expression that backtracks without end": _split("(a+)+$"),
    "alternatives that overlap": _split("(a|a)*b"),
    "a quadratic expression": _split(r"a*b"),
    "a cubic expression": _split(r"\w*\w*\w*!"),
    "an expression that looks ahead to the end": _split("(?=.*q)"),
    "a quadratic expression of a normalizer": _normalizer(_replace({"Regex": r"\w+!"}, "")),
    "an invalid expression": _split("(a"),
    "a long expression": _split("a" * 10_000),
    "a long suffix of words": _model(end_of_word_suffix="x" * 100_000),
    "a vocabulary entry of 10,000 characters": lambda content: content["model"]["vocab"].update({"x" * 10_000: 260}),
    "an added token of 10,000 characters": lambda content: content["added_tokens"][0].update(content="x" * 10_000),
}


def _load(change: Change, directory: Path) -> Tokenizer:
    write_checkpoint(directory)
    change_tokenizer(change)(directory)
    return load_tokenizer(directory)


@pytest.mark.parametrize("expression", [r"[^\r\n]*\n", r"(?:\r\n)+x", r"[à-ü]+\?", r"[.?!]+\*", r"\t+\|"])
def test_escaped_characters_are_tried_too(expression: str, tmp_path: Path) -> None:
    """Slow texts also contain escaped characters.

    A line of 16,384 without an end took 0.4 s, one of 65,536 16 times that.
    """
    with pytest.raises(TokenizerError, match="takes too long for a text of"):
        _load(_split(expression), tmp_path)


@pytest.mark.parametrize("expression", [r"[\r\n]+", r"[^\r\n]+", r"\t| {2}", r"[?!.]+", r"\[[^\[\]]\]"])
def test_fast_expressions_with_escapes_are_accepted(expression: str, tmp_path: Path) -> None:
    _load(_split(expression), tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_component_without_bounds_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"^tokenizer\.json") as caught:
        _load(REFUSED[name], tmp_path)
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


def _map_of(character: str, text: bytes) -> dict[str, Any]:
    """A compiled character map that replaces one ASCII character by `text`.

    It is a double array (Darts) with two nodes, and the text after it.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    node = 256 ^ ord(character)
    units[node] = 512 << 10 | 1 << 8 | ord(character)
    units[node ^ 512] = 1 << 31
    trie = struct.pack(f"<{len(units)}I", *units)
    content = struct.pack("<I", len(trie)) + trie + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_normalizer(_map_of("a", b"a" * 30)), "a b " * 50),
        (_normalizer({"type": "NFKD"}, _map_of("a", b"a" * 30)), "\u00aa " * 50),
        (_normalizer({"type": "ByteLevel"}), "é日" * 50),
        (
            lambda content: content.update(
                normalizer={"type": "Prepend", "prepend": "x" * 60},
                added_tokens=[
                    *content["added_tokens"],
                    {
                        "id": 300,
                        "content": "q",
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": False,
                        "normalized": False,
                        "special": False,
                    },
                ],
            ),
            "aq" * 50,
        ),
    ],
)
def test_the_bound_of_a_foreign_tokenizer_is_true(change: Change, text: str, tmp_path: Path) -> None:
    tokenizer = _load(change, tmp_path)
    (encoding,) = tokenizer.encode([text], add_special_tokens=False)
    assert len(text) < len(encoding.ids) <= tokenizer.token_bound(text)


def test_a_plain_exception_of_the_library_is_an_error_of_one_request(tmp_path: Path) -> None:
    tokenizer = _load(_put(model={"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}}), tmp_path)
    with pytest.raises(EngineFailure, match="failed on this text"):
        tokenizer.encode(["b"])


@pytest.mark.parametrize(
    "change",
    [
        _template(MAX_SPECIAL_TOKENS),
        _decoder(_replace({"String": "▁"}, " "), {"type": "ByteFallback"}),
        _normalizer(_replace({"String": "``"}, '"'), {"type": "NFKD"}, _replace({"Regex": " {2,}"}, "▁")),
        _normalizer({"type": "Prepend", "prepend": "▁"}, _replace({"String": " "}, "▁")),
        _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        _split(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
        _split(r"\s+"),
        _put(truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}),
        _put(
            padding={
                "strategy": {"Fixed": 1_000_000_000},
                "direction": "Right",
                "pad_to_multiple_of": 1_000_000_000,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        ),
    ],
)
def test_published_components_are_accepted(change: Change, tmp_path: Path) -> None:
    (encoding,) = _load(change, tmp_path).encode(["one two"])
    assert 2 <= len(encoding.ids) <= MAX_SPECIAL_TOKENS + 14


def test_expressions_of_published_tokenizers_are_known_or_fast() -> None:
    for name in ("llama3", "qwen2", "gpt-4o", "tekken", "deepseek-v3", "kimi-k2", "bloom"):
        state = json.loads(PRE_TOKENIZERS[name]().__getstate__())
        for part in state.get("pretokenizers", [state]):
            if part["type"] == "Split":
                check_expression(part["pattern"]["Regex"], "pre_tokenizer")


def test_a_panic_is_an_error_of_one_request(tmp_path: Path) -> None:
    tokenizer = _load(_decoder({"type": "Strip", "content": "a", "start": 1, "stop": 1}), tmp_path)
    index = tokenizer.token_to_id("a")
    assert index is not None
    with pytest.raises(EngineFailure, match="the tokenizer of the model failed"):
        tokenizer.decode([index])
    with pytest.raises(EngineFailure):
        tokenizer.join(["a"])
    assert tokenizer.encode(["b"])[0].ids, "the next request is answered"


def test_a_panic_while_encoding_is_an_error_of_one_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer: Any = _load(lambda content: None, tmp_path)
    backend: LibraryTokenizer = tokenizer._backend
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    with pytest.raises(EngineFailure, match="the tokenizer of the model failed"):
        tokenizer.encode(["a" * 40 + "!"])
    capfd.readouterr()  # the library writes the stack of the panic
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert tokenizer.encode(["b"])[0].ids


def test_texts_are_refused_while_one_takes_too_long() -> None:
    now = 0.0
    calls = LibraryCalls(lambda: now)
    with calls.call():
        now = BUSY_SECONDS
        with calls.call():
            pass
        now = BUSY_SECONDS + 1
        with pytest.raises(EngineFailure, match="another text"), calls.call():
            pass
    with calls.call():
        pass


def test_steps_of_a_decoder_that_panics_are_those_of_the_library() -> None:
    with pytest.raises(BaseException, match="slice index"):
        decoders.Strip("a", 1, 1).decode(["a"])


def test_a_quadratic_expression_is_found_where_splitting_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fast processor, the text that takes quadratic time is not yet among the slowest at 512 characters."""
    texts = list(expressions._texts("a*b"))
    slow = texts[len(texts) // 2]

    def seconds(split: object, text: tuple[str, str], length: int) -> float:
        pieces = length * 1e-6 * (1 + texts.index(text) / len(texts))
        return pieces + (8e-10 * length**2 if text == slow else 0)

    monkeypatch.setattr(expressions, "_seconds", seconds)
    at_512 = sorted(texts, key=lambda text: -seconds(None, text, 512))
    assert at_512.index(slow) > 2 * expressions.MAX_LONG_TEXTS
    with pytest.raises(TokenizerError, match="grows faster"):
        expressions.check_expression("a*b", "splitter")


def test_published_expressions_are_known_in_either_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known expression is accepted without the search for slow texts, which would take a second.

    DeepSeek V3 writes line breaks and quotes in its expression without escapes.
    """
    monkeypatch.setattr(expressions, "_try", lambda *more: pytest.fail("the expression is published"))
    escaped = next(expression for expression in expressions._published() if expression.startswith('[!"#'))
    assert r"\r\n" in escaped
    expressions.check_expression(escaped.replace(r"\r", "\r").replace(r"\n", "\n"), "pre-tokenizer")
    expressions.check_expression(escaped.replace('"', r"\""), "pre-tokenizer")
