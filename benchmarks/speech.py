"""Compare the speed of Whisper models with CTranslate2, for one, four and sixteen windows of audio at a time.

    python -m benchmarks.speech make DIRECTORY --size small            a checkpoint with random weights
    python -m benchmarks.speech ours DIRECTORY float32 bfloat16 int8   this engine, in this process
    python -m benchmarks.speech ctranslate2 DIRECTORY float32 int8     CTranslate2, which faster-whisper uses

The models have published sizes and random weights; `benchmarks.recordings` measures real weights. Each result is the
median time to encode the windows and to generate 96 tokens for each window greedily. The end token is suppressed in
both contestants. The batched mode for long recordings decodes sixteen windows at once.

`encoder` is the time with one new token. For this engine, its floor is printed too: the operations of the encoder,
divided by the rate of a large product that is measured in the same run. The real-time factor is the time of a window
divided by its length of 30 s. `memory` is the largest resident set size of the process so far, including weights and
interpreter. Run the two contestants one after the other on an idle machine, with the same `--threads`. The converter of
CTranslate2 needs transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_bytes

SOURCE_POSITIONS, WINDOW_SECONDS = 1500, 30
START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS, END = 50258, 50259, 50359, 50363, 50257
PREFIX = [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS]
NEW_TOKENS = 96
WINDOWS = (1, 4, 16)


@dataclass(frozen=True)
class Size:
    """Sizes of a Whisper model: number of layers, widths, number of mel bands, and size of the vocabulary."""

    encoder_layers: int
    decoder_layers: int
    hidden: int
    num_mels: int = 80
    vocabulary: int = 51865

    @property
    def inner(self) -> int:
        return 4 * self.hidden


SIZES = {
    "small": Size(12, 12, 768),
    "medium": Size(24, 24, 1024),
    "large-v3-turbo": Size(32, 4, 1280, 128, 51866),
}


def size_of(directory: Path) -> Size:
    """Read the sizes of a model from the `config.json` of its checkpoint."""
    config = json.loads((directory / "config.json").read_text())
    names = ("encoder_layers", "decoder_layers", "d_model", "num_mel_bins", "vocab_size")
    return Size(*(config[name] for name in names))


Run = Callable[[int, int], int]
"""Function that transcribes windows, given their number and the number of new tokens of each.

It returns the number of new tokens of all windows together."""


def make(directory: Path, size: Size) -> None:
    """Write a Whisper checkpoint with random weights."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        encoder_layers=size.encoder_layers,
        decoder_layers=size.decoder_layers,
        encoder_attention_heads=size.hidden // 64,
        decoder_attention_heads=size.hidden // 64,
        encoder_ffn_dim=size.inner,
        decoder_ffn_dim=size.inner,
        d_model=size.hidden,
        num_mel_bins=size.num_mels,
        vocab_size=size.vocabulary,
    )
    WhisperForConditionalGeneration(config).save_pretrained(directory)
    (directory / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": END, "max_length": 448})
    )


