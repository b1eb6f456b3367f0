"""A user's own program in pods: `frog run --from` runs the manifest that `frog submit -- my.py` renders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs.observed import read_observed

PROGRAM = r"""
import os, sys
import torch
import torch.distributed as dist
from pack.part import NAME

dist.init_process_group("gloo")
rank = dist.get_rank()
if "fail" in sys.argv and rank == 1:
    raise RuntimeError("no samples")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {rank} of {int(total)} {NAME} {sys.argv[1:]}\n", end="", flush=True)  # in one write
if rank == 0:
    open("result.txt", "w").write(open("configs/a.yaml").read())
dist.destroy_process_group()
"""


@pytest.fixture
def here(tmp_path: Path, may_make_pods: None) -> Harness:
    """Create a folder with a program of one module, which reads a file that its command names."""
    for name, text in {"my.py": PROGRAM, "pack/part.py": "NAME = 'net'\n", "configs/a.yaml": "a: 1\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return Harness(tmp_path)


def render(here: Harness, *words: str, options: Sequence[str] = ()) -> None:
    world = ["--to", "kubernetes", "--nodes", "2", "--ranks-per-node", "1", "--no-gpus", "--image", "any"]
    done = here.run("frog", "submit", *world, *options, "--dry-run", "--", "my.py", *words)
    (here.root / "k8s.yaml").write_text(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pod"), [("job", "frog-my-"), pytest.param("trainjob", "frog-my-node-0-", marks=pytest.mark.slow)]
)
def test_program_runs_in_pods_and_its_results_stay(here: Harness, kind: str, pod: str) -> None:
    """The pods use only the files of the manifest: the program's own folder changes in between."""
    render(here, "configs/a.yaml", "$(HOME) $$x 'y'", options=["--kind", kind])
    (here.root / "my.py").write_text("raise SystemExit('the file on this machine')")
    done = here.run("frog", "run", "--from", "k8s.yaml")
    for rank in range(2):
        said = f"{pod}{rank} | [rank{rank}]: rank {rank} of 2 net ['configs/a.yaml', \"$(HOME) $$x 'y'\"]"
        assert said in done.stdout.splitlines()
    work = here.root / "volumes" / "frog-work"
    assert (work / "result.txt").read_text() == "a: 1\n"
    assert (work / "my.py").read_text() == PROGRAM
    assert not list(work.glob("**/*.frog-my-*")), "no half-copied file"
    (folder,) = (work / "runs").iterdir()
    assert [*read_observed(folder)] == [0]


@pytest.mark.slow
def test_failure_in_pods_is_diagnosed_from_the_volume(here: Harness) -> None:
    """The Job's restart begins in new pods, whose ranks leave the first ones' files alone."""
    render(here, "configs/a.yaml", "fail", options=["--restarts", "1"])
    done = here.run("frog", "run", "--from", "k8s.yaml", code=1)
    assert "Job frog-my failed (BackoffLimitExceeded)" in done.stderr
    (folder,) = (here.root / "volumes" / "frog-work" / "runs").iterdir()
    assert {attempt: sorted(ranks) for attempt, ranks in read_observed(folder).items()} == {0: [0, 1], 1: [0, 1]}
    answer = json.loads(here.run("frog", "diagnose", str(folder), "--json").stdout)
    assert (answer["fault"], answer["rank"]) == ("raise", 1)
    assert answer["line"].endswith("my.py:10")


TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}
  trainer:
    numNodes: 2
    numProcPerNode: 1
    command: [torchrun, --no-python, python, -c]
    args:
      - |
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"rank {dist.get_rank()} of {int(total)}", flush=True)
        dist.destroy_process_group()
"""


@pytest.mark.slow
def test_train_job_runs_torchrun_in_its_pods(here: Harness) -> None:
    (here.root / "tune.yaml").write_text(TRAIN_JOB)
    done = here.run("frog", "run", "--from", "tune.yaml")
    said = {f"tune-node-0-{rank} | rank {rank} of 2" for rank in range(2)}
    assert said <= set(done.stdout.splitlines())
    assert "TrainJob tune is complete" in done.stderr
