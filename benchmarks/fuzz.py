"""Wrong inputs for every reader of files: `benchmarks/fuzz.py --cases 10000 --seed 1`. Prints each broken promise.

    python benchmarks/fuzz.py --seed 7 --only 4711      repeat one case

Unreadable files need a user to whom permissions apply: for root, `setpriv` drops the overriding capabilities.

One percent of additional cases run as separate processes, as a user starts them; `--processes N` sets their number.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("fuzz", "")]

from cases import Finding, run_cases  # noqa: E402
from material import make_material  # noqa: E402


def _obey_permissions() -> None:
    """Restart root without the capabilities that override permissions, if possible."""
    with tempfile.NamedTemporaryFile() as locked:
        os.chmod(locked.name, 0)
        reads = os.access(locked.name, os.R_OK)
    if reads and shutil.which("setpriv"):
        os.execvp("setpriv", ["setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, *sys.argv])


def main() -> int:
    """Return 1 if a promise was broken."""
    _obey_permissions()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--processes", type=int, help="additional cases, each in its own process; default: 1 %%")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; default: 1")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run only this case")
    parser.add_argument("--own", action="store_true", help="with --only: a case in its own process")
    parser.add_argument("--material", type=Path, help="folder for the material, kept and reused")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        material = args.material or Path(scratch) / "material"
        if not material.exists():
            make_material(material)
        return int(sum(_try(args, seed, material, Path(scratch)) for seed in args.seed or [1]) > 0)


def _try(args: argparse.Namespace, seed: int, material: Path, scratch: Path) -> int:
    start = time.monotonic()
    processes = args.cases // 100 if args.processes is None else args.processes
    parts = [(range(args.cases), False), (range(processes), True)]
    if args.only is not None:
        parts = [(range(args.only, args.only + 1), args.own)]
    found: list[Finding] = []
    for numbers, own in parts:
        for finding in run_cases(material, scratch, seed, numbers, own):
            found.append(finding)
            if sum(other.where == finding.where for other in found) <= 2:
                print(finding, flush=True)
    for where, count in Counter(finding.where for finding in found).most_common():
        print(f"  {count:5} {where}")
    took_s = time.monotonic() - start
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = spent.ru_utime + spent.ru_stime
    print(f"seed {seed}: {args.cases} cases and {processes} as processes, {len(found)} promises broken")
    print(f"  took {took_s:.0f} s; {used_s:.0f} s of the processors since the start", flush=True)
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
