"""Write compressed recordings with FFmpeg: the formats that users send."""

from __future__ import annotations

import io
from typing import NamedTuple

import av
import numpy as np


class Format(NamedTuple):
    """A file format. container, codec: FFmpeg's muxer and encoder. name: name of the container in our errors."""

    container: str
    codec: str
    name: str
    sample_format: str = "fltp"


FORMATS = {
    "mp3": Format("mp3", "libmp3lame", "MP3"),
    "m4a": Format("ipod", "aac", "MP4"),
    "mp4-alac": Format("mp4", "alac", "MP4", "s16p"),
    "webm": Format("webm", "libopus", "WebM", "flt"),
    "ogg-opus": Format("ogg", "libopus", "Ogg", "flt"),
    "ogg-vorbis": Format("ogg", "vorbis", "Ogg"),
    "flac": Format("flac", "flac", "FLAC", "s16"),
    "aac": Format("adts", "aac", "AAC"),
    "wav-mulaw": Format("wav", "pcm_mulaw", "WAV", "s16"),
    "wav-mp3": Format("wav", "libmp3lame", "WAV"),
    "matroska-flac": Format("matroska", "flac", "WebM", "s16"),
}
LOSSLESS = ("mp4-alac", "flac", "matroska-flac")


def encode(name: str, samples: np.ndarray, rate: int = 16_000) -> bytes:
    """Encode samples as a file. Returns its bytes.

    name: key of `FORMATS`. samples: [samples] or [samples, channels], from -1 to 1. rate: sampling rate in Hz.
    """
    chosen = FORMATS[name]
    columns = samples if samples.ndim == 2 else samples[:, None]
    if chosen.codec == "vorbis":
        # FFmpeg's own encoder is experimental and writes stereo only.
        columns = np.repeat(columns[:, :1], 2, axis=1)
    layout = {1: "mono", 2: "stereo"}[columns.shape[1]]
    target = io.BytesIO()
    with av.open(target, "w", format=chosen.container) as file:
        stream = file.add_stream(chosen.codec, rate=rate, layout=layout, format=chosen.sample_format)
        stream.codec_context.options = {"strict": "-2"}
        convert = av.AudioResampler(format=chosen.sample_format, layout=layout, rate=rate)
        size = stream.codec_context.frame_size or 1024
        for first in range(0, len(columns), size):
            planar = np.ascontiguousarray(columns[first : first + size].T, dtype=np.float32)
            frame = av.AudioFrame.from_ndarray(planar, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, first
            for ready in convert.resample(frame):
                file.mux(stream.encode(ready))
        file.mux(stream.encode(None))
    return target.getvalue()
