"""Every strategy held against one process, over gloo and over our own collectives: what `frog prove` says of each.

    python benchmarks/prove.py [ARGUMENT of frog prove ...]     minutes, on two cores

Prints both tables, and ends with 1 if anything differs from one process.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
    worst = 0
    for backend in ("gloo", "frog"):
        words = ["prove", "--backend", backend, "--implementation", "all", *sys.argv[1:]]
        print(f"frog {' '.join(words)}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", "frog.cli", *words]).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
