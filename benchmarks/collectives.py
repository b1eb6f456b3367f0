"""Frog's collectives, through memory and over TCP, compared with gloo, and with Open MPI where it is installed.

    python benchmarks/collectives.py [--tiny]

All contenders take turns in the same rounds of one world: see `frog collectives bench`. A target is the speed of an
all-reduce relative to gloo; the other operations must not be slower than gloo. The same run measures the limits of the
machine itself: memory copies, and bytes through plain sockets.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from frog.measure.peers.bench import table
from frog.measure.peers.measurement import OPERATIONS, Result

SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)
TARGETS = {
    (2, "frog"): (40, 8, 3.3, 2.5),
    (4, "frog"): (30, 12, 2.3, 2.0),
    (2, "tcp"): (20, 4.5, 1.8, 1.2),
    (4, "tcp"): (10, 4, 1.0, 1.0),
}
"""Targets of all-reduce, at each of SIZES."""
FROG = str(Path(sys.executable).parent / "frog")


def measured(num_ranks: int, tiny: bool) -> Result:
    others = "tcp,gloo,mpi" if shutil.which("mpirun.openmpi") and not tiny else "tcp,gloo"
    words = [FROG, "collectives", "bench", "--nproc", str(num_ranks), "--against", others, "--json"]
    words += ["--operations", ",".join(OPERATIONS[:1] if tiny else OPERATIONS)]
    words += ["--sizes", ",".join(f"{size}B" for size in SIZES)] if not tiny else ["--sizes", "4KiB", "--rounds", "1"]
    return Result.of(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout))


def verdicts(result: Result) -> list[str]:
    """Return a line for each target, and for each case in which gloo was faster."""
    lines = []
    for row in result.rows:
        ratio = result.times_gloo(row)
        if ratio is None or row.contender == "mpi":
            continue
        if row.operation == "all_reduce" and row.num_bytes in SIZES:
            target = TARGETS[result.num_ranks, row.contender][SIZES.index(row.num_bytes)]
        else:
            target = 1.0
        if row.operation == "all_reduce" or ratio < target:
            reached = "reached" if ratio >= target else "NOT reached"
            lines.append(
                f"  world {result.num_ranks}, {row.contender}, {row.operation} of {row.num_bytes >> 10} KiB: "
                f"{ratio:.2f} times as fast as gloo; target {target:g}: {reached}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    for num_ranks in (2,) if args.tiny else (2, 4):
        result = measured(num_ranks, args.tiny)
        print(table(result))
        print("\n".join(verdicts(result)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
