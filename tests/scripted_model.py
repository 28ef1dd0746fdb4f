"""A tiny LLaMA checkpoint whose answers a test writes: text, reasoning and tool calls come out exactly as written.

A user message names a script with a marker, `[[script:NAME]]`. A script is a list of answers (steps). The first answer
after the marker is step 0, the next one step 1, and so on, so that a tool loop ends. The last step is repeated.

How it works:

- The chat template (`scripted_template.jinja`) finds the script and the step, and ends the prompt with one special
  token for it, the cue.
- Cues, and the pieces of the answers, are tokens that occur only once in all scripts. So the current token determines
  the next one. Only `<think>`, `</think>`, `<tool_call>` and `</tool_call>` occur often; after one of them, the token
  before it also matters.
- The embedding of a cue or a piece contains a code of 1 and -1. Codes of different tokens are nearly orthogonal.
- The only layer copies the code of the previous token: its attention scores have their peak at a distance of 1. Its
  feed-forward part is zero.
- `lm_head` is the table of next tokens: the row of a token contains the codes of the tokens that come before it.

The logit of the scripted token is at least 60 higher than any other, so sampling chooses it too. Where a grammar
forbids it, small constants choose a token that ends the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MAX_POSITIONS = 131_072
DEFAULT = "default"
"""The script for conversations without a marker, and for steps that call tools which the request does not offer."""

_ROOT = Path(__file__).resolve().parents[1]
_TEMPLATE = Path(__file__).with_name("scripted_template.jinja")


@dataclass(frozen=True)
class ScriptedCall:
    """A tool call of a scripted answer."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The call as Hermes and Qwen models write it, without the markers around it."""
        return "\n" + json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Step:
    """One answer: reasoning, then content, then tool calls. Each part may be missing."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()


Scripts = Mapping[str, Sequence[Step]]
GENERAL: Scripts = {
    DEFAULT: [Step("A scripted answer.")],
    "text": [Step("The scripted answer, in plain text: 1, 2, 3 — done.")],
    "reasoning": [Step("The answer is 42.", reasoning="Six times seven.\nThat is forty-two.")],
    "tools": [
        Step(calls=(ScriptedCall("get_weather", {"city": "Zürich"}),)),
        Step("Now the time.", calls=(ScriptedCall("get_time", {"zone": "Europe/Zurich"}),)),
        Step("It is noon in Zürich, and sunny."),
    ],
    "parallel": [
        Step(
            reasoning="Two calls at once.",
            calls=(ScriptedCall("get_weather", {"city": "Oslo"}), ScriptedCall("get_weather", {"city": "Rome"})),
        ),
        Step("Oslo is cold and Rome is warm."),
    ],
}
"""Scripts for tests whose requests offer the tools `get_weather(city)` and `get_time(zone)`."""


def write_scripted(directory: Path, scripts: Scripts = GENERAL) -> Path:
    """Write the checkpoint. scripts: the steps of each script by name; `DEFAULT` is added where it is missing.

    Raises ValueError for an answer that cannot be divided into tokens that no other answer has.
    """
    scripts = {DEFAULT: GENERAL[DEFAULT], **scripts}
    parts = {name: [_parts(step) for step in steps] for name, steps in scripts.items()}
    cues = _cues(scripts)
    vocabulary, merges = _trained_vocabulary()
    cutter = _Cutter(set(vocabulary))
    answers = [_Answer(cue, list(cutter.tokens(answer)), cutter) for answer, cue in cues.items()]
    directory.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(directory, vocabulary, merges, cutter.used, list(cues.values()))
    _write_weights(directory, ids, answers)
    table = {
        name: [
            [cues[answer], [call.name for call in step.calls]] for answer, step in zip(parts[name], steps, strict=True)
        ]
        for name, steps in scripts.items()
    }
    (directory / "chat_template.jinja").write_text(
        _TEMPLATE.read_text().replace("SCRIPTS", json.dumps(table)).replace("DEFAULT", json.dumps(DEFAULT))
    )
    return directory


def cue_of(name: str, scripts: Scripts = GENERAL) -> str:
    """The cue of a script's first answer. Prompts that no chat template renders must end with it."""
    return _cues({DEFAULT: GENERAL[DEFAULT], **scripts})[_parts(scripts[name][0])]


