"""Run a learner's job files on a two-node Slurm: submitted as by sbatch, under the limits of any program.

`python -m frog.learn.grader.jobs CLUSTER REQUEST.json` submits the files to the real Slurm that runs here, or to an
emulator that it starts; it waits until the jobs end and writes their results. The ranks write notes of their own, which
the check reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.cluster.emulator import emulated_cluster as cluster
from frog.core.env import variable
from frog.core.errors import LaunchError, UsageError
from frog.core.processes import take_orphans
from frog.learn.grader.job_clusters import (
    FINISHED,
    NOTES,
    EmulatedSlurm,
    JobCluster,
    RealSlurm,
    end_jobs,
    running_slurm,
)

if TYPE_CHECKING:
    from frog.learn.grader.grade import Grade  # loads torch, which the program below does not need

_JOBS_S = 30.0
_POLL_S = 0.1
_EMULATOR, _RECORD = "cluster", "jobs"


@dataclass(frozen=True)
class Job:
    """The result of a job file."""

    file: str
    slurm: str
    """The cluster that ran the job: the name and version of a real Slurm, or the emulator."""
    state: str
    """Slurm's state, such as COMPLETED; REFUSED if sbatch rejected the file, RUNNING if the job has not ended."""
    exit: str
    """Exit status as `code:signal`."""
    restarts: int
    limit_min: int | None
    said: str
    """The end of the job's log, or sbatch's refusal."""
    notes: list[list[Any]] = field(default_factory=list)
    """The ranks' notes: lines of notes/JOB.jsonl in chronological order.

    On the emulator, `requeue` marks the moment at which the job's script called `scontrol requeue`.
    """

    @property
    def title(self) -> str:
        """The file and its cluster, for the beginning of a verdict."""
        return f"{self.file}, on {self.slurm}"

    def noted(self, what: str) -> list[Any]:
        """Return the values of all notes of one kind."""
        return [note[-1] for note in self.notes if note[-2] == what]


def run_jobs(
    grade: Grade, names: Sequence[str], files: Mapping[str, str], near_limit: Mapping[str, Any] | None = None
) -> dict[str, Job]:
    """Run job files concurrently on 2 nodes, each with its own log, and return their results.

    Uses the real Slurm that `running_slurm` finds, else the emulator.

    near_limit: {"of": names, "when": what, "count": n, "end": "now+8seconds", "until": other}: sets the time limit of
    these jobs to `end` when their ranks have noted `when` n times, and far in the future when one has noted `until`.
    These jobs always run on the emulator: a real Slurm checks time limits only every 30 s.

    Ranks find in SLOWNESS the factor by which to extend their timeouts on this machine.
    """
    place = Path(tempfile.mkdtemp(prefix="frog-learn-slurm-"))
    try:
        most_s = _JOBS_S * grade.slowness
        request = {"names": list(names), "near_limit": near_limit, "real": running_slurm(), "most_s": most_s}
        words = [sys.executable, "-P", "-m", "frog.learn.grader.jobs", str(place), "request.json"]
        path = [_names_of_nodes(place / "bin"), Path(sys.executable).parent, variable("PATH") or os.defpath]
        env = {"PATH": os.pathsep.join(map(str, path)), "SLOWNESS": f"{grade.slowness:g}"}
        given = {**files, "request.json": json.dumps(request)}
        ended = grade.program(words, files=given, env=env, seconds=30.0, writes=[place])
        if ended.code != 0:
            raise LaunchError(f"the cluster of this check did not finish\n{ended.err}")
        tables = json.loads((ended.folder / "jobs.json").read_text())
        return {name: Job(**table) for name, table in tables.items()}
    finally:  # remove the program's leftovers if it was killed
        end_jobs(place / _RECORD)
        with contextlib.suppress(UsageError):
            cluster.down(place / _EMULATOR)
        shutil.rmtree(place, ignore_errors=True)


def _names_of_nodes(folder: Path) -> Path:
    """Create a folder with a program `hostname` that prints the names of simulated nodes."""
    folder.mkdir()
    (folder / "hostname").write_text('#!/bin/sh\necho "$SLURMD_NODENAME"\n')
    (folder / "hostname").chmod(0o755)
    return folder


# ---- the program -----------------------------------------------------------------------------------------------------


def main(place: Path, request: dict[str, Any]) -> None:
    """Submit each job to its cluster and wait for all of them."""
    take_orphans()
    near_limit = request["near_limit"] or {"of": []}
    with contextlib.ExitStack() as clusters:
        real = clusters.enter_context(RealSlurm(request["real"], place / _RECORD)) if request["real"] else None
        emulated = None
        if real is None or near_limit["of"]:
            emulated = clusters.enter_context(EmulatedSlurm(place / _EMULATOR))
        on: dict[str, JobCluster] = {}
        for name in request["names"]:
            one = emulated if real is None or name in near_limit["of"] else real
            assert one is not None
            on[name] = one
        numbers = {name: on[name].submit(name) for name in request["names"]}
        started = {name: number for name, number in numbers.items() if isinstance(number, int)}
        jobs = _wait(started, on, near_limit, request["most_s"])
        results = {name: _result_of(name, on[name].name, number, jobs) for name, number in numbers.items()}
    Path("jobs.json").write_text(json.dumps(results))


def _wait(
    numbers: Mapping[str, int], on: Mapping[str, JobCluster], near_limit: Mapping[str, Any], most_s: float
) -> dict[int, dict[str, Any]]:
    """Return the jobs' states once all have ended, or after a timeout."""
    deadline = time.monotonic() + most_s
    ahead = {numbers[name]: ["when", "until"] for name in near_limit["of"] if name in numbers}
    jobs: dict[int, dict[str, Any]] = {}
    while True:
        for slurm in set(on.values()):
            here = [number for name, number in numbers.items() if on[name] is slurm]
            jobs |= slurm.look([number for number in here if not _has_ended(jobs.get(number))])
        if all(map(_has_ended, jobs.values())) or time.monotonic() > deadline:
            return jobs
        for name, number in numbers.items():
            slurm, left = on[name], ahead.get(number)
            if isinstance(slurm, EmulatedSlurm) and left and jobs[number]["state"] == "RUNNING":
                _move_limit(slurm, number, left, near_limit)
        time.sleep(_POLL_S)


def _has_ended(job: Mapping[str, Any] | None) -> bool:
    return job is not None and job["state"] in FINISHED


def _move_limit(emulator: EmulatedSlurm, number: int, left: list[str], near_limit: Mapping[str, Any]) -> None:
    """Move the job's time limit near, or far away again, once the awaited notes have appeared."""
    count = near_limit["count"] if left[0] == "when" else 1
    if sum(note[-2] == near_limit[left[0]] for note in _notes(number)) >= count:
        emulator.update(number, *(("endtime", near_limit["end"]) if left[0] == "when" else ("timelimit", "60")))
        left.pop(0)


def _result_of(name: str, slurm: str, number: int | str, jobs: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(number, str):
        refused = {"file": name, "slurm": slurm, "state": "REFUSED", "exit": "", "restarts": 0}
        return {**refused, "limit_min": None, "said": number}
    job = jobs[number]
    state = job["state"] if _has_ended(job) else "RUNNING"
    log = Path(job["stdout"])
    said = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
    table = {"file": name, "slurm": slurm, "state": state, "exit": job["exit"], "restarts": job["restarts"]}
    return {**table, "said": said, "limit_min": job["limit_min"], "notes": _notes(number)}


def _notes(number: int) -> list[list[Any]]:
    path = Path(NOTES) / f"{number}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
