"""`frog collectives bench`: the speed of collectives on this machine, Frog's and others'."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from frog.core.errors import LaunchError, UsageError
from frog.core.schema import shortened
from frog.core.units import parse_whole
from frog.launch.harness import Program
from frog.launch.launch_commands import read_world
from frog.launch.world import run_world
from frog.measure.peers.measurement import CONTENDERS, LIMITS, Request, Result
from frog.measure.peers.open_mpi import mpirun
from frog.measure.peers.report import write_report

_MPIRUN_S = 3600.0
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20}


def bench(args: argparse.Namespace) -> int:
    """Start a world that measures, and print the result."""
    nodes, options = read_world(args)
    check_world(nodes.most * nodes.ranks)
    if "mpi" in args.against and nodes.several:
        raise UsageError("--against mpi measures Open MPI on one node, not on simulated nodes", "--nproc N")
    request = Request(args.operations, args.sizes, ("frog", *args.against), args.rounds)
    with tempfile.TemporaryDirectory(prefix="frog-bench-") as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "result.json"
        request.write(asked)
        if "mpi" in args.against:
            _run_under_mpirun(nodes.ranks, [str(asked), str(answer)], Path(scratch))
        elif code := run_world(nodes, ["collectives", str(asked), str(answer)], options):
            return code
        result = Result.of(json.loads(answer.read_text()))
    print(json.dumps(asdict(result), indent=2) if args.json else table(result))
    if args.report is not None:
        print(f"report: {write_report(result, args.report)}", file=sys.stderr)
    return 0


def _run_under_mpirun(num_ranks: int, arguments: list[str], scratch: Path) -> None:
    """Measure in a world that mpirun starts. Raises LaunchError with the end of its output if it fails."""
    command = mpirun(num_ranks, [sys.executable, "-P", "-m", "frog.measure.peers.peers_rank", *arguments])
    with Program(command, scratch, {"OMP_NUM_THREADS": "1"}) as program:
        code = program.wait(_MPIRUN_S)
        if code != 0:
            how = f"did not end within {_MPIRUN_S:g} s" if code is None else f"ended with exit code {code}"
            last = "\n".join(program.output.splitlines()[-20:])
            raise LaunchError(f"mpirun {how}; its last output:\n{last}", "does mpirun -n 2 hostname work?")


def table(result: Result) -> str:
    """Format the measurement: a line for each operation, size and contender, then the machine's limits."""
    place = "on several nodes" if result.several_nodes else "on one node"
    lines = [
        f"{result.num_ranks} ranks {place}, float32, one thread each; medians of alternating rounds, "
        "the slowest rank's time",
        *(f"  {name:5} {CONTENDERS[name]}" for name in result.contenders),
        "",
        f"{'operation':15}{'bytes':>10}  {'by':5}{'time':>12}{'algbw':>10}{'busbw':>10}{'of limit':>10}"
        + (f"{'gloo / it':>11}" if "gloo" in result.contenders else ""),
    ]
    for row in result.rows:
        ratio = result.times_gloo(row)
        lines.append(
            f"{row.operation:15}{row.num_bytes:>10}  {row.contender:5}{row.time_s * 1e6:>9.1f} us"
            f"{row.algorithm_bytes_per_s / 1e9:>10.3f}{row.bus_bytes_per_s(result.num_ranks) / 1e9:>10.3f}"
            f"{result.share_of_limit(row):>10.1%}" + (f"{ratio:>11.2f}" if ratio else "")
        )
    lines += ["", "GB/s. Limits, measured in the same run with buffers of the same size:"]
    for name, what in LIMITS.items():
        through = ", ".join(contender for contender in result.contenders if result.limit_name(contender) == name)
        if not through:
            continue
        lines.append(f"  {name} ({what}), of {through}:")
        lines += [
            f"{limit.num_bytes:>25}       {limit.time_s * 1e6:>9.1f} us{limit.bytes_per_s / 1e9:>10.3f}"
            for limit in result.limits
            if limit.name == name
        ]
    return "\n".join(lines)


def sizes(text: str) -> tuple[int, ...]:
    """Parse sizes such as 4KiB,1MiB to bytes. Raises argparse's error."""
    sizes_bytes = []
    for word in text.split(","):
        digits = word.rstrip("BKMibkm")
        unit = _UNITS.get(word[len(digits) :].upper())
        number = parse_whole(digits)
        if number is None or unit is None or not 4 <= number * unit <= 1 << 30:
            raise argparse.ArgumentTypeError(
                f"{shortened(word)!r}: expected sizes from 4B to 1024MiB, such as 4KiB,1MiB"
            )
        sizes_bytes.append(number * unit)
    return tuple(sizes_bytes)


def check_world(num_ranks: int) -> None:
    """Raise UsageError for a world of one."""
    if num_ranks < 2:
        raise UsageError("a world of one rank has no other rank to communicate with", "--nproc 2")
