"""What is asked of every contestant: the same ids, the same lengths, from one seed.

A job is plain data, so that it can be sent to a process. Words of the vocabulary only: nobody meets a special token.
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

    inputs: token ids of each request: a decoder's prompt, a text to translate or to embed.
    new_tokens: how many tokens each is answered with, exactly; empty for `embed`.
    in_flight: requests (or, for `embed` in one process, batches) that may be under way at once.
    batch: texts of one call of `embed`.
    counts: what the rate is of: new tokens, tokens of the inputs, or texts.
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
        """What a contestant's seconds are divided into."""
        if self.counts == "texts":
            return len(self.inputs)
        return sum(self.new_tokens) if self.counts == "new_tokens" else sum(map(len, self.inputs))


@dataclass(frozen=True)
class Scale:
    """How large the workloads are: the real ones, those of the quick run, or just enough to see the machinery work."""

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


FULL = Scale()
QUICK = Scale(new=32, mixed=20, longest=64, texts=64)
TINY = Scale(
    prompt=8, new=6, mixed=6, longest=20, prefill=40, sentences=4, sentence_new=5, texts=10, longest_text=40, bert=4
)


def job(name: str, shape: str, scale: Scale = FULL, seed: int = 0) -> Job:
    """The workload of that name (`docs/benchmarks.md` says what each is) for a checkpoint of that shape.

    seed: another one gives other ids of the same lengths, so that nobody answers out of a prefix cache.
    """
    rng = random.Random(7)
    other = random.Random(seed)
    vocab_size = SHAPES[shape].vocab_size

    def ids(length: int) -> list[int]:
        return [other.randrange(vocabulary.FIRST_WORD, vocab_size - 1) for _ in range(length)]

    if name == "A":
        return Job("generate", [ids(scale.prompt)], [scale.new])
    if name == "B":
        return _streams(16, ids, scale)
    if name.startswith("streams-"):
        return _streams(int(name.removeprefix("streams-")), ids, scale)
    if name == "B-mixed":
        lengths = [(rng.randint(16, scale.longest), rng.randint(16, scale.longest)) for _ in range(scale.mixed)]
        return Job("generate", [ids(prompt) for prompt, _ in lengths], [new for _, new in lengths], in_flight=16)
    if name == "C":
        return Job("generate", [ids(scale.prefill)], [1], counts="input_tokens")
    if name in ("D", "D-beam"):
        inputs = [[*ids(rng.randint(8, 60) - 1), vocabulary.EOS] for _ in range(scale.sentences)]
        new = [scale.sentence_new] * scale.sentences
        return Job("generate", inputs, new, in_flight=scale.sentences, beams=4 if name == "D-beam" else 1)
    if name in ("E", "E-clients"):
        inputs = [_text(ids(rng.randint(8, scale.longest_text) - 2)) for _ in range(scale.texts)]
        return Job("embed", inputs, in_flight=16, batch=8 if name == "E" else 1, counts="texts")
    if name == "F":
        inputs = [_text(ids(min(128, scale.longest_text) - 2)) for _ in range(scale.bert)]
        return Job("embed", inputs, in_flight=4, batch=16, counts="texts")
    if name == "start":
        return Job("start", [ids(scale.prompt)], [8])
    raise ValueError(f"no workload is called {name!r}")


def _streams(count: int, ids: Any, scale: Scale) -> Job:
    return Job("generate", [ids(scale.prompt) for _ in range(count)], [scale.new] * count, in_flight=count)


def _text(ids: list[int]) -> list[int]:
    """As an encoder reads it."""
    return [vocabulary.BOS, *ids, vocabulary.EOS]


def shortened(work: Job) -> Job:
    """The same shapes with little to do: a few tokens for each request, and not more requests than are in flight."""
    count = min(len(work.inputs), 2 * work.batch if work.kind == "embed" else work.in_flight)
    new = [min(new, 4) for new in work.new_tokens[:count]]
    return replace(work, inputs=work.inputs[:count], new_tokens=new)
