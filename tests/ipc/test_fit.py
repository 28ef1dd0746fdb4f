"""The error for a sequence that the KV pools can never hold says what has to become smaller."""

from __future__ import annotations

import msgspec
import pytest

from server.errors import RequestTooLarge
from server.ipc.wire.fit import check_fit
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.ipc.test_client import DECODER, SEQ2SEQ


@pytest.mark.parametrize(
    ("tokens", "new", "beams", "param", "remedy"),
    [
        (10, 4000, 1, "max_new_tokens", "Lower `max_new_tokens`, or start"),
        (10, 4000, 4, "max_new_tokens", "Lower `max_new_tokens`, or start"),
        (4000, 1, 1, None, "Send a shorter input, or start"),
        (4000, 4000, 1, None, "Send a shorter input, or start"),
        (300, 1, 16, None, "Send a shorter input or lower `num_beams`, or start"),
    ],
)
def test_a_decoder(tokens: int, new: int, beams: int, param: str | None, remedy: str) -> None:
    info = msgspec.structs.replace(DECODER, block_size=32, kv_blocks={"self": 64})
    message = Generate("decoder", GenerationParams(num_beams=beams), [[5] * tokens], [GenerateRow(1, new, 0)])
    with pytest.raises(RequestTooLarge) as caught:
        check_fit(info, message, message.rows[0])
    assert remedy in caught.value.message and caught.value.param == param


def test_a_source() -> None:
    info = msgspec.structs.replace(SEQ2SEQ, block_size=32, kv_blocks={"self": 64, "cross": 8})
    message = Generate("seq2seq", GenerationParams(), [[5] * 300], [GenerateRow(1, 4, 0, [1])])
    with pytest.raises(RequestTooLarge, match=r"300 source tokens need .* Send a shorter input, or start") as caught:
        check_fit(info, message, message.rows[0])
    assert caught.value.param is None
