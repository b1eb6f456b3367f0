"""The clusters that run a learner's job files: the Slurm emulator, or a real Slurm that the learner has started."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator import emulated_cluster as cluster
from frog.cluster.emulator.notation import parse_time_limit
from frog.cluster.emulator.sbatch import sbatch
from frog.cluster.emulator.wire import read_client
from frog.cluster.slurm.slurm_programs import find_program
from frog.core.env import child_env, replace_env, variable

NODES = ("node1", "node2")
FINISHED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"}
EMULATOR = "the Slurm emulator"
NOTES = "notes"
"""The folder below the submission folder in which the ranks write their notes, a file per job."""
_ANSWER_S = 5.0
_GONE_S = 15.0


class JobCluster(Protocol):
    """The interface of both clusters."""

    name: str

    def submit(self, file: str) -> int | str:
        """Submit a job file. Return the job's number, or the reason for a refusal."""

    def look(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return state, exit, restarts, limit_min and stdout of each job."""


class EmulatedSlurm:
    """The emulator, started for one check. It enforces time limits five times a second."""

    name = EMULATOR

    def __init__(self, place: Path) -> None:
        self._place = place

    def __enter__(self) -> Self:
        cluster.up(self._place, len(NODES), 4, 32, kill_wait_s=0.5, look_s=0.2)
        _note_requeues(self._place / "bin" / "scontrol", Path.cwd() / NOTES)
        replace_env(child_env(**cluster.environment(self._place)))
        self._client = read_client(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        cluster.down(self._place)

    def submit(self, file: str) -> int | str:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as wrong:
            try:
                code = sbatch(self._client, ["--parsable", file])
            except SlurmRefusal as refusal:
                return str(refusal)
        return int(said.getvalue()) if code == 0 else wrong.getvalue()

    def look(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        wanted = set(numbers)
        return {job["id"]: job for job in self._client.ask("look")["jobs"] if job["id"] in wanted}

    def update(self, number: int, name: str, value: str) -> None:
        """Change the job's `endtime` or `timelimit`, if it has not ended."""
        with contextlib.suppress(SlurmRefusal):
            self._client.ask("update", job=str(number), name=name, value=value)


def _note_requeues(scontrol: Path, notes: Path) -> None:
    """Let the emulator's `scontrol` first note each requeue among the notes of the job's ranks.

    The requeue itself can follow seconds later: on a busy machine, the Python program that requests it starts slowly.
    """
    first, rest = scontrol.read_text().split("\n", 1)
    note = f"""printf '[0, %d, "requeue", null]\\n' $$ >> {shlex.quote(str(notes))}/"$SLURM_JOB_ID.jsonl\""""
    test = f'for word in "$@"; do if [ "$word" = requeue ] && [ -n "$SLURM_JOB_ID" ]; then {note}; fi; done'
    scontrol.write_text(f"{first}\n{test}\n{rest}")


class RealSlurm:
    """A real Slurm, which keeps running after the check. `record` is a file with the numbers of the check's jobs."""

    def __init__(self, name: str, record: Path) -> None:
        self.name = name
        self._record, self._env = record, child_env()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_jobs(self._record)

    def submit(self, file: str) -> int | str:
        done = _ask("sbatch", "--parsable", file, env=self._env, timeout_s=30.0)
        if done.returncode != 0:
            return done.stderr
        number = int(done.stdout.strip().partition(";")[0])
        with open(self._record, "a") as record:
            record.write(f"{number}\n")
        return number

    def look(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        return {number: self._look(number) for number in numbers}

    def _look(self, number: int) -> dict[str, Any]:
        done = _ask("scontrol", "--oneliner", "show", "job", str(number), env=self._env, timeout_s=30.0)
        fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
        limit = fields["TimeLimit"].replace("365-00:00:00", "UNLIMITED")  # Slurm shows no limit as one year
        return {
            "state": fields["JobState"],
            "exit": fields["ExitCode"],
            "restarts": int(fields["Restarts"]),
            "limit_min": parse_time_limit(limit),
            "stdout": fields["StdOut"],
        }


def running_slurm() -> str | None:
    """Return the name and version of a real Slurm that can run a check's jobs: two idle nodes of `frog slurm up`.

    On any other cluster a job might wait for hours, or run on a node without access to the check's folder.
    """
    program = shutil.which("sbatch")
    if program is None or program != find_program("sbatch") or variable("SLURM_CONF") is None:
        return None
    try:
        nodes = _ask("sinfo", "--noheader", "--Node", "--format=%N %o %T")
        version = _ask("sbatch", "--version").stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = nodes.stdout.splitlines()
    ours = all(any(re.match(rf"{name} +127\.\S+ +idle", line) for line in lines) for name in NODES)
    return f"Slurm {version[-1]}" if ours and version else None


def end_jobs(record: Path) -> None:
    """Cancel a check's remaining jobs on the real Slurm, and wait until they have ended."""
    numbers = record.read_text().split() if record.is_file() else []
    deadline = time.monotonic() + _GONE_S
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        while numbers and time.monotonic() < deadline:
            left = _ask("squeue", "--noheader", "--format=%i", f"--jobs={','.join(numbers)}").stdout.split()
            if not left:
                return
            _ask("scancel", "--full", "--signal=KILL", *left)
            _ask("scancel", *left)
            time.sleep(0.1)


def _ask(
    *words: str, env: dict[str, str] | None = None, timeout_s: float = _ANSWER_S
) -> subprocess.CompletedProcess[str]:
    program = [find_program(words[0]), *words[1:]]
    return subprocess.run(program, env=env, capture_output=True, text=True, timeout=timeout_s)
