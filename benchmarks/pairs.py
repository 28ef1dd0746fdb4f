"""Compare the speed of two checkouts of this repository: `python -m benchmarks.pairs OTHER [--pairs 8]`.

    git worktree add /tmp/before v0.9 && cp models/backends/cpu/_kernels.so /tmp/before/models/backends/cpu/
    python -m benchmarks.pairs /tmp/before --only float32 bfloat16 --pairs 10

OTHER is the directory of another checkout, with kernels that were compiled from its sources. Both checkouts run the
rows of `make bench-quick` that measure Triptych, in alternating order.

The memory bandwidth of a virtual machine can differ by a factor of two between parts of its memory, and a process gets
about the same part each time. Therefore a random amount of memory is allocated during each pair of runs.

Prints for each row the median ratio of the rates, this checkout divided by OTHER, and a range. The range contains the
true median with a probability of at least 90% if the pairs are independent. The last line has the geometric mean of all
medians. The exit status is 1 if this mean is below 0.99 or a range lies wholly below 0.97.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks.process import REPOSITORY

MIN_MEAN, MIN_ROW = 0.99, 0.97
_CERTAINTY = 0.9
_HELD_SHARE = 0.4
"""Largest share of the available memory that is allocated during a pair of runs."""

Row = tuple[str, str, str, str]
"""Key of a row of the benchmark: shape, precision, workload and contestant."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--only", nargs="+", default=["float32", "bfloat16"], help="see `python -m benchmarks --help`")
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench/checkpoints"), help="directory for the models")
    parser.add_argument("--seed", type=int, default=1, help="seed of the amounts of memory")
    given = parser.parse_args()
    checkpoints, draw = given.checkpoints.resolve(), random.Random(given.seed)
    ratios: dict[Row, list[float]] = defaultdict(list)
    for pair in range(given.pairs):
        held = _hold(int(draw.uniform(0, _HELD_SHARE) * _available_bytes()))
        trees = [REPOSITORY, given.other.resolve()]
        rates = {tree: _rates(tree, given.only, checkpoints) for tree in (trees if pair % 2 else reversed(trees))}
        print(f"pair {pair + 1} of {given.pairs}, {len(held) / 2**30:.1f} GiB held", flush=True)
        held.close()
        for row in rates[trees[0]].keys() & rates[trees[1]].keys():
            ratios[row].append(rates[trees[0]][row] / rates[trees[1]][row])
    medians = []
    slow = False
    for row, found in sorted(ratios.items()):
        low, high = interval(found)
        medians.append(median(found))
        slow = slow or high < MIN_ROW
        print(f"{' '.join(row):45}  {medians[-1]:.3f}  [{low:.3f}, {high:.3f}]")
    mean = geometric_mean(medians)
    print(f"geometric mean of {len(medians)} rows: {mean:.3f}")
    sys.exit(slow or mean < MIN_MEAN)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The narrowest range between two of the ratios that contains the true median with a probability of at least 90%.

    Returns the smallest and the largest ratio if there are fewer than five, which are too few for this probability.
    """
    ordered, count = sorted(ratios), len(ratios)
    outside = 0
    for skipped in range(count // 2):
        # The number of ratios below the true median has a binomial distribution with probability 1/2.
        outside += math.comb(count, skipped)
        if 1 - 2 * outside / 2**count < _CERTAINTY:
            return ordered[max(skipped - 1, 0)], ordered[count - max(skipped, 1)]
    return ordered[0], ordered[-1]


def _rates(tree: Path, only: Sequence[str], checkpoints: Path) -> dict[Row, float]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--only", *only]
        command += ["--checkpoints", str(checkpoints), "--out", out]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        entries = json.loads((Path(out) / "benchmarks" / "results.json").read_text())["entries"]
    found = {}
    for entry in entries:
        # The workload `start` measures several kinds of start, so it has no single rate.
        if entry["runs"] and entry["workload"] != "start":
            run = entry["runs"][-1]
            found[entry["shape"], entry["precision"], entry["workload"], entry["contestant"]] = (
                run["units"] / run["seconds"]
            )
    return found


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def _hold(size: int) -> mmap.mmap:
    """Allocate about `size` bytes of memory, and write to each page so that it is resident."""
    held = mmap.mmap(-1, max(size, mmap.PAGESIZE))
    held.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, len(held), mmap.PAGESIZE):
        held[start] = 1
    return held


if __name__ == "__main__":
    main()
