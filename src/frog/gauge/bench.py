"""`frog collectives bench`: how fast collectives are on this machine, ours beside others."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frog.core.errors import UsageError
from frog.gauge.measurement import CONTENDERS, Request, Row
from frog.launch.commands import read_world
from frog.launch.world import run_world

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20}


def bench(args: argparse.Namespace) -> int:
    """Start a world that measures, and print what came out."""
    nodes, options = read_world(args)
    check_world(nodes.most * nodes.ranks)
    contenders = ("frog", *args.against)
    request = Request(args.operations, args.sizes, contenders, args.rounds)
    with tempfile.TemporaryDirectory(prefix="frog-bench-") as scratch:
        asked, found = Path(scratch) / "request.json", Path(scratch) / "result.json"
        request.write(asked)
        if code := run_world(nodes, ["collectives", str(asked), str(found)], options):
            return code
        result = json.loads(found.read_text())
    num_ranks = nodes.most * nodes.ranks
    rows = [Row(**row) for row in result["rows"]]
    if args.json:
        print(json.dumps({"ranks": num_ranks, **result}, indent=2))
    else:
        print(table(rows, num_ranks, result["copy_bytes_per_s"], nodes.several))
    return 0


def table(rows: Sequence[Row], num_ranks: int, copy_bytes_per_s: float, several_nodes: bool) -> str:
    """The measurement as text: a line for each operation, size and contender."""
    contenders = list(dict.fromkeys(row.contender for row in rows))
    place = "on several nodes" if several_nodes else "on one node"
    lines = [
        f"{num_ranks} ranks {place}, float32, one thread each; medians of rounds in turn, the slowest rank's time",
        *(f"  {name:5} {CONTENDERS[name]}" for name in contenders),
        "",
        f"{'operation':15}{'bytes':>10}  {'by':5}{'time':>12}{'algbw':>10}{'busbw':>10}"
        + (f"{'gloo / it':>11}" if "gloo" in contenders else ""),
    ]
    gloo = {(row.operation, row.num_bytes): row.time_s for row in rows if row.contender == "gloo"}
    for row in rows:
        ratio = gloo.get((row.operation, row.num_bytes))
        lines.append(
            f"{row.operation:15}{row.num_bytes:>10}  {row.contender:5}{row.time_s * 1e6:>9.1f} us"
            f"{row.algorithm_bytes_per_s / 1e9:>10.3f}{row.bus_bytes_per_s(num_ranks) / 1e9:>10.3f}"
            + (f"{ratio / row.time_s:>11.2f}" if ratio and row.contender != "gloo" else "")
        )
    lines += ["", f"GB/s. Copying 64 MiB of memory, all ranks at once: {copy_bytes_per_s / 1e9:.1f} GB/s each."]
    return "\n".join(lines)


def sizes(text: str) -> tuple[int, ...]:
    """Sizes such as 4KiB,1MiB in bytes. Raises argparse's error."""
    found = []
    for word in text.split(","):
        digits = word.rstrip("BKMibkm")
        unit = _UNITS.get(word[len(digits) :].upper())
        if not digits.isdecimal() or unit is None or not 4 <= int(digits) * unit <= 1 << 30:
            raise argparse.ArgumentTypeError(f"{word!r}: sizes from 4B to 1024MiB, such as 4KiB,1MiB")
        found.append(int(digits) * unit)
    return tuple(found)


def check_world(num_ranks: int) -> None:
    """Raise UsageError for a world of one."""
    if num_ranks < 2:
        raise UsageError("a world of one has nobody to talk to", "--nproc 2")
