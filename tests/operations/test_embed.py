"""`embed_all` refuses a result that would be too large before the engine computes it."""

from __future__ import annotations

import httpx
import pytest

from server.operations.ranking import embed
from tests.api.conftest import Bench


async def test_embed_all_refuses_a_result_that_is_too_large(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.become_ready()
    monkeypatch.setattr(embed, "MAX_NUMBERS", 4 * 5)  # five tokens of four numbers
    response = await http.post("/embed_all", json={"inputs": ["abc", "def"]})
    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("request_too_large", "inputs")
    assert "24" in error["message"] and "20" in error["message"] and bench.sent == []