def frames(count: int, num_mels: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Artificial log-mel frames for `count` windows: [windows, frames, num_mels], float32."""
    generator = np.random.default_rng(1)
    return generator.normal(0, 0.5, (count, 2 * SOURCE_POSITIONS, num_mels)).astype(np.float32)


def _vocabulary(count: int) -> list[str]:
    """The text of each of `count` tokens. CTranslate2 finds Whisper's control tokens by their texts."""
    named = {END: "endoftext", START: "startoftranscript", ENGLISH: "en", TRANSCRIBE: "transcribe"}
    named |= {NO_TIMESTAMPS - 1: "nospeech", NO_TIMESTAMPS: "notimestamps", NO_TIMESTAMPS + 1: "0.00"}
    return [f"<|{named[token]}|>" if token in named else f"token {token}" for token in range(count)]


def encoder_floor(size: Size, precision: str, threads: int) -> float:
    """Least time in seconds to encode a window: its multiplications and additions at the rate of a large product.

    Includes the keys and values of cross-attention. Models in int8 compute attention in bfloat16, and convolutions in
    float32.
    """
    import torch

    from benchmarks.machine import peak

    torch.set_num_threads(threads)
    positions, quantized = SOURCE_POSITIONS, precision in ("int8", "int4")
    hidden = size.hidden
    own = size.encoder_layers * (4 * hidden**2 + 2 * hidden * size.inner)
    linear = 2 * positions * (own + size.decoder_layers * 2 * hidden**2)
    attention = size.encoder_layers * 4 * positions**2 * hidden
    convolution = 2 * 3 * hidden * (2 * positions * size.num_mels + positions * hidden)
    return (
        linear / peak(precision)
        + attention / peak("bfloat16" if quantized else precision)
        + convolution / peak("float32" if quantized else precision)
    )


def ours(directory: Path, precision: str, threads: int) -> Run:
    """Load the checkpoint into an engine of Triptych in this process, and return the function that transcribes."""
    import itertools

    from benchmarks.precisions import model_spec
    from server.engine.process.service import start
    from server.ipc.wire.descriptions import EngineOptions
    from server.ipc.wire.generate_messages import Generate, GenerateRow
    from server.ipc.wire.params import GenerationParams
    from server.ipc.wire.worker_messages import Configure

    spec, num_mels = model_spec("m", str(directory), precision), size_of(directory).num_mels
    engine, _ = start(
        Configure(1, "cpu", [spec], EngineOptions(threads=threads, kv_cache_bytes=4 << 30)), lambda _: None
    )
    ids = itertools.count(1)
    params = GenerationParams(suppress_token_ids=[END], end_token_ids=[END])

    def run(count: int, new_tokens: int) -> int:
        sources = [window.astype("<f4").tobytes() for window in frames(count, num_mels)]
        rows = [GenerateRow(next(ids), new_tokens, place, PREFIX) for place in range(count)]
        engine.add(Generate("m", params, [], rows, frames=sources))
        made = 0
        while engine.has_work:
            output = engine.step()
            if output is not None:
                if output.failed:
                    raise RuntimeError(output.failed[0].message)
                made += sum(len(end.hypotheses[0].token_ids) for end in output.finished)
        return made

    return run


def peer(directory: Path, precision: str, threads: int) -> Run:
    """Load the checkpoint into CTranslate2, and return the function that transcribes. The first call converts it."""
    import ctranslate2

    made, size = directory / "ctranslate2", size_of(directory)
    if not (made / "model.bin").exists():
        ctranslate2.converters.TransformersConverter(str(directory)).convert(str(made), force=True)
        (made / "vocabulary.json").write_text(
            json.dumps(_vocabulary(size.vocabulary))
        )  # the checkpoint has no tokenizer
    model = ctranslate2.models.Whisper(str(made), device="cpu", compute_type=precision, intra_threads=threads)

    def run(count: int, new_tokens: int) -> int:
        features = ctranslate2.StorageView.from_array(
            np.ascontiguousarray(frames(count, size.num_mels).transpose(0, 2, 1))
        )
        found = model.generate(
            features,
            [PREFIX] * count,
            beam_size=1,
            max_length=max(len(PREFIX) + new_tokens, 2 * new_tokens),  # it generates half of this at most
            suppress_tokens=[END],
            suppress_blank=False,
        )
        return sum(len(result.sequences_ids[0]) for result in found)

    return run


def measure(run: Run, turns: int, windows: Sequence[int]) -> list[dict[str, float]]:
    """Median times in seconds for each number of windows: of a whole transcription, and of one with one new token.

    turns: number of timed runs, after one run to warm up.
    """
    results = []
    for count in windows:
        made, repeats = run(count, NEW_TOKENS), turns if count < max(WINDOWS) else max(turns // 3, 1)
        if made != count * NEW_TOKENS:
            raise RuntimeError(f"{made} tokens instead of {count * NEW_TOKENS}: the times would not compare")
        seconds = statistics.median(_seconds(run, count, NEW_TOKENS) for _ in range(repeats))
        encoder = statistics.median(_seconds(run, count, 1) for _ in range(repeats))
        memory = peak_bytes() / 2**20
        found = {"windows": count, "seconds": seconds, "encoder_seconds": encoder, "new_tokens": made, "mib": memory}
        results.append(found)
        each = f"{seconds / count:6.2f} s each, of which the encoder {encoder / count:6.2f} s"
        factor = seconds / count / WINDOW_SECONDS
        print(
            f"  {count:2d} windows: {seconds:7.2f} s, {each}; real-time factor {factor:.3f}; memory {memory:,.0f} MiB",
            flush=True,
        )
    return results


def _seconds(run: Run, count: int, new_tokens: int) -> float:
    started = time.perf_counter()
    run(count, new_tokens)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=["make", "ours", "ctranslate2"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("precisions", nargs="*")
    parser.add_argument("--size", choices=list(SIZES), default="small", help="of the checkpoint to make")
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), help="numbers of windows at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5, help="runs of one and of four windows; a third for sixteen")
    parser.add_argument("--json", type=Path, help="file to write the results to as JSON")
    arguments = parser.parse_args()
    if arguments.contestant == "make":
        make(arguments.directory, SIZES[arguments.size])
        return
    results = {}
    for precision in arguments.precisions:
        print(f"{arguments.contestant}, {precision}, {arguments.threads} threads", flush=True)
        build = ours if arguments.contestant == "ours" else peer
        found = measure(build(arguments.directory, precision, arguments.threads), arguments.turns, arguments.windows)
        results[precision] = found
        if arguments.contestant == "ours":
            floor = encoder_floor(size_of(arguments.directory), precision, arguments.threads)
            best = min(run["encoder_seconds"] / run["windows"] for run in found)
            print(f"  floor of the encoder: {floor:.2f} s each, {floor / best:.0%} of it reached", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
