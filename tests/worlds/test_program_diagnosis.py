"""`frog run` of a plain torch program with a planted bug, and what `frog diagnose` says about the run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import Harness, run_to_end

PLANTED = Path(__file__).parents[1] / "observe/diagnose/program/planted.py"


class Expected(NamedTuple):
    """What a diagnosis must say."""

    fault: str
    rank: int | None
    line: bool = True
    """True if it must name the line with the comment `odd`."""
    peer_line: bool = False
    """True if it must name the line with the comment `waits`."""


FAST = {"branch": Expected("branch", 0, peer_line=True)}
SLOW = {
    "loop": Expected("busy", 1, peer_line=True),
    "error": Expected("raise", 1),
    "skipped": Expected("skipped", 1, line=False, peer_line=True),
    "batches": Expected("batches", 1, line=False, peer_line=True),
    "not_finite": Expected("nan", 1),
    "early_exit": Expected("ended", 1, line=False, peer_line=True),
    "loader": Expected("loader", 1, line=False),
    "shape": Expected("shape", None),
    "both_send": Expected("message", 0),
    "batch": Expected("message", 1, peer_line=True),
    "kill": Expected("kill", 1, line=False),
    "leave": Expected("exit", 1, line=False),
    "slow": Expected("slow", 1),
    "worker": Expected("blocked", 1, peer_line=True),
    "grows": Expected("growth", None, line=False),
    "dtype": Expected("dtype", 1),
    "stale_world": Expected("world_size", None),
    "members": Expected("groups", 1),
    "healthy": Expected("none", None, line=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*FAST, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOW)])
def test_planted_bug_is_found_with_its_rank_and_line(harness: Harness, bug: str) -> None:
    shutil.copy(PLANTED, harness.root / "train_it.py")
    run_to_end(harness.start("frog", "run", "--nproc", "2", "--", "train_it.py", bug, "10", warm=True))
    found = json.loads(harness.run("frog", "diagnose", "latest", "--json").stdout)
    expected = {**FAST, **SLOW}[bug]
    told = (found["fault"], found["rank"] if expected.rank is not None else None)
    assert told == (expected.fault, expected.rank), found["finding"]
    for wanted, name, mark in ((expected.line, "line", "odd"), (expected.peer_line, "peer_line", "waits")):
        if wanted:
            assert re.match(r"train_it.py:(\d+)", found[name] or "x"), found["finding"]
            number = int(re.findall(r":(\d+)", found[name])[0])
            assert f"# {mark}: {bug}" in PLANTED.read_text().splitlines()[number - 1], found["finding"]


DETAIL = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(4))
if "differs" in sys.argv:
    dist.all_reduce(torch.ones(4 + 2 * dist.get_rank()))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "fault", "line"), [((), "none", None), (("differs",), "shape", "two.py:7")])
def test_program_with_torchs_debug_level_detail_is_diagnosed(
    harness: Harness, words: tuple[str, ...], fault: str, line: str | None
) -> None:
    (harness.root / "two.py").write_text(DETAIL)
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    run_to_end(harness.start("frog", "run", "--nproc", "2", "--", "two.py", *words, env=detail), 120)
    found = json.loads(harness.run("frog", "diagnose", "latest", "--json").stdout)
    assert (found["fault"], found["line"], found["certain"]) == (fault, line, True)
