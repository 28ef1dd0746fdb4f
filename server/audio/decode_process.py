"""The process that decodes compressed recordings, separate from the server because decoders may crash or take memory.

Usage: `python -P decode_process.py CPU_SECONDS WORKING_BYTES`. Each request is a line of JSON on stdin, followed by the
bytes of the file:

- `demuxer`: name of FFmpeg's demuxer. `bytes`: size of the file. `rate`: samples per second of the result.
- `max_seconds`: longest recording. `codecs`: names of the decoders that may run.

Each reply is a line of JSON on stdout: `{"bytes": n}`, followed by n bytes of mono samples (float32, native order),
or `{"refused": reason}`. A file that takes more than the processor time or the memory ends the process or is refused.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import av
import numpy as np
from numpy.typing import NDArray

_SAMPLE_BYTES = 4


class Refused(ValueError):
    """A file cannot be decoded. The message completes the sentence "the FORMAT file ...", such as "is damaged"."""


class Mono:
    """Mixes decoded frames to mono and changes their rate.

    rate: samples per second of the result.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._source: tuple[Any, ...] | None = None
        self._to_float: Any = None
        self._to_rate: Any = None

    def push(self, frame: Any) -> Iterator[NDArray[np.float32]]:
        """The samples, float32, that are complete after a decoded frame. The last ones may stay in the resampler."""
        source = frame.format.name, frame.layout.name, frame.sample_rate
        if source != self._source:
            # If a file was joined from several files, its parts may have different formats.
            yield from self.finish()
            self._source = source
            self._to_float = av.AudioResampler(format="fltp")
            if frame.sample_rate != self._rate:
                self._to_rate = av.AudioResampler(format="flt", layout="mono", rate=self._rate)
        frame.pts = None
        for planar in self._to_float.resample(frame):
            mono = planar.to_ndarray().mean(axis=0, dtype=np.float64).astype(np.float32)
            if self._to_rate is None:
                yield mono
            else:
                single = av.AudioFrame.from_ndarray(mono[None], format="flt", layout="mono")
                single.sample_rate = frame.sample_rate
                for changed in self._to_rate.resample(single):
                    yield changed.to_ndarray()[0]

    def finish(self) -> Iterator[NDArray[np.float32]]:
        """The last samples, which are still in the resampler."""
        if self._to_rate is not None:
            for rest in self._to_rate.resample(None):
                yield rest.to_ndarray()[0]
        self._source = self._to_rate = None


def decode(data: bytes, request: dict[str, Any]) -> bytearray:
    """Decode a file to mono samples, as bytes of float32.

    request: the fields of the JSON line that came before the file.
    Raises Refused if the file has no supported audio or is too long, and the errors of the decoder.
    """
    rate, max_seconds, codecs = request["rate"], request["max_seconds"], request["codecs"]
    options = {"codec_whitelist": ",".join(codecs)}
    samples = bytearray()
    with av.open(io.BytesIO(data), format=request["demuxer"], options=options, metadata_errors="replace") as file:
        stream = next(iter(file.streams.audio), None)
        if stream is None:
            raise Refused("has no audio track")
        if stream.codec_context is None:
            raise Refused("has an audio track that no decoder reads")
        if stream.codec_context.name not in codecs:
            raise Refused(f"contains {stream.codec_context.name}, which is not supported")
        stream.codec_context.thread_count = 1
        mono = Mono(rate)
        for frame in _frames(file, stream):
            for part in mono.push(frame):
                samples += part.tobytes()
            _check(samples, rate, max_seconds)
        for part in mono.finish():
            samples += part.tobytes()
        _check(samples, rate, max_seconds)
    if not samples:
        raise Refused("contains no audio that can be decoded")
    return samples


def _frames(file: Any, stream: Any) -> Iterator[Any]:
    """The decoded frames of a stream. Damaged packets are left out. A file that ends too early gives fewer frames."""
    packets = file.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.InvalidDataError, av.error.EOFError):
            break
        try:
            yield from packet.decode()
        except (av.error.InvalidDataError, av.error.EOFError):
            continue


def _check(samples: bytearray, rate: int, max_seconds: float) -> None:
    if len(samples) > max_seconds * rate * _SAMPLE_BYTES:
        raise Refused(f"is longer than the limit of {max_seconds:g} seconds")


def _reason(error: Exception) -> str:
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, MemoryError):
        return "needs too much memory to decode"
    return "is damaged"


def _limit_memory(more_bytes: int) -> None:
    """Limit the memory that the process may allocate beyond its present memory. Works on Linux only."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max(used + more_bytes, 1), most))


def _set_alarm(cpu_seconds: float) -> None:
    """End the process after it has used this much processor time; 0 cancels the limit. Does nothing on Windows."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def main() -> None:
    """Print an empty line when the process is ready, then reply to requests until stdin closes."""
    cpu_seconds, working_bytes = float(sys.argv[1]), int(sys.argv[2])
    av.logging.set_level(None)
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        longest = int(request["max_seconds"] * request["rate"] * _SAMPLE_BYTES)
        # A growing array is copied, so that it needs twice its size for a moment.
        _limit_memory(working_bytes + request["bytes"] + 9 * longest // 4)
        samples = bytearray()
        reply: dict[str, Any] = {}
        _set_alarm(cpu_seconds)
        try:
            samples = decode(sys.stdin.buffer.read(request["bytes"]), request)
            reply["bytes"] = len(samples)
        except Exception as error:
            reply["refused"] = _reason(error)
        _set_alarm(0)
        output.write(json.dumps(reply).encode() + b"\n")
        output.write(samples)
        output.flush()


if __name__ == "__main__":
    main()
