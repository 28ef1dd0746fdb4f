"""Create the workloads of the benchmark. Every contestant gets the same token ids and lengths, drawn from one seed.

A job is plain data that can be sent to a process. Its token ids are words of the vocabulary, not special tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES


@dataclass(frozen=True)
class Job:
    """One workload for one model.

    inputs: token ids of each request: the prompt, or the text to translate or embed.
    new_tokens: exact number of new tokens of each request; empty for `embed`.
    in_flight: number of concurrent requests. For `embed`, a request has a batch of texts.
    beams: number of beams.
    batch: number of texts in one `embed` request.
    counts: unit of the rate: new tokens, input tokens, or texts.
    """

    kind: Literal["generate", "embed", "start"]
    inputs: list[list[int]]
    new_tokens: list[int] = field(default_factory=list)
    in_flight: int = 1
    beams: int = 1
    batch: int = 1
    counts: Literal["new_tokens", "input_tokens", "texts"] = "new_tokens"

    @property
    def units(self) -> int:
        """Number of tokens or texts in the job, by `counts`. The rate is this number divided by a run's seconds."""
        if self.counts == "texts":
            return len(self.inputs)
        return sum(self.new_tokens) if self.counts == "new_tokens" else sum(map(len, self.inputs))


@dataclass(frozen=True)
class Scale:
    """Size of the workloads.

    prompt, new: prompt tokens and new tokens of a stream.
    mixed, longest: number of requests in `B-mixed`, and their longest prompt and answer in tokens.
    prefill: prompt tokens of `C`.
    sentences, sentence_new: number of sentences in `D`, and new tokens of each.
    texts, longest_text: number of texts in `E`, and the longest one in tokens.
    bert: number of texts in `F`.
    single, short_text, short_new: number of requests in `L`, tokens of each, and new tokens of a translation.
    """

    prompt: int = 64
    new: int = 128
    mixed: int = 48
    longest: int = 128
    prefill: int = 900
    sentences: int = 32
    sentence_new: int = 32
    texts: int = 256
    longest_text: int = 256
    bert: int = 64
    single: int = 200
    short_text: int = 16
    short_new: int = 12


FULL = Scale()
QUICK = Scale(new=32, mixed=20, longest=64, texts=64, single=100)
TINY = Scale(
    prompt=8,
    new=6,
    mixed=6,
    longest=20,
    prefill=40,
    sentences=4,
    sentence_new=5,
    texts=10,
    longest_text=40,
    bert=4,
    single=6,
)


def job(name: str, shape: str, scale: Scale = FULL, seed: int = 0) -> Job:
    """Create the job of a workload.

    name: name of the workload; `docs/benchmarks.md` describes each.
    shape: name of the checkpoint's shape.
    seed: seed of the token ids. Each round and workload has other ids, so that the prefix cache never has them.
    """
    length_rng, id_rng = random.Random(7), random.Random(f"{name} {seed}")
    vocab_size = SHAPES[shape].vocab_size - SHAPES[shape].added_tokens

    def ids(length: int) -> list[int]:
        return [id_rng.randrange(vocabulary.FIRST_WORD, vocab_size - 1) for _ in range(length)]

    if name == "A":
        return Job("generate", [ids(scale.prompt)], [scale.new])
    if name == "B":
        return _streams(16, ids, scale)
    if name.startswith("streams-"):
        return _streams(int(name.removeprefix("streams-")), ids, scale)
    if name == "B-mixed":
        longest = scale.longest
        lengths = [(length_rng.randint(16, longest), length_rng.randint(16, longest)) for _ in range(scale.mixed)]
        return Job("generate", [ids(prompt) for prompt, _ in lengths], [new for _, new in lengths], in_flight=16)
    if name == "C":
        return Job("generate", [ids(scale.prefill)], [1], counts="input_tokens")
    if name.startswith("C-"):
        return Job("generate", [ids(int(name.removeprefix("C-")))], [1], counts="input_tokens")
    if name in ("D", "D-beam"):
        inputs = [[*ids(length_rng.randint(8, 60) - 1), vocabulary.EOS] for _ in range(scale.sentences)]
        new = [scale.sentence_new] * scale.sentences
        return Job("generate", inputs, new, in_flight=scale.sentences, beams=4 if name == "D-beam" else 1)
    if name in ("E", "E-clients"):
        inputs = [_text(ids(length_rng.randint(8, scale.longest_text) - 2)) for _ in range(scale.texts)]
        return Job("embed", inputs, in_flight=16, batch=8 if name == "E" else 1, counts="texts")
    if name == "F":
        inputs = [_text(ids(min(128, scale.longest_text) - 2)) for _ in range(scale.bert)]
        return Job("embed", inputs, in_flight=4, batch=16, counts="texts")
    if name == "L" and SHAPES[shape].kind == "encoder":
        inputs = [_text(ids(scale.short_text - 2)) for _ in range(scale.single)]
        return Job("embed", inputs, counts="texts")
    if name == "L":
        inputs = [[*ids(scale.short_new - 1), vocabulary.EOS] for _ in range(scale.single)]
        return Job("generate", inputs, [scale.short_new] * scale.single)
    if name == "start":
        return Job("start", [ids(scale.prompt)], [8])
    raise ValueError(f"there is no workload {name!r}")


def _streams(count: int, ids: Any, scale: Scale) -> Job:
    return Job("generate", [ids(scale.prompt) for _ in range(count)], [scale.new] * count, in_flight=count)


def _text(ids: list[int]) -> list[int]:
    """Token ids of a text as input of an encoder: with a special token at each end."""
    return [vocabulary.BOS, *ids, vocabulary.EOS]


def shortened(work: Job) -> Job:
    """A short form of a job: at most 4 new tokens per request, and only as many requests as run at the same time."""
    count = min(len(work.inputs), 2 * work.batch if work.kind == "embed" else work.in_flight)
    new = [min(new, 4) for new in work.new_tokens[:count]]
    return replace(work, inputs=work.inputs[:count], new_tokens=new)
