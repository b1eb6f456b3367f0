"""Job files of a learner on an emulated Slurm: submitted as with sbatch, under the limits of any program.

`python -m frog.grader.jobs CLUSTER REQUEST.json` is that program: it starts the cluster, submits the files,
waits for their end and writes what became of them. What the ranks saw they note themselves; the check reads it.
"""

from __future__ import annotations

import contextlib
import io
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

from frog.core.env import child_env, replace_env, variable
from frog.core.errors import LaunchError, UsageError
from frog.core.processes import take_orphans
from frog.slurm.emulator import cluster
from frog.slurm.emulator.refusal import SlurmRefusal
from frog.slurm.emulator.sbatch import sbatch
from frog.slurm.emulator.wire import Client, read_client

if TYPE_CHECKING:
    from frog.grader.grade import Grade  # loads torch, which the program below has no need of

_FINISHED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"}
_POLL_S = 0.02


@dataclass(frozen=True)
class Job:
    """What became of a job file."""

    file: str
    state: str
    """Slurm's word, such as COMPLETED; REFUSED if sbatch did not take it, RUNNING if it goes on."""
    exit: str
    """`code:signal`."""
    restarts: int
    limit_min: int | None
    said: str
    """What its log holds at the end, or sbatch's refusal."""
    notes: list[list[Any]] = field(default_factory=list)
    """What its ranks noted: lines of NOTES/JOB.jsonl, in the order of time."""

    def noted(self, what: str) -> list[Any]:
        """The values of all notes of one kind."""
        return [note[-1] for note in self.notes if note[-2] == what]


def run_jobs(
    grade: Grade, names: Sequence[str], files: Mapping[str, str], near_limit: Mapping[str, Any] | None = None
) -> dict[str, Job]:
    """Run job files side by side on 2 nodes, each alone with its log, and tell what became of each.

    near_limit: {"when": what, "count": n, "end": "now+8seconds", "until": other}: the time limit of a job is moved
    there when its ranks have noted that n times, and far away again when one has noted the other thing.
    """
    place = Path(tempfile.mkdtemp(prefix="frog-learn-slurm-"))
    try:
        request = json.dumps({"names": list(names), "near_limit": near_limit})
        words = [sys.executable, "-m", "frog.grader.jobs", str(place / "cluster"), "request.json"]
        path = [_names_of_nodes(place / "bin"), Path(sys.executable).parent, variable("PATH") or os.defpath]
        env = {"PATH": os.pathsep.join(map(str, path))}
        ended = grade.program(words, files={**files, "request.json": request}, env=env, seconds=30.0)
        if ended.code != 0:
            raise LaunchError(f"the cluster of this check did not come to its end\n{ended.err}")
        found = json.loads((ended.folder / "jobs.json").read_text())
        return {name: Job(**table) for name, table in found.items()}
    finally:
        with contextlib.suppress(UsageError):  # it was ended before, as it should be
            cluster.down(place / "cluster")
        shutil.rmtree(place, ignore_errors=True)


def _names_of_nodes(folder: Path) -> Path:
    """A folder with a program `hostname` that knows the names of pretended nodes."""
    folder.mkdir()
    (folder / "hostname").write_text('#!/bin/sh\necho "$SLURMD_NODENAME"\n')
    (folder / "hostname").chmod(0o755)
    return folder


# ---- in the program --------------------------------------------------------------------------------------------------


def main(place: Path, request: dict[str, Any]) -> None:
    """Start the cluster, run the jobs, end it."""
    take_orphans()
    cluster.up(place, 2, 4, 32, kill_wait_s=1.0, look_s=0.2)
    try:
        replace_env(child_env(**cluster.environment(place)))
        client = read_client(place)
        numbers = {name: _submit(client, name) for name in request["names"]}
        jobs = _wait(client, [number for number in numbers.values() if isinstance(number, int)], request["near_limit"])
        Path("jobs.json").write_text(json.dumps({name: _told(name, n, jobs) for name, n in numbers.items()}))
    finally:
        cluster.down(place)


def _submit(client: Client, name: str) -> int | str:
    """The job's number, or why there is none."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as wrong:
        try:
            code = sbatch(client, ["--parsable", name])
        except SlurmRefusal as refusal:
            return str(refusal)
    return int(said.getvalue()) if code == 0 else wrong.getvalue()


def _wait(client: Client, numbers: Sequence[int], near_limit: Mapping[str, Any] | None) -> dict[int, dict[str, Any]]:
    """The jobs as they stand when all have ended, or after 30 s."""
    deadline = time.monotonic() + 30
    ahead = {number: ["when", "until"] for number in numbers if near_limit is not None}
    while True:
        jobs = {job["id"]: job for job in client.ask("look")["jobs"] if job["id"] in numbers}
        if all(job["state"] in _FINISHED for job in jobs.values()) or time.monotonic() > deadline:
            return jobs
        for number, left in ahead.items():
            if near_limit is not None and left and jobs[number]["state"] == "RUNNING":
                _move_limit(client, number, left, near_limit)
        time.sleep(_POLL_S)


def _move_limit(client: Client, number: int, left: list[str], near_limit: Mapping[str, Any]) -> None:
    """If what it waits for was noted: the limit comes near, or goes away again."""
    count = near_limit["count"] if left[0] == "when" else 1
    if sum(note[-2] == near_limit[left[0]] for note in _notes(number)) >= count:
        name, value = ("endtime", near_limit["end"]) if left[0] == "when" else ("timelimit", "60")
        with contextlib.suppress(SlurmRefusal):  # it has ended since it was looked at
            client.ask("update", job=str(number), name=name, value=value)
        left.pop(0)


def _told(name: str, number: int | str, jobs: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(number, str):
        return {"file": name, "state": "REFUSED", "exit": "", "restarts": 0, "limit_min": None, "said": number}
    job = jobs[number]
    state = job["state"] if job["state"] in _FINISHED else "RUNNING"
    log = Path(job["stdout"])
    said = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
    table = {"file": name, "state": state, "exit": job["exit"], "restarts": job["restarts"], "said": said}
    return {**table, "limit_min": job["limit_min"], "notes": _notes(number)}


def _notes(number: int) -> list[list[Any]]:
    path = Path("notes") / f"{number}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
