"""Compare plans of whole programs, `frog plan -- my.py`, with published measured runs of the same program.

    python benchmarks/planner_programs.py [--only WORD ...]

Only runs without torch.compile are compared, since a plan has separate kernels. Nothing is fitted here: the constants
of kernels and links are those of `frog plan MODEL`. The published memory is compared with the plan's total without
CUDA's context.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.plan.memory import CONTEXT_BYTES

HERE = Path(__file__).parent
GIB = 2**30
TITAN = "https://github.com/pytorch/torchtitan/blob/31a17bfd/benchmarks/llama3_h100_202412_torchtitan.md"


@dataclass(frozen=True)
class Case:
    """A published run, and the program and the cluster that stand for it."""

    name: str
    program: tuple[str, ...]
    cluster: str
    nodes: int
    tokens_per_gpu: float
    """Tokens per second of a GPU."""
    memory_gib: float
    source: str


CASES = (
    Case(
        "Llama 3.1 8B, 8 H100 (500 W), FSDP2, batch 2",
        ("planned_llama.py", "2"),
        "h100-500wx8",
        1,
        5762,
        82.4,
        f"{TITAN}, table 1, FSDP",
    ),
    Case(
        "Llama 3.1 8B, 128 H100 (500 W), FSDP2, batch 2",
        ("planned_llama.py", "2"),
        "h100-500wx8",
        16,
        5605,
        67.0,
        f"{TITAN}, table 3, FSDP",
    ),
)


def main() -> int:
    """Print a line for each case, and the sources."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose names have these words")
    args = parser.parse_args()
    cases = [case for case in CASES if all(word in case.name for word in args.only)]
    print(f"{'program':<50}{'tokens/s and GPU':>18}{'planned':>9}{'error %':>9}{'GiB':>8}{'planned':>9}{'error %':>9}")
    errors = []
    for case in cases:
        plan = planned(case)
        rate = plan["tokens"] / plan["time"]["total"]
        errors.append(abs(rate / case.tokens_per_gpu - 1))
        print(f"{case.name:<50}{case.tokens_per_gpu:>18,.0f}{rate:>9,.0f}{_error(rate, case.tokens_per_gpu)}", end="")
        memory = (plan["memory"]["total"] - CONTEXT_BYTES) / GIB
        print(f"{case.memory_gib:>8.1f}{memory:>9.1f}{_error(memory, case.memory_gib)}", flush=True)
    if errors:
        mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
        print(f"\nerror of the tokens per second: mean {mean:.1f} %, worst {worst:.1f} %")
    for case in cases:
        print(f"{case.name}: {case.source}")
    return 0


def planned(case: Case) -> dict[str, Any]:
    """Return the plan of a program as `--json` prints it."""
    words = ["--cluster", case.cluster, "--nodes", str(case.nodes), "--json"]
    command = [sys.executable, "-m", "frog", "plan", *words, "--", *case.program]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=HERE)
    plan: dict[str, Any] = json.loads(found.stdout)
    return plan


def _error(planned: float, published: float) -> str:
    return f"{100 * (planned / published - 1):>+9.1f}"


if __name__ == "__main__":
    sys.exit(main())
