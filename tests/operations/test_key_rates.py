"""Limits of an API key on requests and tokens per minute: refusals, their duration, and what finished answers cost."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from server.errors import Overloaded
from server.ipc.client.call import Call
from server.limits.key_limits import KeyLimits
from server.limits.key_rates import KeyRates
from server.operations.admission import Admission
from server.operations.cost import Cost
from server.settings.settings import Settings
from tests.api.conftest import Bench
from tests.operations.test_pools import NoClient


class Model:
    name = "m"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admission(clock: Clock) -> Admission:
    return Admission(rates=KeyRates(clock))


def admit(admission: Admission, key: KeyLimits, prompt: int = 1, new: int = 0) -> Call:
    call = Call(NoClient(), key=key)  # type: ignore[arg-type]
    admission.admit(call, Model(), Cost(0, prompt, new))
    return call


def refused(admission: Admission, key: KeyLimits, prompt: int = 1) -> Overloaded:
    with pytest.raises(Overloaded) as error:
        admit(admission, key, prompt)
    return error.value


def test_requests_of_a_minute(admission: Admission, clock: Clock) -> None:
    key = KeyLimits("team", requests_per_minute=6)
    for _ in range(6):
        admit(admission, key).close()
    error = refused(admission, key)
    assert error.reason == "key_requests_per_minute" and error.retry_after == 10
    assert "limit 6 requests a minute, requests_per_minute of the key in --api-key-file" in error.message
    admit(admission, KeyLimits("other", requests_per_minute=6))
    clock.now += 10
    admit(admission, key)
    refused(admission, key)
    clock.now += 1000
    for _ in range(6):
        admit(admission, key)
    refused(admission, key)


def test_tokens_of_a_minute_are_those_that_were_computed(admission: Admission, clock: Clock) -> None:
    key = KeyLimits("team", tokens_per_minute=60)
    call = admit(admission, key, prompt=20, new=1000)
    call.prompt_tokens, call.completion_tokens = 10, 80
    call.close()  # 30 more than a minute has
    error = refused(admission, key, 5)
    assert error.reason == "key_tokens_per_minute" and error.retry_after == 35
    clock.now += 35
    admit(admission, key, prompt=5).close()
    clock.now += 60
    call = admit(admission, key, prompt=60)
    call.prompt_tokens = 1  # the estimate was too high
    call.close()
    admit(admission, key, prompt=59)
    refused(admission, key)


def test_a_request_larger_than_a_minute_waits_for_a_full_minute(admission: Admission, clock: Clock) -> None:
    key = KeyLimits("team", tokens_per_minute=60)
    call = admit(admission, key, prompt=180)
    call.prompt_tokens = 180
    call.close()
    assert refused(admission, key, 180).retry_after == 180
    clock.now += 179
    refused(admission, key, 180)
    clock.now += 1
    admit(admission, key, prompt=180)


def test_a_refused_request_costs_nothing(admission: Admission) -> None:
    key = KeyLimits("team", max_requests=1, requests_per_minute=2)
    first = admit(admission, key)
    assert refused(admission, key).reason == "key_requests"
    first.close()
    admit(admission, key).close()
    assert refused(admission, key).reason == "key_requests_per_minute"


def test_other_limits_in_the_key_file_apply_to_the_next_request(admission: Admission) -> None:
    admit(admission, KeyLimits("team", requests_per_minute=1)).close()
    refused(admission, KeyLimits("team", requests_per_minute=1))
    refused(admission, KeyLimits("team", requests_per_minute=5))  # the bucket keeps what it has, and fills faster
    admit(admission, KeyLimits("team"))


async def test_the_answer_says_when_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('[keys.team]\nkey = "the-key"\nrequests_per_minute = 1\n')
    bench = Bench(tmp_path, Settings(api_key_file=tmp_path / "keys.toml"))
    bench.become_ready()
    bench.runtime.admission.rates.take(KeyLimits("team", requests_per_minute=1), 1, 0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as http:
        headers = {"Authorization": "Bearer the-key"}
        answer = await http.post("/generate", json={"model": "decoder", "prompt": "abc"}, headers=headers)
    bench.runtime.pools.close()
    assert answer.status_code == 429 and answer.json()["error"]["reason"] == "key_requests_per_minute"
    assert 55 <= int(answer.headers["retry-after"]) <= 60
