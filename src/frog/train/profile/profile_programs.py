"""`frog profile -- my.py`: a program that is not Frog's, profiled by its observer for a few optimizer steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from frog.core.errors import RunError
from frog.core.files import write_atomic
from frog.core.runs.event_schema import Rank
from frog.core.runs.folder import RunFolder
from frog.core.schema import Typed, read_bounded, read_typed

_MOST_TABLE_BYTES = 1 << 20


class ProfiledRank(Typed, frozen=True, kw_only=True):
    """profile/rank_N.json: what the observer recorded of a rank."""

    KIND: ClassVar[str] = "a rank's profile"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    pid: int
    steps: tuple[int, int]
    """The first and last recorded step of the program's optimizer."""
    took_ms: list[float] = msgspec.field(default_factory=list)


def profile_program(program: Sequence[str], nproc: int, threads: int | None, after: int, steps: int, stop: bool) -> int:
    """Run a program with the profiler in each rank, and print the page; return the exit code."""
    from frog.launch.node_agents import Options
    from frog.launch.world import run_and_answer

    asked = {"FROG_PROFILE": f"{after},{steps},{0 if stop else 1}"}
    hooks = ("frog_observer", "frog_observer.profiler")
    options = Options(threads=threads, extra_env=asked, runs=Path("runs"), hooks=hooks)
    pages: list[str] = []

    def show(folder: Path) -> int:
        pages.append(write_page(RunFolder(folder)))
        print(f"\n{pages[0]}" if pages[0] else "", end="")
        return 0

    code = run_and_answer(nproc, program, options, show)
    if code == 0 and not any(pages):
        raise RunError(
            f"the program took fewer than {after + steps} steps of a torch optimizer, so nothing was recorded",
            f"--after and --steps with a smaller sum than {after + steps}; a step is a call of `optimizer.step()`",
        )
    return code


def write_page(folder: RunFolder) -> str:
    """Write profile/summary.md of a program's run, and return it; empty if no rank has recorded its steps."""
    ranks = [read_typed(path, ProfiledRank) for path in sorted(folder.profile.glob("rank_*.json")) if _is_about(path)]
    if not ranks:
        return ""
    ranks.sort(key=lambda rank: rank.rank)
    first, last = ranks[0].steps
    lines = [f"# Profile of {folder.path.name}", "", f"Steps {first} to {last} of the program's optimizer.", ""]
    lines += ["| rank | ms per step | trace |", "|---|---|---|"]
    for rank in ranks:
        median = statistics.median(rank.took_ms) if rank.took_ms else 0.0
        lines.append(f"| {rank.rank} | {median:.1f} | profile/rank_{rank.rank}.trace.json |")
    lines += ["", f"Operators of rank {ranks[0].rank}, as torch.profiler counts them; the other ranks' are next to it:"]
    table = read_bounded(folder.profile / f"rank_{ranks[0].rank}.txt", most_bytes=_MOST_TABLE_BYTES).decode()
    lines += ["", "```", table.strip("\n"), "```", ""]
    lines += [
        f"Open a trace in https://ui.perfetto.dev or chrome://tracing. This page: {folder.profile}/summary.md",
        "",
    ]
    page = "\n".join(lines)
    write_atomic(folder.profile / "summary.md", page)
    return page


def _is_about(path: Path) -> bool:
    return not path.name.endswith(".trace.json")
