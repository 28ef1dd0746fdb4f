"""Measure the speedup by n-gram drafts: `python -m benchmarks.speculation --checkpoint DIR`.

The model computes every step, but its chosen tokens are replaced by those of a given answer. A model with random
weights therefore decodes real texts. Some answers repeat parts of their prompt (a summary, an edited tale, edited
code), the others do not. Each text is decoded with and without drafts, alternately. Prints the rates and their ratio as
one line of JSON for each kind of text.

Goals for the ratio with one stream: at least 1.5 for answers that repeat their prompt, at least 0.95 for the others.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.precisions import ALL_PRECISIONS, model_spec
from models.backends.logits import LogitsTopK
from server.engine.choosing import selection
from server.engine.choosing.selection import SamplingPosition
from server.engine.drafting.drafts import NGRAM_DRAFT_TOKENS, NgramDrafter
from server.engine.loading.load import load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from weights.demo.train.grammar.story import story
from weights.demo.train.training import HOME

REPEATING = ("summary", "edit", "code")
"""Kinds of answers that repeat parts of their prompt."""
KINDS = (*REPEATING, "other tale", "chance")


def texts(kind: str, tokenizer: Tokenizer, vocab_size: int, seed: int) -> tuple[list[int], list[int]]:
    """Prompt and answer of one kind, as token ids below `vocab_size`.

    kind: one of `KINDS`. tokenizer: tokenizer of the demo story model; its ids are taken modulo `vocab_size`.
    """
    chooser = random.Random(seed)
    tales = [story(chooser) for _ in range(4)]
    if kind == "summary":
        # The summary is every third sentence of the tales.
        sentences = [sentence for tale in tales for sentence in tale.split(". ")]
        prompt, answer = " ".join(tales), ". ".join(sentences[seed % 3 :: 3])
    elif kind == "edit":
        prompt = " ".join(tales)
        answer = prompt.replace(" she ", " they ").replace(" he ", " they ").replace(" little ", " very small ")
    elif kind == "code":
        prompt = inspect.getsource(textwrap.TextWrapper._wrap_chunks)
        answer = prompt.replace("cur_line", "words").replace("cur_len", "width")
    elif kind == "other tale":
        prompt, answer = " ".join(tales[:3]), tales[3] + " " + story(chooser)
    else:
        return (
            [chooser.randrange(vocab_size) for _ in range(400)],
            [chooser.randrange(vocab_size) for _ in range(200)],
        )
    prompt_ids, answer_ids = (tokenizer.encode(text, add_special_tokens=False).ids for text in (prompt, answer))
    return [token % vocab_size for token in prompt_ids], [token % vocab_size for token in answer_ids]


class Script:
    """Replaces the chosen tokens of an engine by the tokens of given answers. answers: sequence id → token ids."""

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers, self._choose = answers, selection.choose

    def choose(
        self, logits: torch.Tensor, places: Sequence[SamplingPosition], top_k: LogitsTopK
    ) -> tuple[list[int], list[bool]]:
        tokens, alive = self._choose(logits, places, top_k)
        for index, place in enumerate(places):
            answer = self._answers[place.group.sequence_id]
            tokens[index] = answer[min(place.num_generated, len(answer) - 1)]
        return tokens, alive


def decode_seconds(engine: Engine, name: str, pairs: Sequence[tuple[list[int], list[int]]]) -> float:
    """Decode requests together, with given answers.

    pairs: prompt and answer of each request, as token ids.
    Returns the seconds from the step in which the last request receives its first token to the end.
    """
    rows = [GenerateRow(number, len(answer), number) for number, (_, answer) in enumerate(pairs)]
    script = Script([answer for _, answer in pairs])
    original, selection.choose = selection.choose, script.choose
    try:
        engine.add(Generate(name, GenerationParams(), [prompt for prompt, _ in pairs], rows))
        waiting, started = {row.sequence_id for row in rows}, 0.0
        while engine.has_work:
            output = engine.step()
            if output is not None and output.failed:
                raise SystemExit(f"a request failed: {output.failed[0].message}")
            if output is not None and waiting:
                waiting -= {event.sequence_id for event in output.tokens}
                started = time.perf_counter()
    finally:
        selection.choose = original
    return time.perf_counter() - started


def measure(
    loaded: LoadedCheckpoint, kinds: Sequence[str], streams: Sequence[int], turns: int
) -> Iterator[dict[str, Any]]:
    """Yield the decode rates of each kind of text with each number of streams, with and without drafts.

    Two engines, one with and one without drafts, decode all texts. turns: number of measurements per row.
    """
    options = EngineOptions(prefix_cache=False, kv_cache_bytes=1 << 30)
    tokenizer = Tokenizer.from_file(str(HOME / "story" / "tokenizer.json"))
    name, drafter = loaded.spec.name, NgramDrafter(NGRAM_DRAFT_TOKENS)
    vocab_size = loaded.model.config.vocab_size
    engines = [
        Engine({name: build(loaded, options, options.kv_cache_bytes, engine_drafter)[0]}, loaded.device)
        for engine_drafter in (None, drafter)
    ]
    generation = engines[1].models[name].generation
    assert generation is not None
    for count in streams:
        for kind in kinds:
            rates: list[list[float]] = [[], []]
            drafted, accepted = generation.new_tokens.num_drafted_tokens, generation.new_tokens.num_accepted_tokens
            for turn in range(turns):
                pairs = [texts(kind, tokenizer, vocab_size, 100 * turn + number) for number in range(count)]
                total = sum(len(answer) for _, answer in pairs)
                for engine, own in zip(engines, rates, strict=True):
                    own.append(total / decode_seconds(engine, name, pairs))
            plain, with_drafts = (statistics.median(own) for own in rates)
            yield {
                "streams": count,
                "text": kind,
                "repeats": kind in REPEATING,
                "tokens_per_second": plain,
                "with_drafts": with_drafts,
                "ratio": statistics.median(fast / slow for slow, fast in zip(*rates, strict=True)),
                "drafted": generation.new_tokens.num_drafted_tokens - drafted,
                "accepted": generation.new_tokens.num_accepted_tokens - accepted,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=ALL_PRECISIONS)
    parser.add_argument("--texts", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument("--turns", type=int, default=3, help="texts of each kind")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for precision in given.precisions:
        spec = model_spec("model", str(given.checkpoint), precision)
        loaded = load(spec, torch.device("cpu"), lambda done, total: None)
        for row in measure(loaded, given.texts, given.streams, given.turns):
            print(json.dumps({"precision": precision, **row}), flush=True)


if __name__ == "__main__":
    main()
