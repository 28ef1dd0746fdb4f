"""Send a WAV file to `WS /v1/realtime` at the speed of speech, and print the delay of each word of a turn."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from pathlib import Path

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from server.audio.resample import resample
from server.audio.wav import read_wav

RATE = 24_000
PIECE_SECONDS = 0.1
QUIET_SECONDS = 2
MAX_FILE_SECONDS = 3600
"""The longest session."""


async def _send(connection: ClientConnection, pcm: bytes, began: float) -> None:
    size = round(2 * RATE * PIECE_SECONDS)
    for index, at in enumerate(range(0, len(pcm), size)):
        await asyncio.sleep(max(0.0, began + index * PIECE_SECONDS - time.monotonic()))
        audio = base64.b64encode(pcm[at : at + size]).decode()
        await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


async def run(url: str, model: str, path: Path, key: str) -> None:
    """Send one file, and print each word with its delay until no event has come for a while."""
    samples, rate = read_wav(path.read_bytes(), MAX_FILE_SECONDS)
    samples = np.append(resample(samples, rate, RATE), np.zeros(QUIET_SECONDS * RATE, dtype=np.float32))
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model={model}"
    async with connect(address, additional_headers=headers, proxy=None) as connection:
        began = time.monotonic()
        sending = asyncio.create_task(_send(connection, pcm, began))
        ends: dict[str, float] = {}
        open_turns = 0
        while not sending.done() or open_turns:
            try:
                event = json.loads(await asyncio.wait_for(connection.recv(), 1.0))
            except TimeoutError:
                continue
            kind = event["type"].rpartition(".")[2]
            if kind == "speech_stopped":
                ends[event["item_id"]] = began + event["audio_end_ms"] / 1000
                open_turns += 1
            elif kind == "delta":
                delay = time.monotonic() - ends[event["item_id"]]
                for word in event["delta"].split():
                    print(f"{delay:7.2f} s  {word}")
            elif kind in ("completed", "failed"):
                open_turns -= 1
                print(f"{time.monotonic() - ends[event['item_id']]:7.2f} s  [{kind}]")
            elif kind == "error":
                raise SystemExit(event["error"]["message"])
        await sending


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="speech")
    parser.add_argument("--key", default="")
    given = parser.parse_args()
    asyncio.run(run(given.url, given.model, given.file, given.key))


if __name__ == "__main__":
    main()
