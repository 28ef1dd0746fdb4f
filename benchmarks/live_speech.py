"""Send a WAV file at the speed of speech, and print the delay of each word.

The delay is the time from the word's end in the audio to the arrival of its text.

    python -m benchmarks.live_speech FILE                       POST /v1/audio/transcriptions/live
    python -m benchmarks.live_speech FILE --route realtime      WS /v1/realtime

Before that, the server transcribes the whole file with word timestamps (`timestamp_granularities`). They say where each
word ends in the audio. A word that the live text does not have has no delay.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import difflib
import io
import json
import statistics
import time
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
from websockets.asyncio.client import connect

from server.audio.resample import resample
from server.audio.wav import read_wav

RATE = 24_000
PIECE_SECONDS = 0.1
QUIET_SECONDS = 2
MAX_FILE_SECONDS = 3600
"""Longest file in seconds, which is the longest session of the server."""

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """A server, and the parameters with which its routes are called.

    key: API key, empty for none. language: code of the language, empty to let the model detect it.
    options: further parameters of the live route.
    """

    url: str
    model: str
    key: str
    language: str
    options: dict[str, str]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def read(path: Path) -> bytes:
    """Read a WAV file as mono 16-bit PCM at `RATE`, with two seconds of silence added at its end."""
    samples, rate = read_wav(path.read_bytes(), MAX_FILE_SECONDS)
    samples = np.append(resample(samples, rate, RATE), np.zeros(QUIET_SECONDS * RATE, dtype=np.float32))
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def word_times(target: Target, pcm: bytes) -> list[tuple[str, float]]:
    """Transcribe the whole audio at once. Returns each word with the time at which it ends in the audio, in seconds."""
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes(pcm)
    form = {"model": target.model, "response_format": "verbose_json", "timestamp_granularities[]": "word"}
    if target.language:
        form["language"] = target.language
    answer = httpx.post(
        target.url + "/v1/audio/transcriptions",
        data=form,
        files={"file": ("a.wav", file.getvalue())},
        headers=target.headers,
        timeout=None,
    )
    if answer.status_code != 200:
        raise SystemExit(answer.text)
    return [(word["word"], word["end"]) for word in answer.json()["words"]]


async def _send_slowly(send: Send, pcm: bytes, began: float) -> None:
    size = round(2 * RATE * PIECE_SECONDS)
    for index, at in enumerate(range(0, len(pcm), size)):
        # A piece is sent when its last sample has been spoken.
        await asyncio.sleep(max(0.0, began + (index + 1) * PIECE_SECONDS - time.monotonic()))
        await send(pcm[at : at + size])


async def over_http(target: Target, pcm: bytes) -> AsyncIterator[tuple[float, str]]:
    """Send the audio at the speed of speech, as chunks of an HTTP body.

    Yields each part of the stable text with the time of its arrival, in seconds after the start.
    """
    query = {"model": target.model, "language": target.language, "format": "pcm", "rate": str(RATE)} | target.options
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    lines = [f"POST /v1/audio/transcriptions/live?{urlencode(query)} HTTP/1.1", f"Host: {address.netloc}"]
    lines += ["Transfer-Encoding: chunked", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in target.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())

    async def send(piece: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()

    began = time.monotonic()
    sending = asyncio.create_task(_send_slowly(send, pcm, began))
    sending.add_done_callback(lambda _: writer.write(b"0\r\n\r\n"))
    status = (await reader.readline()).split()[1]
    async for line in reader:
        if status != b"200" and line.startswith(b"{"):
            raise SystemExit(line.decode())
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(event["error"]["message"])
        if event["type"] == "transcript.text.delta":
            yield time.monotonic() - began, event["delta"]
    await sending
    writer.close()


async def over_websocket(target: Target, pcm: bytes) -> AsyncIterator[tuple[float, str]]:
    """Send the audio at the speed of speech over a WebSocket, with the events of OpenAI's Realtime API.

    Yields each part of the stable text with the time of its arrival, in seconds after the start.
    """
    address = f"{target.url.replace('http', 'ws', 1)}/v1/realtime?model={target.model}"
    async with connect(address, additional_headers=target.headers, proxy=None) as connection:
        if target.language:
            given = {"transcription": {"model": target.model, "language": target.language}}
            session = {"type": "transcription", "audio": {"input": given}}
            await connection.send(json.dumps({"type": "session.update", "session": session}))

        async def send(piece: bytes) -> None:
            audio = base64.b64encode(piece).decode()
            await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

        began = time.monotonic()
        sending, open_turns = asyncio.create_task(_send_slowly(send, pcm, began)), 0
        while not sending.done() or open_turns:
            try:
                event = json.loads(await asyncio.wait_for(connection.recv(), 1.0))
            except TimeoutError:
                continue
            kind = event["type"].rpartition(".")[2]
            open_turns += (kind == "speech_stopped") - (kind in ("completed", "failed"))
            if kind == "delta":
                yield time.monotonic() - began, event["delta"]
            elif kind in ("failed", "error"):
                raise SystemExit(event["error"]["message"])
        await sending


def delays(spoken: Sequence[tuple[str, float]], heard: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """For each word that both texts have in the same order: the word, and its delay in seconds.

    spoken: words with the times at which they end in the audio. heard: words with the times of their arrival.
    """

    def keys(words: Sequence[tuple[str, float]]) -> list[str]:
        return [word.strip(".,;:!?\"'").lower() for word, _ in words]

    matcher = difflib.SequenceMatcher(None, keys(spoken), keys(heard), autojunk=False)
    found = []
    for first, second, size in matcher.get_matching_blocks():
        for index in range(size):
            word, end = spoken[first + index]
            found.append((word, heard[second + index][1] - end))
    return found


async def run(target: Target, route: str, path: Path) -> None:
    """Send one file, and print each word with its delay, then the median, the 90th percentile and the longest delay."""
    pcm = read(path)
    spoken = word_times(target, pcm)
    heard: list[tuple[str, float]] = []
    connection = over_http if route == "live" else over_websocket
    async for at, text in connection(target, pcm):
        print(f"{at:7.2f} s  {text.strip()}", flush=True)
        heard += [(word, at) for word in text.split()]
    found = delays(spoken, heard)
    if not found:
        raise SystemExit("the live text has no word of the text of the file")
    print(*(f"{delay:7.2f} s  {word}" for word, delay in found), sep="\n")
    values = sorted(delay for _, delay in found)
    high = values[min(len(values) - 1, round(0.9 * len(values)))]
    print(
        f"{len(found)} of {len(spoken)} words: median {statistics.median(values):.2f} s, 90% within {high:.2f} s, "
        f"longest {values[-1]:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--route", choices=["live", "realtime"], default="live")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="speech")
    parser.add_argument("--language", default="")
    parser.add_argument("--key", default="")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="parameter of the live route"
    )
    given = parser.parse_args()
    options = dict(option.partition("=")[::2] for option in given.option)
    target = Target(given.url, given.model, given.key, given.language, options)
    asyncio.run(run(target, given.route, given.file))


if __name__ == "__main__":
    main()
