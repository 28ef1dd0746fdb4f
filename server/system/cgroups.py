"""The control groups (cgroups) of this process, which limit its memory and its processor time. Linux only.

A container usually sees its own group as the root. A service of systemd (`MemoryMax=`, `CPUQuota=`) and a process of a
batch system are in a group below the root; all groups above it limit the process too.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Return the existing directories of this process's control groups, with all groups above them up to the root.

    controller: `memory` or `cpu`, the name of the controller in cgroup version 1.
    root: directory in which the system describes the groups.
    membership: file that names the groups of this process.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = membership.read_text(encoding="utf-8").splitlines()
    found = {root: None, root / "unified": None, root / controller: None}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = Path(path).parts[1:]
        if ".." in parts or (controllers and controller not in controllers.split(",")):
            continue
        for base in [root / controller] if controllers else [root, root / "unified"]:
            for count in range(1, len(parts) + 1):
                found[base.joinpath(*parts[:count])] = None
    return [directory for directory in found if directory.is_dir()]
