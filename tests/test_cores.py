"""The number of usable cores, the division of cores among workers, and processes with lower priority."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from server.system.cores import (
    CoreShare,
    cores_of_this_process,
    divide_cores,
    give_way,
    interrupt_others,
    run_when_idle,
    steps_uninterrupted,
    usable_cores,
)
from tests.scheduling import needs_scheduling_policies


@pytest.mark.parametrize(
    "files, cores",
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "20000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_usable_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == (8 if cores is None else cores)


def test_the_quota_of_a_service_counts(tmp_path, monkeypatch):
    """systemd's `CPUQuota=` limits the control group of a service. The smallest quota from there to the root counts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    group, membership = tmp_path / "system.slice" / "triptych.service", tmp_path / "membership"
    group.mkdir(parents=True)
    membership.write_text("0::/system.slice/triptych.service\n")
    (group / "cpu.max").write_text("300000 100000")
    assert usable_cores(tmp_path, membership) == 3
    (group.parent / "cpu.max").write_text("200000 100000")
    assert usable_cores(tmp_path, membership) == 2
    membership.write_text("0::/\n")
    assert usable_cores(tmp_path, membership) == 8


def describe(root, cores):
    """Write the files in which Linux describes processors. cores: (package, hardware thread indices) of each core."""
    for package, numbers in cores:
        for number in numbers:
            topology = root / f"cpu{number}" / "topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{package}\n")
            (topology / "thread_siblings_list").write_text(",".join(map(str, numbers)) + "\n")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that divides the cores of a simulated machine: `machine(cores, workers, threads, quota)`."""

    def divide(cores, workers, threads=0, quota="max 100000"):
        describe(tmp_path / "processors", cores)
        allowed = {number for _, numbers in cores for number in numbers}
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed, raising=False)
        (tmp_path / "cpu.max").write_text(quota)
        return divide_cores(workers, threads, tmp_path, tmp_path / "processors", tmp_path / "kinds")

    return divide


SMT = [(0, (0, 4)), (0, (1, 5)), (1, (2, 6)), (1, (3, 7))]
"""Two packages of two cores with two hardware threads each, with the indices that Linux gives them."""


@pytest.mark.parametrize(
    "cores, workers, threads, quota, expected",
    [
        ([(0, (0,)), (0, (1,))], 2, 0, "max 100000", [((0,), 1), ((1,), 1)]),
        ([(0, (0,)), (0, (1,))], 1, 0, "max 100000", [((), 0)]),
        (SMT, 1, 3, "max 100000", [((), 3)]),
        (SMT, 2, 0, "max 100000", [((0, 4, 1, 5), 2), ((2, 6, 3, 7), 2)]),
        (SMT, 3, 0, "max 100000", [((0, 4), 1), ((1, 5), 1), ((2, 6, 3, 7), 1)]),
        (SMT, 8, 0, "max 100000", [((number,), 1) for number in (0, 4, 1, 5, 2, 6, 3, 7)]),
        (SMT, 2, 2, "max 100000", [((0, 4, 1, 5), 2), ((2, 6, 3, 7), 2)]),
        (SMT, 2, 5, "max 100000", [((), 5), ((), 5)]),
        (SMT, 9, 0, "max 100000", [((), 1)] * 9),
        (SMT, 2, 0, "300000 100000", [((0, 4, 1, 5), 1), ((2, 6, 3, 7), 1)]),
    ],
    ids=["two cores", "one worker", "threads of one worker", "packages", "uneven", "hardware threads", "threads chosen",
         "more threads than a share", "more workers than processors", "quota"],
)  # fmt: skip
def test_divided_cores(machine, cores, workers, threads, quota, expected):
    assert machine(cores, workers, threads, quota) == [CoreShare(*share) for share in expected]


def test_processors_without_a_description_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1, 2, 0}, raising=False)
    assert divide_cores(2, 0, tmp_path, tmp_path, tmp_path) == [CoreShare((0, 1), 2), CoreShare((2, 3), 2)]


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="this system has no priorities of processes")
def test_a_process_gives_way_as_far_as_the_system_allows():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        for expected in (min(own + 10, 19), 19, 19):
            give_way(process.pid)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == expected
        process.communicate(b"\n")
    give_way(process.pid)  # the process has ended
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@needs_scheduling_policies
def test_steps_are_not_interrupted_for_a_while():
    """A process that starts during a step inherits its scheduling policy, and `interrupt_others` undoes it there."""
    code = "import os; from server.system.cores import interrupt_others; {}; print(os.sched_getscheduler(0))"

    def policy_of_child(first: str) -> int:
        return int(subprocess.check_output([sys.executable, "-c", code.format(first)]))

    before = os.sched_getscheduler(0)
    assert before == os.SCHED_OTHER
    with steps_uninterrupted():
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        with steps_uninterrupted():
            assert policy_of_child("pass") == os.SCHED_BATCH and policy_of_child("interrupt_others()") == before
        assert os.sched_getscheduler(0) == os.SCHED_BATCH, "the inner block changed nothing"
    assert os.sched_getscheduler(0) == before


@needs_scheduling_policies
def test_a_thread_and_those_that_it_starts_run_when_cores_are_idle():
    found = []

    def work() -> None:
        run_when_idle()
        found.append(os.sched_getscheduler(0))
        inner = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
        inner.start()
        inner.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE] * 2 and os.sched_getscheduler(0) == os.SCHED_OTHER


@needs_scheduling_policies
def test_a_policy_that_the_system_refuses_changes_nothing(monkeypatch):
    def refuse(*arguments: object) -> None:
        raise PermissionError

    policy = os.sched_getscheduler
    for call in ("sched_setscheduler", "sched_getscheduler"):
        monkeypatch.setattr(os, call, refuse)
        with steps_uninterrupted():
            interrupt_others()
            run_when_idle()
            assert policy(0) == os.SCHED_OTHER


HYBRID = [(0, (0, 1)), (0, (2, 3)), (0, (4,)), (0, (5,)), (0, (6,)), (0, (7,))]
"""Two fast cores with two hardware threads each, and four slow cores with one."""


def found_cores(tmp_path, monkeypatch, cores, allowed=None, quota="max 100000"):
    describe(tmp_path / "processors", cores)
    numbers = {number for _, own in cores for number in own}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed or numbers, raising=False)
    (tmp_path / "cpu.max").write_text(quota)
    return cores_of_this_process(tmp_path, processors=tmp_path / "processors", kinds=tmp_path / "kinds")


def test_a_step_has_one_thread_for_each_core_within_the_quota(tmp_path, monkeypatch):
    found = found_cores(tmp_path, monkeypatch, SMT)
    assert (found.processors, len(found.all), found.threads) == (8, 4, 4)
    (tmp_path / "cpu.max").write_text("250000 100000")
    assert cores_of_this_process(tmp_path, processors=tmp_path / "processors", kinds=tmp_path / "kinds").threads == 2


def test_only_allowed_processors_count(tmp_path, monkeypatch):
    found = found_cores(tmp_path, monkeypatch, SMT, allowed={0, 4, 5})
    assert (found.all, found.threads) == (((0, 4), (5,)), 2)


@pytest.mark.parametrize("is_intel", [True, False])
def test_slow_cores_of_a_hybrid_processor_compute_no_steps(tmp_path, monkeypatch, is_intel):
    if is_intel:
        (tmp_path / "kinds" / "cpu_core").mkdir(parents=True)
        (tmp_path / "kinds" / "cpu_core" / "cpus").write_text("0-3\n")
    describe(tmp_path / "processors", HYBRID)
    if not is_intel:
        for number in range(8):
            capacity = 1024 if number < 2 else 1000 if number < 4 else 446
            (tmp_path / "processors" / f"cpu{number}" / "cpu_capacity").write_text(f"{capacity}\n")
    allowed = set(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed, raising=False)
    (tmp_path / "cpu.max").write_text("max 100000")
    places = {"processors": tmp_path / "processors", "kinds": tmp_path / "kinds"}
    found = cores_of_this_process(tmp_path, **places)
    assert found.fast == ((0, 1), (2, 3)) and len(found.all) == 6 and found.threads == 2
    assert divide_cores(2, 0, tmp_path, **places) == [CoreShare((0, 1), 1), CoreShare((2, 3), 1)]
    three = divide_cores(3, 0, tmp_path, **places)
    assert [len(share.processors) for share in three] == [4, 2, 2], "there is no fast core for each worker"
    allowed.difference_update(range(4))
    assert cores_of_this_process(tmp_path, **places).threads == 4, "a server on the slow cores alone uses them"
