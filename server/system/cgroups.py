"""The control groups of this process, which limit its memory and its processor time. Linux only.

A container usually sees its own group as the root. A service of systemd (`MemoryMax=`, `CPUQuota=`) and a process of a
batch system are in a group below the root, and every group above them limits them too.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """The directories of the groups of this process that exist, the root and the groups above its own included.

    controller: name of the controller in version 1, such as `memory`.
    root: directory in which the system describes the groups. membership: file with the group of this process.
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