def _cues(scripts: Scripts) -> dict[tuple[Part, ...], str]:
    """The cue of each different answer."""
    different = dict.fromkeys(_parts(step) for steps in scripts.values() for step in steps)
    return {answer: f"<|cue_{index}|>" for index, answer in enumerate(different)}


# ------------------------------------------------------------------------------------------------- answers as tokens

_END = "<|im_end|>"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", _END)
_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_OTHER_MARKERS = ("<tool_response>", "</tool_response>")
_GAP, _CALL_GAP = "gap", "gap between calls"
"""Kinds of parts that stand for white space of any length: before calls without content, and between calls."""
_PIECE_CHARACTERS = 4
_CALL_GAPS = tuple("\n" * lines + " " * spaces for lines in (1, 2) for spaces in range(21))
"""White space that the server's grammar allows between calls."""
_GAPS = tuple("\n" + " " * first + "\n" + " " * second for first in range(1, 21) for second in range(21))

Part = tuple[str, str]
"""A part of an answer: its kind (`text`, `marker`, or one of the gaps) and its text."""


def _parts(step: Step) -> tuple[Part, ...]:
    parts: list[Part] = []
    if step.reasoning:
        parts += [("marker", "<think>"), ("text", f"\n{step.reasoning}\n"), ("marker", "</think>")]
    if step.content:
        parts.append(("text", step.content + ("\n" if step.calls else "")))
    elif step.reasoning:
        parts.append((_GAP, ""))
    for index, call in enumerate(step.calls):
        if index:
            parts.append((_CALL_GAP, ""))
        parts += [("marker", "<tool_call>"), ("text", call.text), ("marker", "</tool_call>")]
    return tuple(parts)


class _Cutter:
    """Divides texts into tokens, and never uses a token twice.

    used: the tokens used so far.
    """

    def __init__(self, vocabulary: set[str]) -> None:
        self.used: dict[str, None] = {}
        self._vocabulary = vocabulary

    def tokens(self, parts: Sequence[Part]) -> Iterator[str]:
        """The tokens of an answer."""
        for kind, text in parts:
            if kind == "marker":
                yield text
            elif kind == "text":
                yield from self._pieces(text)
            else:
                yield self.gap(_GAPS if kind == _GAP else _CALL_GAPS)

    def gap(self, choices: Sequence[str] = _GAPS) -> str:
        """White space that is a token of no other answer."""
        free = next((choice for choice in choices if self._is_free(choice)), None)
        if free is None:
            raise ValueError("the scripts have too many calls: no white space is left that occurs once")
        return self.use(free)

    def use(self, token: str) -> str:
        """Mark a token as used, and return it."""
        self.used[token] = None
        return token

    def _pieces(self, text: str) -> list[str]:
        start, pieces, least = 0, [], _PIECE_CHARACTERS
        while start < len(text):
            ends = range(min(start + least, len(text)), len(text) + 1)
            end = next((end for end in ends if self._is_free(text[start:end])), None)
            if end is not None:
                pieces.append(self.use(text[start:end]))
                start = end
            elif pieces:
                # The rest occurs elsewhere, so it joins the piece before.
                last = pieces.pop()
                del self.used[last]
                start -= len(last)
                least = len(text) - start
            else:
                raise ValueError("a text of a script occurs elsewhere too, or is too short")
        return pieces

    def _is_free(self, text: str) -> bool:
        return text not in self.used and _byte_level(text) not in self._vocabulary


class _Answer:
    """The tokens of an answer after its cue, and the transitions between them.

    entry: the first token after a prompt that already contains the end of the reasoning.
    """

    def __init__(self, cue: str, tokens: list[str], cutter: _Cutter) -> None:
        self.cue, self.tokens = cue, tokens
        self.has_calls = "<tool_call>" in tokens
        self._extra: list[tuple[str, str, str]] = []
        if "</think>" in tokens:
            place = tokens.index("</think>") + 1
            self.entry = tokens[place]
            if not self.entry.isspace():
                # The empty line between reasoning and content. A prompt that ends the reasoning already contains it.
                tokens[place] = cutter.use("\n\n" + self.entry)
                self._extra.append(("", self.entry, [*tokens, _END][place + 1]))
        elif tokens[0] in _MARKERS:
            self.entry = cutter.gap()
            self._extra += [("", self.entry, tokens[0]), (self.entry, tokens[0], tokens[1])]
        else:
            self.entry = tokens[0]
        self._extra.append((cue, "</think>", self.entry))
        if self.has_calls:
            self._extra.append((cue, "<tool_call>", tokens[tokens.index("<tool_call>") + 1]))

    def transitions(self) -> list[tuple[str, str, str]]:
        """Triples of the previous token, the current one and the next one."""
        sequence = ("", self.cue, *self.tokens, _END)
        return [*zip(sequence, sequence[1:], sequence[2:], strict=False), *self._extra]


