"""`frog run` of programs that are not Frog's: their run folder, their output, and the error of a failed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs.launcher_schema import ExitEvent, LauncherEndEvent, WorldEvent
from frog.observe.view.merged_logs import Choice, Logs

BAD_BATCH = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(4)
print("ready", file=sys.stderr)
for step in range(5):
    dist.all_reduce(x)
    if rank == 1 and step == 2:
        raise ValueError(f"bad batch at step {step}")
"""
ONCE = """#!/bin/sh
echo "attempt of $RANK"
if mkdir "failed-$RANK" 2> /dev/null; then exit 3; fi
printf 'no end'
"""


def test_first_failure_is_printed_last_and_recorded(harness: Harness) -> None:
    (harness.root / "my.py").write_text(BAD_BATCH)
    done = harness.run("frog", "run", "--nproc", "3", "--", "my.py", code=1)
    assert done.stdout.count("rank 0 | ready\n") == 1
    first, *traceback, others, hint = done.stderr.partition("error: ")[2].splitlines()
    assert first.startswith("rank 1 (pid ")
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: bad batch at step 2"
    assert others == "2 other ranks failed because of it"
    assert "runs/my/logs/rank_1/train.log" in hint
    run, record = harness.events("my"), harness.record("my")
    assert run.file is not None
    assert run.file.program is not None
    assert (run.file.program.command, run.file.program.kind) == (["my.py"], "script")
    assert (record["status"], record["error"]["rank"], record["error"]["type"]) == ("failed", 1, "ValueError")
    (attempt,) = run.attempts
    assert {event.rank for event in attempt.exits} == {0, 1, 2}
    assert attempt.end is not None
    assert attempt.end.code == 1
    entries = Logs(harness.folder("my"), Choice(ranks=[1])).read(close=True)
    assert [entry.lines[-1] for entry in entries][-1] == "ValueError: bad batch at step 2"
    listed = harness.run("frog", "runs").stdout
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("my ")] == [["my", "failed", "3"]]


@pytest.mark.slow
def test_frog_does_not_import_a_module_of_the_current_directory(tmp_path: Path) -> None:
    """Neither the agents nor the store. The program does not see it either: its own folder is first on the path."""
    (tmp_path / "queue.py").write_text("raise SystemExit('imported the queue.py of the current directory')")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "my.py").write_text("import queue; print(queue.Queue().qsize(), 'waiting')")
    done = Harness(tmp_path).run("frog", "run", "--nodes", "2x1", "--", "programs/my.py", warm=False)
    assert done.stdout.count("| 0 waiting") == 2


def test_command_restarts_with_all_attempts_in_its_logs(harness: Harness) -> None:
    (harness.root / "once.sh").write_text(ONCE)
    torchrun = ("torchrun", "--nproc_per_node=2", "--max-restarts=2", "--no-python")
    done = harness.run("frog", "run", "--", *torchrun, "sh", "once.sh")
    assert "restarted (attempt 1): world size 2" in done.stderr
    run = harness.events("once")
    assert [event.code for event in run.launcher if isinstance(event, LauncherEndEvent)] == [0]
    assert harness.record("once")["status"] == "completed"
    assert {event.code for event in run.launcher if isinstance(event, ExitEvent)} <= {3, -15}
    for rank in (0, 1):
        texts = [entry.lines for entry in Logs(harness.folder("once"), Choice(ranks=[rank])).read(close=True)]
        assert texts[-2:] == [[f"attempt of {rank}"], ["no end"]]


@pytest.mark.slow
def test_module_runs_on_simulated_nodes_with_its_host_on_each_line(harness: Harness) -> None:
    (harness.root / "where.py").write_text("import os; print(os.environ['FROG_NODE_NAME'], os.environ['RANK'])")
    done = harness.run("frog", "run", "--nodes", "2x1", "--no-observe", "--", "-m", "where")
    lines = [line.split() for line in done.stdout.splitlines() if " | " in line]
    assert {(host, rank) for host, _, rank, *_ in lines} == {("node0", "0"), ("node1", "1")}
    assert all(said == [host, rank] for host, _, rank, _, *said in lines)
    run = harness.events("where")
    assert sorted(rank for event in run.launcher if isinstance(event, WorldEvent) for rank in event.ranks) == [0, 1]
    assert not (harness.folder("where").path / "observed").exists()


@pytest.mark.slow
def test_script_of_frogs_trainer_keeps_its_own_run_folder(harness: Harness) -> None:
    (harness.root / "page.py").write_text(
        "import sys\nfrom frog.train.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    done = harness.run("frog", "run", "--nproc", "1", "--", "page.py", "run.toml", "--set", "name=own")
    assert "run folder" not in done.stderr
    assert harness.record("own")["status"] == "completed"
    assert not harness.folder("page").path.exists()
