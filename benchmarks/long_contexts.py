"""Measure long prompts on a CPU: `python -m benchmarks.long_contexts --checkpoints DIR --llama-library DIR`.

The model is llama-135m, with prompts of up to 32,768 tokens. Measures the time of the prompt, the time of a decode step
after it, and the memory, for Triptych and for the library of llama.cpp with a format of the same size. Each measurement
has its own process, and the two contestants alternate. Prints JSON lines, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import checkpoints, memory
from benchmarks.contestants import LLAMA_LIBRARY, ours
from benchmarks.contestants.contract import Outcome, Subject
from benchmarks.contestants.llama_library import COMPUTED_TOKENS, STEP_TOKENS
from benchmarks.context import deviation
from benchmarks.process import REPOSITORY
from benchmarks.vocabulary import FIRST_WORD
from benchmarks.workloads import Job

SHAPE = "llama-135m-long"
LENGTHS = (2048, 8192, 16384, 32768)
NEW_TOKENS = 33
KV_BYTES = 2 << 30
FORMATS = {"int8": "Q8_0", "int4": "Q4_0"}


def run_ours(subject: Subject, prompt: list[int]) -> Outcome:
    entry = ours.Entry(kv_bytes=KV_BYTES)
    entry.load(subject)
    entry.run(Job("generate", [prompt[:16]], [4]))
    return entry.run(Job("generate", [prompt], [NEW_TOKENS]))


def run_llama(subject: Subject, prompt: list[int]) -> Outcome:
    """Run a short prompt to warm up and then `prompt` with llama.cpp, in steps of its default sizes."""
    from benchmarks import llama_files
    from benchmarks.llama_library import LlamaModel, Row

    folder, file = Path(str(subject.program)), Path(subject.made) / f"library-{FORMATS[subject.precision]}.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        llama_files.write(Path(subject.directory), file, FORMATS[subject.precision], folder)
    vocab_size = checkpoints.SHAPES[subject.shape].vocab_size
    tokens = len(prompt) + NEW_TOKENS + 7
    model = LlamaModel(folder, file, vocab_size, subject.threads, tokens, STEP_TOKENS, COMPUTED_TOKENS)
    model.step([Row(token, place, 0, False) for place, token in enumerate(prompt[:16])])
    model.clear()
    outcome = Outcome(0.0)
    started = latest = time.perf_counter()
    last, token = len(prompt) - 1, 0
    for first in range(0, len(prompt), STEP_TOKENS):
        part = prompt[first : first + STEP_TOKENS]
        model.step([Row(token, first + place, 0, first + place == last) for place, token in enumerate(part)])
        token = int(model.logits(len(part) - 1).argmax()) if first + len(part) > last else 0
    outcome.first_seconds = [time.perf_counter() - started]
    for place in range(len(prompt), len(prompt) + NEW_TOKENS - 1):
        latest = time.perf_counter()
        model.step([Row(token, place, 0, True)])
        token = int(model.logits(0).argmax())
        outcome.gaps.append(time.perf_counter() - latest)
    outcome.seconds = time.perf_counter() - started
    return outcome


def measure_here(name: str, subject: Subject, length: int) -> dict[str, Any]:
    """Measure one contestant in this process.

    name: `ours` for Triptych, any other name for llama.cpp. length: number of prompt tokens.
    Returns the seconds of the prompt, the median milliseconds of a decode step, and the largest resident memory in
    bytes.
    """
    prompt = [random.Random(length).randrange(FIRST_WORD, 20000) for _ in range(length)]
    outcome = (run_ours if name == "ours" else run_llama)(subject, prompt)
    return {
        "contestant": name,
        "precision": subject.precision,
        "tokens": length,
        "prompt_seconds": outcome.first_seconds[0],
        "decode_ms": statistics.median(outcome.gaps) * 1e3,
        "peak_bytes": memory.peak_bytes(),
    }


def table(found: list[dict[str, Any]]) -> str:
    """A Markdown table of the medians over the rounds.

    A line after each precision says how far the times of Triptych's decode steps are from a straight line over the
    context length.
    """
    lines = [
        "| setting | prompt, tokens | prompt, tokens/s | ratio | decode, ms per token | ratio | peak memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for precision in dict.fromkeys(row["precision"] for row in found):
        own: dict[int, float] = {}
        for length in dict.fromkeys(row["tokens"] for row in found):
            medians = {}
            for name in dict.fromkeys(row["contestant"] for row in found):
                rows = [
                    row
                    for row in found
                    if (row["contestant"], row["precision"], row["tokens"]) == (name, precision, length)
                ]
                if rows:
                    medians[name] = {
                        key: statistics.median(row[key] for row in rows)
                        for key in ("prompt_seconds", "decode_ms", "peak_bytes")
                    }
            for name, values in medians.items():
                peer = medians.get(LLAMA_LIBRARY[0])
                is_ours = name == "ours" and peer is not None
                cells = [precision if name == "ours" else f"llama.cpp {FORMATS[precision]}", f"{length:,}"]
                cells.append(f"{length / values['prompt_seconds']:,.0f}")
                cells.append(f"{peer['prompt_seconds'] / values['prompt_seconds']:.2f}" if is_ours and peer else "")
                cells.append(f"{values['decode_ms']:.1f}")
                cells.append(f"{peer['decode_ms'] / values['decode_ms']:.2f}" if is_ours and peer else "")
                cells.append(f"{values['peak_bytes'] / 1e6:,.0f}")
                lines.append(f"| {' | '.join(cells)} |")
            own[length] = medians["ours"]["decode_ms"]
        if len(own) > 2:
            share = deviation(list(own), list(own.values()))
            lines.append(f"\n{precision}: decode steps are within {share:.0%} of a straight line.\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory for the models")
    parser.add_argument("--llama-library", help="folder with the library of llama.cpp; without it only Triptych runs")
    parser.add_argument("--precisions", nargs="+", default=["int8", "int4"], choices=list(FORMATS))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the prompts")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--here", nargs=3, metavar=("NAME", "PRECISION", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    directory = checkpoints.make(SHAPE, given.checkpoints)
    made = str(given.checkpoints / "made" / SHAPE)
    if given.here:
        name, precision, length = given.here
        subject = Subject(SHAPE, precision, str(directory), made, given.threads, given.llama_library)
        print(json.dumps(measure_here(name, subject, int(length))))
        return
    names = ["ours", *LLAMA_LIBRARY[:1]] if given.llama_library else ["ours"]
    found = []
    for _ in range(given.rounds):
        for precision in given.precisions:
            for length in given.lengths:
                for name in names:
                    command = [sys.executable, "-m", "benchmarks.long_contexts", *sys.argv[1:]]
                    command += ["--here", name, precision, str(length)]
                    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
                    found.append(json.loads(done.stdout.splitlines()[-1]))
                    print(json.dumps(found[-1]), flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
