"""Compare plans of whole programs, `frog plan -- my.py`, with published measured runs of the same program.

    python benchmarks/planner_programs.py [--nanogpt DIR] [--only WORD ...]

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
FMS = "https://github.com/foundation-model-stack/fms-fsdp/blob/0d319983/README.md"
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
    memory_gib: float | None
    source: str


CASES = (
    Case(
        "Llama 3.1 8B, 8 H100 (500 W), FSDP2, batch 2",
        ("planned_llama.py", "llama3-8b", "2"),
        "h100-500wx8",
        1,
        5762,
        82.4,
        f"{TITAN}, table 1, FSDP",
    ),
    Case(
        "Llama 3.1 8B, 128 H100 (500 W), FSDP2, batch 2",
        ("planned_llama.py", "llama3-8b", "2"),
        "h100-500wx8",
        16,
        5605,
        67.0,
        f"{TITAN}, table 3, FSDP",
    ),
    *(
        Case(
            f"Llama 2 {size.upper()}, 128 A100, {kind}, batch {batch}",
            ("planned_llama.py", f"llama2-{size}", str(batch)),
            "a100_400gbit.toml",
            16,
            rate,
            None,
            f"{FMS}; PyTorch's FSDP2 in place of 1, 400 Gbit/s for each node are assumed",
        )
        for size, kind, batch, rate in (
            ("7b", "HSDP", 2, 3760),
            ("13b", "HSDP", 1, 1700),
            ("34b", "FSDP, recomputed", 8, 772),
            ("70b", "FSDP, recomputed", 6, 380),
        )
    ),
    Case(
        "nanoGPT bench.py without compile, batch 8, A100",
        ("bench.py",),
        "a100x8",
        1,
        8 * 1024 / 0.25,
        None,
        "https://github.com/karpathy/nanoGPT/blob/5a725d90/README.md: about 250 ms per iteration; it has no data here",
    ),
)


def main() -> int:
    """Print a line for each case, and the sources."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose names have these words")
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a clone of nanoGPT at 5a725d90, with data")
    args = parser.parse_args()
    cases = [case for case in CASES if all(word in case.name for word in args.only)]
    cases = [case for case in cases if args.nanogpt or case.program[0] != "bench.py"]
    print(f"{'program':<50}{'tokens/s and GPU':>18}{'planned':>9}{'error %':>9}{'GiB':>8}{'planned':>9}{'error %':>9}")
    errors = []
    for case in cases:
        plan = planned(case, HERE if case.program[0] != "bench.py" else args.nanogpt)
        rate = plan["tokens"] / plan["time"]["total"]
        errors.append(abs(rate / case.tokens_per_gpu - 1))
        print(f"{case.name:<50}{case.tokens_per_gpu:>18,.0f}{rate:>9,.0f}{_error(rate, case.tokens_per_gpu)}", end="")
        memory = (plan["memory"]["total"] - CONTEXT_BYTES) / GIB
        published = case.memory_gib
        print(f"{published:>8.1f}{memory:>9.1f}{_error(memory, published)}" if published else "", flush=True)
    if errors:
        mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
        print(f"\nerror of the tokens per second: mean {mean:.1f} %, worst {worst:.1f} %")
    for case in cases:
        print(f"{case.name}: {case.source}")
    return 0


def planned(case: Case, folder: Path) -> dict[str, Any]:
    """Return the plan of a program in a folder as `--json` prints it."""
    cluster = str(HERE / case.cluster) if case.cluster.endswith(".toml") else case.cluster
    words = ["--cluster", cluster, "--nodes", str(case.nodes), "--json"]
    command = [sys.executable, "-m", "frog", "plan", *words, "--", *case.program]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=folder)
    plan: dict[str, Any] = json.loads(found.stdout)
    return plan


def _error(planned: float, published: float) -> str:
    return f"{100 * (planned / published - 1):>+9.1f}"


if __name__ == "__main__":
    sys.exit(main())
