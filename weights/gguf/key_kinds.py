"""Types of the metadata keys that Triptych reads as texts or lists. A value of another type is refused at reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KeyKind:
    """Type that the value of a metadata key must have.

    words: the type in words, for messages.
    elements: codes of the GGUF types that are allowed for the value or, if it is a list, for its elements.
    is_list: whether the value must be a list.
    """

    words: str
    elements: frozenset[int]
    is_list: bool = True


_STRINGS, _INTEGERS, _FLOATS = frozenset((8,)), frozenset((0, 1, 2, 3, 4, 5, 10, 11)), frozenset((6, 12))
TEXT = KeyKind("a text", _STRINGS, is_list=False)
TEXTS = KeyKind("a list of texts", _STRINGS)
INTEGERS = KeyKind("a list of integers", _INTEGERS)
NUMBERS = KeyKind("a list of numbers", _INTEGERS | _FLOATS)
KEY_KINDS: Mapping[str, KeyKind] = {
    "tokenizer.ggml.model": TEXT,
    "tokenizer.ggml.pre": TEXT,
    "tokenizer.ggml.tokens": TEXTS,
    "tokenizer.ggml.token_type": INTEGERS,
    "tokenizer.ggml.merges": TEXTS,
    "tokenizer.ggml.scores": NUMBERS,
    "tokenizer.ggml.precompiled_charsmap": INTEGERS,
    "tokenizer.chat_template": TEXT,
    "tokenizer.chat_templates": TEXTS,
    **{f"xielu.{name}": NUMBERS for name in ("alpha_p", "alpha_n", "beta", "eps")},
}
