"""The tests of lost workers fail with a bug planted in the product."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.chaos.bugs import planted
from tests.ipc import test_lost_workers, test_restart_policy


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("late-events-are-taken", test_lost_workers.test_late_events_of_a_lost_worker_are_dropped),
        ("lost-requests-are-repeated-without-end", test_lost_workers.test_a_request_moves_once),
        ("lost-requests-are-repeated-without-end", test_lost_workers.test_a_request_with_output_fails_at_once),
        ("lost-worker-tells-nobody", test_lost_workers.test_a_request_with_output_fails_at_once),
        ("lost-worker-tells-nobody", test_lost_workers.test_a_request_without_output_moves_to_another_worker),
    ],
)
async def test_a_bug_in_the_client_is_caught(bug: str, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with planted(bug), pytest.raises(AssertionError):
        await check()


def test_a_bug_in_the_restart_policy_is_caught() -> None:
    with planted("pauses-do-not-grow"), pytest.raises(AssertionError):
        test_restart_policy.test_the_pause_grows_also_when_each_worker_becomes_ready()
