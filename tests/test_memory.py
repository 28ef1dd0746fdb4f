"""The memory that the server may use, according to the system and the limits of its container."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from server.system.memory import free_memory_bytes, unused_limit_bytes, usable_memory_bytes

MIB = 1 << 20
FILES = {
    1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    2: ("memory.max", "memory.current", "memory.stat", "inactive_file"),
}
"""For both versions of cgroups: the files with limit, usage and statistics, and the statistic for the file cache."""


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       8192 kB\nMemFree:         100 kB\nMemAvailable:   4096 kB\n")
    return file


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(tmp_path: Path, meminfo: Path, version: int) -> None:
    """A container's limit reduces the free memory. File cache counts as free, because the system can drop it."""
    root = tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    limit, usage, statistics, cache = FILES[version]
    (root / limit).write_text(f"{3 * MIB}\n")
    assert usable_memory_bytes(root) == 3 * MIB
    assert free_memory_bytes(root, meminfo) == 3 * MIB, "the usage is not stated"
    (root / usage).write_text(f"{2 * MIB}\n")
    assert free_memory_bytes(root, meminfo) == MIB
    (root / statistics).write_text(f"anon 5\n{cache} {MIB}\nx{cache} 7\n")
    assert free_memory_bytes(root, meminfo) == 2 * MIB
    (root / limit).write_text(f"{64 * MIB}\n")
    assert free_memory_bytes(root, meminfo) == 4 * MIB, "the machine has less"
    (root / usage).write_text(f"{80 * MIB}\n")
    assert free_memory_bytes(root, meminfo) == 0


def test_without_a_limit_the_machine_counts(tmp_path: Path, meminfo: Path) -> None:
    assert free_memory_bytes(tmp_path, meminfo) == 4 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path, meminfo) == 4 * MIB
    assert free_memory_bytes(tmp_path, tmp_path / "missing") == usable_memory_bytes(tmp_path)
    assert 0 < free_memory_bytes() <= usable_memory_bytes()


@pytest.mark.parametrize(
    ("data", "space", "left"), [(None, None, None), (5, None, 3), (None, 9, 5), (5, 6, 2), (1, None, 0)]
)
def test_the_limits_of_the_process_leave_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: int | None, space: int | None, left: int | None
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nVmSize:\t    {4 * 1024} kB\nVmData:\t    {2 * 1024} kB\n")
    limits = {resource.RLIMIT_DATA: data, resource.RLIMIT_AS: space}

    def limit(kind: int) -> tuple[int, int]:
        found = limits[kind]
        return (resource.RLIM_INFINITY if found is None else found * MIB, resource.RLIM_INFINITY)

    monkeypatch.setattr(resource, "getrlimit", limit)
    assert unused_limit_bytes(status) == (None if left is None else left * MIB)


@pytest.mark.parametrize("version", [1, 2])
def test_the_groups_of_a_service_count(tmp_path: Path, meminfo: Path, version: int) -> None:
    """systemd's `MemoryMax=` limits the control group of a service. The groups above it may have limits too."""
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    limit, usage, statistics, cache = FILES[version]
    controller = root / ("memory" if version == 1 else "")
    slice_, service = controller / "system.slice", controller / "system.slice" / "triptych.service"
    service.mkdir(parents=True)
    lines = {1: "5:cpu:/\n4:memory,x:/system.slice/triptych.service\n", 2: "0::/system.slice/triptych.service\n"}
    membership.write_text(lines[version])
    limit, usage, statistics = (Path(name).name for name in (limit, usage, statistics))
    (service / limit).write_text(f"{3 * MIB}\n")
    assert usable_memory_bytes(root, membership) == free_memory_bytes(root, meminfo, membership) == 3 * MIB
    (service / usage).write_text(f"{2 * MIB}\n")
    (service / statistics).write_text(f"{cache} {MIB // 2}\n")
    assert free_memory_bytes(root, meminfo, membership) == MIB * 3 // 2
    (slice_ / limit).write_text(f"{2 * MIB}\n")
    (slice_ / usage).write_text(f"{MIB}\n")
    assert usable_memory_bytes(root, membership) == 2 * MIB
    assert free_memory_bytes(root, meminfo, membership) == MIB
    membership.write_text(lines[version].replace("/system", "/../system"))
    assert free_memory_bytes(root, meminfo, membership) == 4 * MIB, "a group that this process cannot see"
