"""After the answer, no object of a request stays in memory."""

from __future__ import annotations

import asyncio
import gc

import httpx
import pytest

from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from tests.api.conftest import Bench


def open_calls() -> int:
    gc.collect()
    return sum(type(tracked) is Call for tracked in gc.get_objects())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answered_request_leaves_no_call(bench: Bench, http: httpx.AsyncClient, stream: bool) -> None:
    """The deadline's timer refers to the call, so it must be cancelled at the answer and not run for a minute."""
    bench.become_ready()
    body = {"prompt": "abc", "model": "decoder", "stream": stream}
    posted = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    bench.output(finished=[Finished(row.sequence_id, [Hypothesis([100, 101], "length")], 0.5, 0.1, 0.1, 2)])
    assert (await posted).status_code == 200
    del posted
    await asyncio.sleep(0)
    assert open_calls() == 0
