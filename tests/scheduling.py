"""A mark for tests that change the scheduling policy of a thread. Where this is not allowed, they are skipped."""

from __future__ import annotations

import os
import sys

import pytest


def _is_allowed() -> bool:
    """Whether this process has the policy SCHED_OTHER, and may change to SCHED_BATCH and back."""
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:
        for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
            os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True


needs_scheduling_policies = pytest.mark.skipif(not _is_allowed(), reason="the scheduling policy cannot be chosen here")
