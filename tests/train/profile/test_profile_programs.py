"""`frog profile -- my.py`: the profiler in the ranks of a program that is not Frog's, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs.folder import RunFolder
from frog.train.profile.profile_programs import write_page

PROGRAM = """\
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer, other = (torch.optim.SGD(model.parameters()) for _ in range(2))
for step in range(int(sys.argv[1])):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    other.step()
print("reached its end")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def program(harness: Harness) -> str:
    (harness.root / "prof_it.py").write_text(PROGRAM)
    return "prof_it.py"


@pytest.mark.slow
def test_recorded_steps_of_each_rank_are_in_its_trace_and_the_program_ends(harness: Harness, program: str) -> None:
    done = harness.run("frog", "profile", "--nproc", "2", "--after", "3", "--steps", "2", "--", program, "100000")
    folder = harness.folder("prof_it")
    assert "Steps 4 to 5 of the program's optimizer." in done.stdout
    assert "reached its end" not in done.stdout
    for rank in (0, 1):
        events = json.loads((folder.profile / f"rank_{rank}.trace.json").read_text())["traceEvents"]
        names = [event["name"] for event in events if event.get("ph") == "X"]
        assert [name for name in names if name.startswith("frog::")] == ["frog::step 4", "frog::step 5"]
        assert sum(name == "Optimizer.step#SGD.step" for name in names) in (3, 4)  # two optimizers, and two steps
    assert (folder.profile / "summary.md").read_text() in done.stdout


@pytest.mark.slow
def test_program_with_too_few_steps_is_an_error_that_says_so(harness: Harness, program: str) -> None:
    done = harness.run("frog", "profile", "--nproc", "1", "--after", "9", "--", program, "3", code=2)
    assert "took fewer than 12 steps of a torch optimizer" in done.stderr


def test_usage_errors_name_the_command_to_type(harness: Harness) -> None:
    done = harness.run("frog", "profile", "--name", "x", "--", "my.py", code=2)
    assert "--set and --name are for runs of Frog's own trainer" in done.stderr
    done = harness.run("frog", "profile", "run.toml", "more", code=2)
    assert "more is one word too many" in done.stderr


def test_folder_without_recorded_steps_has_no_page(tmp_path: Path) -> None:
    assert write_page(RunFolder(tmp_path)) == ""
    assert not (tmp_path / "profile").exists()
