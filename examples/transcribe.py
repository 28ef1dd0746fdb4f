"""POST /v1/audio/transcriptions: a recording to text with times. Needs a Whisper model.

Usage: python examples/transcribe.py recording.wav
"""

import os
import sys
from pathlib import Path

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "whisper")
recording = Path(sys.argv[1])

form = {"model": model, "response_format": "verbose_json"}
files = {"file": (recording.name, recording.read_bytes())}
answer = httpx.post(f"{url}/v1/audio/transcriptions", data=form, files=files, timeout=600).raise_for_status().json()
print(f"{answer['duration']:.1f} seconds of speech in language {answer['language']}")
for segment in answer["segments"]:
    print(f"{segment['start']:7.2f} to {segment['end']:7.2f}: {segment['text']}")
