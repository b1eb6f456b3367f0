"""`frog chaos` on programs that are not Frog's: faults at a collective, and the resume test."""

from __future__ import annotations

import shutil

import pytest
from harness import Harness

from frog.core.runs.launcher_schema import ExitEvent

STEPS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, path = dist.get_rank(), "out/last.pt"
print(torch.cuda.device_count(), "GPUs", flush=True)
state = {"step": 0, "weight": torch.zeros(4), "momentum": torch.zeros(4)}
if os.path.exists(path):
    state.update({name: value for name, value in torch.load(path).items() if name in sys.argv[1].split(",")})
for step in range(state["step"], 200):
    gradient = torch.full((4,), float(step + rank))
    dist.all_reduce(gradient)
    state["momentum"] = 0.5 * state["momentum"] + gradient
    state["weight"] = state["weight"] + state["momentum"]
    state["step"] = step + 1
    if state["step"] % 10 == 0:
        if rank == 0:
            os.makedirs("out", exist_ok=True)
            torch.save(state, path + ".new")
            os.replace(path + ".new", path)
        dist.barrier()
    time.sleep(0.01)
dist.destroy_process_group()
"""
WORLD = ("--nproc", "2", "--deadline", "30")


@pytest.fixture
def program(harness: Harness) -> Harness:
    for name in ("out", "out.undisturbed"):
        shutil.rmtree(harness.root / name, ignore_errors=True)
    for name in ("steps.py", "killed.py"):
        (harness.root / name).write_text(STEPS)
    return harness


@pytest.mark.slow
def test_rank_of_a_program_with_simulated_gpus_is_killed_at_a_collective(program: Harness) -> None:
    fault = ("--fault", "kill rank=1 collective=15")
    gpus = ("--simulate-gpus", "3")
    done = program.run("frog", "chaos", *WORLD, *gpus, *fault, "--", "killed.py", "step,weight,momentum", code=137)
    assert "3 GPUs" in done.stdout
    assert "was killed by SIGKILL" in done.stderr
    assert "see the evidence: frog diagnose latest" in done.stderr
    exits = [event for event in program.events("killed").launcher if isinstance(event, ExitEvent)]
    assert {event.rank for event in exits if event.code == -9} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "code", "lines"),
    [
        ("step,weight,momentum", 0, ["2 of 2 tensors are equal", "passed: the resumed run ends where the undisturbed"]),
        ("step,weight", 1, ["1 of 2 tensors are equal", "weight differs by up to", "failed: the resumed run is not"]),
    ],
)
def test_resume_test_finds_a_state_that_is_not_restored(
    program: Harness, names: str, code: int, lines: list[str]
) -> None:
    words = ("--fault", "kill rank=1 collective=28", "--resume-test", "out", "--resume-args=--resume")
    done = program.run("frog", "chaos", *WORLD, *words, "--", "steps.py", names, code=code)
    assert "resume test, run 2 of 3: kill rank=1 collective=28: exit code 137" in done.stdout
    assert "resume test, run 3 of 3: resumed with --resume: exit code 0" in done.stdout
    for line in lines:
        assert line in done.stdout
