"""Base class of all messages between the HTTP process and a worker."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. Encoded as an array whose first element is the class name."""
