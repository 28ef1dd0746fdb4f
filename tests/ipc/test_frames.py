"""Messages are read from frames, however the bytes are divided when they arrive."""

from __future__ import annotations

import msgspec
import pytest

from server.ipc.wire.frames import FRAME_HEADER, MAX_FRAME_BYTES, FrameReader, FrameTooLarge, encode_frame
from server.ipc.wire.messages import ToWorker, decode_to_worker
from server.ipc.wire.step_messages import Abort

MESSAGES: list[ToWorker] = [Abort(10**index) for index in range(5)]
FRAMES = b"".join(encode_frame(message) for message in MESSAGES)


@pytest.mark.parametrize("size", [1, 3, 7, len(FRAMES)])
def test_messages_are_whole_whatever_the_pieces(size: int) -> None:
    reader = FrameReader(decode_to_worker)
    pieces = [FRAMES[start : start + size] for start in range(0, len(FRAMES), size)]
    assert [message for piece in pieces for message in reader.read(piece)] == MESSAGES


def test_a_message_is_taken_once_although_its_receiver_stops() -> None:
    reader = FrameReader(decode_to_worker)
    received = reader.read(FRAMES)
    assert next(received) == MESSAGES[0]
    received.close()  # type: ignore[attr-defined]
    assert list(reader.read(b"")) == MESSAGES[1:]


def test_messages_before_an_invalid_one_are_received() -> None:
    reader, received = FrameReader(decode_to_worker), []
    with pytest.raises(msgspec.MsgspecError):
        for message in reader.read(FRAMES + FRAME_HEADER.pack(1) + b"x"):
            received.append(message)
    assert received == MESSAGES


def test_a_frame_that_is_too_large_is_refused_before_it_arrives() -> None:
    assert list(FrameReader(decode_to_worker).read(FRAME_HEADER.pack(MAX_FRAME_BYTES))) == []
    with pytest.raises(FrameTooLarge, match="1,073,741,825 bytes"):
        list(FrameReader(decode_to_worker).read(FRAME_HEADER.pack(MAX_FRAME_BYTES + 1)))
