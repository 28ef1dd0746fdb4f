"""An audio file in memory: its bytes until they are read, and the sizes that its format tells."""

from __future__ import annotations

from collections.abc import Callable

from server.audio.read import max_seconds_of, reading_bytes


class RecordingFile:
    """The bytes of an audio file, which are needed until its samples are read.

    data: the bytes; empty after `drop`.
    reading_bytes: memory that reading the file may need, besides its samples at 16 kHz.
    on_drop: called when the bytes are not needed any more.
    """

    def __init__(self, data: bytes, on_drop: Callable[[], None] = lambda: None) -> None:
        self.data = data
        self.reading_bytes = reading_bytes(data)
        self._on_drop = on_drop

    def max_seconds(self, limit: float) -> float | None:
        """Upper bound of the length; None for a file that has to be decoded for it. limit: longest one accepted."""
        return max_seconds_of(self.data, limit)

    def drop(self) -> None:
        """Free the bytes. The recording has been read."""
        self.data = b""
        self._on_drop()
