"""Decodes compressed recordings with FFmpeg (package `av`), in a process with limited processor time and memory."""

from __future__ import annotations

import json
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from server.audio.containers import SUPPORTED, Container
from server.audio.frames import SAMPLE_RATE, Samples
from server.audio.wav import AudioError, check_amplitude
from server.errors import NotReady
from server.system.line_process import LineProcess

CPU_SECONDS = 30.0
"""Limit of the processor time for one file. Half an hour of MP3 takes about 3 s."""
WORKING_BYTES = 256 << 20
"""Limit of the memory that the process may use for one file, besides the file and its samples."""
WALL_SECONDS = 120.0
"""Limit of the elapsed time for one file. It applies on a machine that is too busy to run the process."""
CODECS = (
    "aac",
    "alac",
    "flac",
    "mp1float",
    "mp2float",
    "mp3float",
    "opus",
    "vorbis",
    "libopus",
    "libvorbis",
    "pcm_alaw",
    "pcm_mulaw",
    "pcm_u8",
    "pcm_s16le",
    "pcm_s16be",
    "pcm_s24le",
    "pcm_s32le",
    "pcm_f32le",
    "pcm_f64le",
)
"""Names of FFmpeg's decoders that may run. Files with other codecs are refused."""
_PROCESS_FILE = Path(__file__).with_name("decode_process.py")


class Decoder:
    """Decodes files, one at a time. Safe to use from several threads.

    The process starts with the first file, and is replaced after it crashed or exceeded a limit.

    cpu_seconds, working_bytes: limits for one file.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS, working_bytes: int = WORKING_BYTES) -> None:
        self._lock = threading.Lock()
        self._limits = f"{cpu_seconds:g} s of processor time or {working_bytes >> 20} MiB of memory"
        self._process = LineProcess(_PROCESS_FILE, [str(cpu_seconds), str(working_bytes)], gives_way=True)

    def decode(self, data: bytes, container: Container, max_seconds: float) -> Samples:
        """Decode a file to mono samples at 16 kHz.

        container: format of the file. max_seconds: longest recording that is accepted.
        Raises AudioError for a file that is not supported, damaged, empty or too long, or if the package `av` is
        missing. Raises NotReady if the process does not answer within `WALL_SECONDS`.
        """
        if container.demuxer is None:
            raise AudioError(f"the file is {container.name}; supported are {SUPPORTED}")
        if find_spec("av") is None:
            raise AudioError(
                f"the file is {container.name}; without the package av (pip install 'triptych[audio]') only WAV files "
                "with PCM or float are supported"
            )
        request = {
            "demuxer": container.demuxer,
            "bytes": len(data),
            "rate": SAMPLE_RATE,
            "max_seconds": max_seconds,
            "codecs": CODECS,
        }
        with self._lock:
            try:
                line, content = self._process.exchange_bytes(
                    json.dumps(request).encode() + b"\n" + data,
                    WALL_SECONDS,
                    lambda reply: int(json.loads(reply).get("bytes", 0)),
                )
            except TimeoutError as error:
                raise NotReady(f"the process that decodes recordings {error}; try again", retry_after=1) from None
        if not line:
            raise AudioError(f"the {container.name} file is damaged, or takes more than {self._limits} to decode")
        refused = json.loads(line).get("refused")
        if refused is not None:
            raise AudioError(f"the {container.name} file {refused}")
        samples = np.frombuffer(content, dtype=np.float32)
        check_amplitude(samples, container.name)
        return samples

    def close(self) -> None:
        """Stop the process if it is running."""
        self._process.kill()
        with self._lock:
            self._process.stop()
