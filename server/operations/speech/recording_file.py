"""An audio file of a request: its bytes until they are decoded, and the sizes that can be read from its header."""

from __future__ import annotations

from collections.abc import Callable

from server.audio.read import max_seconds_of, reading_bytes


class RecordingFile:
    """The bytes of an audio file, which are kept until its samples are decoded.

    data: the bytes; empty after `drop`.
    reading_bytes: memory that decoding the file may need, besides the samples at 16 kHz.
    on_drop: called by `drop`.
    """

    def __init__(self, data: bytes, on_drop: Callable[[], None] = lambda: None) -> None:
        self.data = data
        self.reading_bytes = reading_bytes(data)
        self._on_drop = on_drop

    def max_seconds(self, limit: float) -> float | None:
        """Upper bound of the length in seconds; None for a file whose length is only known after decoding.

        limit: length of the longest recording that the server accepts, in seconds.
        """
        return max_seconds_of(self.data, limit)

    def drop(self) -> None:
        """Free the bytes, because the samples were decoded."""
        self.data = b""
        self._on_drop()