# --------------------------------------------------------------------------------------------------------- tokenizer


@cache
def _trained_vocabulary() -> tuple[dict[str, int], list[Any]]:
    """Vocabulary and merges of a byte-level BPE model, trained on the documentation of this repository."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(path) for path in sorted((_ROOT / "docs").glob("*.md"))], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], model["merges"]


def _byte_level(text: str) -> str:
    """A text in the notation of byte-level vocabularies, with one printable character per byte."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(part for part, _ in splitter.pre_tokenize_str(text))


def _write_tokenizer(
    directory: Path, vocabulary: Mapping[str, int], merges: list[Any], pieces: Sequence[str], cues: Sequence[str]
) -> dict[str, int]:
    """Write the files of the tokenizer.

    Returns the id of every token, by the token's text, which is readable for pieces.
    """
    words = dict(vocabulary)
    for piece in pieces:
        words[_byte_level(piece)] = len(words)
    tokenizer = Tokenizer(models.BPE(words, [tuple(merge) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in (*_SPECIAL, *cues)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*_MARKERS, *_OTHER_MARKERS)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": _END,
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = tokenizer.get_vocab()
    return ids | {piece: ids[_byte_level(piece)] for piece in pieces}


# ----------------------------------------------------------------------------------------------------------- weights

_CODE_SIZE, _KIND_SIZE = 128, 16
_CURRENT, _PREVIOUS = slice(0, 128), slice(128, 256)
"""Dimensions of the hidden state: code of the current token, and code of the previous one, which the layer adds."""
_KIND, _ONES, _FILLER = slice(256, 272), slice(272, 288), 288
"""Dimensions of the hidden state: kind of the token, ones, and a value that gives all tokens the same norm."""
_HIDDEN_SIZE, _HEAD_DIM, _NUM_HEADS = 320, 64, 2
_ROPE_THETA = 100.0
_NUM_ROPE_PAIRS = 16
"""Number of pairs of dimensions that attention scores use: those with the fastest rotary embeddings."""
_MAX_SCORE = 1000.0
_LOGIT = 256.0
"""Logit that `lm_head` gives for one matching code, before the final norm."""
_BY_CURRENT = 1.6
"""Weight of the current token's code. The previous token's code has weight 1: a cue also points to the token after
`</think>`, and with equal weights, this token could be repeated when it follows the cue directly."""
_KINDS = ("ordinary", "piece", "cue", "calling", *_MARKERS, *(f"before {token}" for token in (*_MARKERS, _END)))
"""Kinds of tokens. A cue before content is `calling` if tool calls follow, and `cue` otherwise."""
_PREFERENCES = {_END: 24.0, '"': 20.0, "}": 16.0, "]": 12.0, ":": 9.0, "0": 6.0, "a": 3.0}
"""Constant logits of some tokens, which matter only where a grammar forbids the scripted token."""


def _hadamard(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _write_weights(directory: Path, ids: Mapping[str, int], answers: Sequence[_Answer]) -> None:
    size = max(ids.values()) + 1
    kinds = dict(zip(_KINDS, _hadamard(_KIND_SIZE)[1:], strict=False))
    triples = dict.fromkeys(triple for answer in answers for triple in answer.transitions())
    unique = list(dict.fromkeys(current for _, current, _ in triples if current not in _MARKERS))
    codes = dict(zip(unique, np.random.default_rng(0).choice([-1.0, 1.0], (len(unique), _CODE_SIZE)), strict=True))

    embeddings = np.zeros((size, _HIDDEN_SIZE))
    embeddings[:, _ONES] = 1
    embeddings[:, _FILLER] = _CODE_SIZE**0.5
    embeddings[:, _KIND] = kinds["ordinary"]
    for token in _MARKERS:
        embeddings[ids[token], _KIND] = kinds[token]
    for token, code in codes.items():
        embeddings[ids[token], _CURRENT] = code
        embeddings[ids[token], _FILLER] = 0
        embeddings[ids[token], _KIND] = kinds["piece"]

    head = np.zeros((size, _HIDDEN_SIZE))
    after_markers = set()
    for answer in answers:
        embeddings[ids[answer.cue], _KIND] = kinds["calling" if answer.has_calls else "cue"]
    for previous, current, following in triples:
        row = head[ids[following]]
        if current not in _MARKERS and following in (*_MARKERS, _END):
            embeddings[ids[current], _KIND] = kinds[f"before {following}"]
        elif current not in _MARKERS:
            row[_CURRENT] += _BY_CURRENT * codes[current] / _CODE_SIZE
        elif following != _END:
            row[_PREVIOUS] += codes[previous] / _CODE_SIZE
            after_markers.add((current, following))
    for marker, following in after_markers:
        head[ids[following], _KIND] += 0.6 * kinds[marker] / _KIND_SIZE
    for token in (*_MARKERS, _END):
        head[ids[token], _KIND] += _BY_CURRENT * kinds[f"before {token}"] / _KIND_SIZE
    head[ids[_END], _KIND] += kinds["</tool_call>"] / _KIND_SIZE
    for kind in ("calling", "before <think>"):
        head[ids["<tool_call>"], _KIND] += kinds[kind] / _KIND_SIZE
    head[ids["</think>"], _KIND] += kinds["<think>"] / _KIND_SIZE
    head[ids["{"], _KIND] += kinds["cue"] / _KIND_SIZE
    head *= _LOGIT
    for token, logit in _PREFERENCES.items():
        head[ids[token], _ONES] += logit / _KIND_SIZE

    # The norms divide by the root mean square of the embeddings, which is the same for every token.
    scale = (np.square(embeddings[0]).mean()) ** -0.5
    tensors = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(_HIDDEN_SIZE),
        **{f"model.layers.0.{name}": tensor for name, tensor in _layer(scale).items()},
    }
    single = {name: torch.tensor(value, dtype=torch.float32) for name, value in tensors.items()}
    save_file(single, directory / "model.safetensors")
    _write_config(directory, size, ids[_END])


def _layer(scale: float) -> dict[str, np.ndarray]:
    """The weights of a layer that copies the code of the previous token. scale: the weight of its input norm."""
    pairs = np.arange(_NUM_ROPE_PAIRS)
    angles = _ROPE_THETA ** (-2.0 * pairs / _HEAD_DIM)
    size = (_MAX_SCORE * _HEAD_DIM**0.5 / _NUM_ROPE_PAIRS) ** 0.5 / scale
    query, key = np.zeros((2, _HEAD_DIM, _HIDDEN_SIZE))
    query[pairs, _ONES.start] = size * np.cos(angles)
    query[pairs + _HEAD_DIM // 2, _ONES.start] = -size * np.sin(angles)
    key[pairs, _ONES.start] = size
    width = _NUM_HEADS * _HEAD_DIM
    value, output = np.zeros((width, _HIDDEN_SIZE)), np.zeros((_HIDDEN_SIZE, width))
    value[:, _CURRENT] = np.eye(width) / scale
    output[_PREVIOUS] = np.eye(width)
    return {
        "self_attn.q_proj.weight": np.tile(query, (_NUM_HEADS, 1)),
        "self_attn.k_proj.weight": np.tile(key, (_NUM_HEADS, 1)),
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": output,
        "mlp.gate_proj.weight": np.zeros((32, _HIDDEN_SIZE)),
        "mlp.up_proj.weight": np.zeros((32, _HIDDEN_SIZE)),
        "mlp.down_proj.weight": np.zeros((_HIDDEN_SIZE, 32)),
        "input_layernorm.weight": np.ones(_HIDDEN_SIZE),
        "post_attention_layernorm.weight": np.ones(_HIDDEN_SIZE),
    }


def _write_config(directory: Path, vocab_size: int, end: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN_SIZE,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": _NUM_HEADS,
        "num_key_value_heads": _NUM_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": _ROPE_THETA,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False, "eos_token_id": end}))
