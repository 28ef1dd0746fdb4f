"""POST /v1/audio/translations: speech in any language to English text. Needs a multilingual Whisper model.

Usage: python examples/translate_speech.py recording.wav
"""

import os
import sys
from pathlib import Path

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "whisper")
recording = Path(sys.argv[1])

files = {"file": (recording.name, recording.read_bytes())}
answer = httpx.post(f"{url}/v1/audio/translations", data={"model": model}, files=files, timeout=600)
print("English:", answer.raise_for_status().json()["text"])
