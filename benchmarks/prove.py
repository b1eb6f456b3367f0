"""Every strategy compared with one process, over gloo and over Frog's collectives: the results of `frog prove`.

    python benchmarks/prove.py [ARGUMENT of frog prove ...]     minutes, on two cores

Prints both tables; the exit code is 1 if any result differs from one process.
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
