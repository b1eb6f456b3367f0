"""Our collectives beside gloo, through memory and over TCP.

    python benchmarks/collectives.py [--tiny]

Contenders have their turns in the same rounds of one world: see `frog collectives bench`. A target is how many times as
fast as gloo an all-reduce is to be; the other operations are to be no slower than gloo.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from frog.gauge.bench import table
from frog.gauge.measurement import OPERATIONS, Row

SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)
TARGETS = {
    (2, "frog"): (40, 8, 3.3, 2.5),
    (4, "frog"): (30, 12, 2.3, 2.0),
    (2, "tcp"): (20, 4.5, 1.8, 1.2),
    (4, "tcp"): (10, 4, 1.0, 1.0),
}
"""Of all-reduce, at each of SIZES."""
FROG = str(Path(sys.executable).parent / "frog")


def measured(num_ranks: int, tiny: bool) -> tuple[list[Row], float]:
    words = [FROG, "collectives", "bench", "--nproc", str(num_ranks), "--against", "tcp,gloo", "--json"]
    words += ["--operations", ",".join(OPERATIONS[:1] if tiny else OPERATIONS)]
    words += ["--sizes", ",".join(f"{size}B" for size in SIZES)] if not tiny else ["--sizes", "4KiB", "--rounds", "1"]
    result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return [Row(**row) for row in result["rows"]], result["copy_bytes_per_s"]


def verdicts(rows: list[Row], num_ranks: int) -> list[str]:
    """A line for each target, and for each case in which gloo was faster."""
    gloo = {(row.operation, row.num_bytes): row.time_s for row in rows if row.contender == "gloo"}
    lines = []
    for row in rows:
        ratio = gloo[row.operation, row.num_bytes] / row.time_s
        if row.contender == "gloo":
            continue
        if row.operation == "all_reduce" and row.num_bytes in SIZES:
            target = TARGETS[num_ranks, row.contender][SIZES.index(row.num_bytes)]
        else:
            target = 1.0
        if row.operation == "all_reduce" or ratio < target:
            reached = "reached" if ratio >= target else "NOT reached"
            lines.append(
                f"  world {num_ranks}, {row.contender}, {row.operation} of {row.num_bytes >> 10} KiB: "
                f"{ratio:.2f} times as fast as gloo; target {target:g}: {reached}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="in miniature, to see that it runs")
    args = parser.parse_args()
    for num_ranks in (2,) if args.tiny else (2, 4):
        rows, copied = measured(num_ranks, args.tiny)
        print(table(rows, num_ranks, copied, several_nodes=False))
        print("\n".join(verdicts(rows, num_ranks)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
