"""Finds the format of an audio file by its first bytes, and FFmpeg's demuxer for the format.

The demuxer is chosen here, not by the decoder, so that a file cannot select a format that refers to other files.
"""

from __future__ import annotations

from typing import NamedTuple


class Container(NamedTuple):
    """A file format.

    name: name of the format in messages to users.
    demuxer: name of FFmpeg's demuxer; None for a format that is not supported.
    """

    name: str
    demuxer: str | None = None


UNKNOWN = Container("of an unknown format")
WAV = Container("WAV", "wav")
MP3, AAC = Container("MP3", "mp3"), Container("AAC", "aac")
_MAGIC = (
    (0, b"ID3", MP3),
    (0, b"fLaC", Container("FLAC", "flac")),
    (0, b"OggS", Container("Ogg", "ogg")),
    (4, b"ftyp", Container("MP4", "mov")),
    (0, b"\x1aE\xdf\xa3", Container("WebM", "matroska")),
    (0, b"RF64", Container("RF64", "wav")),
    (0, b"BW64", Container("BW64", "wav")),
    (0, b"FORM", Container("AIFF")),
    (0, b".snd", Container("AU")),
    (0, b"#!AMR", Container("AMR")),
    (0, b"caff", Container("CAF")),
    (0, b"0&\xb2u", Container("WMA")),
    (0, b"RIFX", Container("RIFX")),
)
SUPPORTED = "WAV, MP3, M4A and MP4, WebM, FLAC, Ogg and AAC"


def container_of(data: bytes) -> Container:
    """The format of a file, by its first bytes; `UNKNOWN` if they belong to no known format."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return WAV
    for offset, magic, container in _MAGIC:
        if data[offset : offset + len(magic)] == magic:
            return container
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        return AAC if data[1] & 0xF6 == 0xF0 else MP3
    return UNKNOWN if data else Container("empty")
