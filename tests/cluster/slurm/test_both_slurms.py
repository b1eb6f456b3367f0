"""The same job files under a real Slurm and under the emulator: the same variables, exit codes, output files.

Without an installed Slurm, the tests compare the emulator with results of a real one recorded in jobs/recorded.json.
FROG_RECORD_SLURM=1 rewrites that file; with an installed Slurm, the tests also check the record.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S, wait_until

from frog.cluster.emulator import emulated_cluster as emulator_cluster
from frog.cluster.slurm.slurm_programs import missing_programs

pytestmark = [pytest.mark.slow, pytest.mark.alone]

JOBS = Path(__file__).parent / "jobs"
RECORD = JOBS / "recorded.json"
NODES, GPUS_PER_NODE, CPUS_PER_NODE = 2, 4, 64
"""Nodes, GPUs and CPUs as in the fixture real_slurm."""

CHAIN = ("--job-name=variables", "--dependency=singleton")
FILES: dict[str, tuple[list[str], list[str]]] = {
    # These jobs run one after another, so that each finds all GPUs free: the test compares GPU numbers.
    "env_exclusive": ([*CHAIN], []),
    "env_nodes": ([*CHAIN], []),
    "env_gres": ([*CHAIN], []),
    "env_gpus_per_task": ([*CHAIN], []),
    "per_node_gpus_per_task": ([*CHAIN], []),
    "tutorial": ([*CHAIN], []),
    "env_tasks": ([], []),
    "env_default": ([], ["one word", "two"]),
    **{
        name: ([], [])
        for name in (
            *("limit", "limit_batch", "limit_steps", "requeue", "requeue_truncate", "no_requeue", "codes", "layout"),
            *("files", "array", "steps", "signal_steps", "signal_batch", "signal_full", "signal_srun", "cancel"),
            *("cancel_plain", "leave", "killed", "interpreter", "no_folder", "requeue_self", "cancel_self"),
        )
    },
}

NOT_EMULATED = re.compile(
    r"^(?:\d+: )?SLURM_(CONF|SCRIPT_CONTEXT|WORKING_CLUSTER|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT)="
)
"""Variables without meaning outside a real cluster."""

OWN_WORDS = re.compile(r"^(?:\d+: )?(srun: |slurmstepd: error: \*\*\* STEP |Terminated$|Killed$|.*slurm_script: line )")
"""Messages of srun and bash, whose wording and timing may differ."""


STILL = {"PENDING", "RUNNING", "COMPLETING"}
"""States of jobs that have not ended."""

MOVED = ("limit", "limit_batch", "limit_steps")
"""Jobs that change their own end time: their limit, rounded to minutes, depends on the time they took to start."""


def run_all(env: Mapping[str, str], root: Path) -> dict[str, Any]:
    """Submit every job file, each in its own folder; wait for all; return each result."""
    waiting = {name: _submit(env, root / name, name, *words) for name, words in FILES.items()}
    found = {}
    for name, (job, process) in waiting.items():
        try:
            process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:  # the comparison reports it as a difference
            ask(env, "scancel", job)
            process.kill()
            process.wait()
        jobs = _ended(env, job)
        # For a stopped job the real sbatch returns 0 or 1, depending on when it looks: before or after the script ends.
        stopped = {table["JobState"] for table in jobs} & {"CANCELLED", "TIMEOUT"}
        if name in MOVED:
            for table in jobs:
                del table["TimeLimit"]
        found[name] = {
            "wait": None if stopped else process.returncode,
            "jobs": jobs,
            "files": _files(root, name, job, jobs),
        }
    return found


def _known(part: str, real: dict[str, Any] | None) -> dict[str, Any]:
    """Return the results of the real Slurm, or the recorded ones if it is not installed."""
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if real is None:
        return dict(recorded[part])
    if os.environ.get("FROG_RECORD_SLURM") == "1":
        RECORD.write_text(json.dumps(recorded | {part: real}, indent=1, sort_keys=True) + "\n")
    return real


def _submit(
    env: Mapping[str, str], folder: Path, name: str, options: list[str], arguments: list[str]
) -> tuple[str, subprocess.Popen[str]]:
    folder.mkdir(parents=True)
    for file in (f"{name}.sbatch", "listen.py"):
        shutil.copy(JOBS / file, folder / file)
    (folder / "given.txt").write_text("given\n")
    process = subprocess.Popen(
        ["sbatch", "--wait", "--parsable", *options, f"{name}.sbatch", *arguments],
        cwd=folder,
        env={**env, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.readline().strip(), process


def _ended(env: Mapping[str, str], job: str) -> list[dict[str, str]]:
    """Return a job's data once it has ended, which may be later than its script, for which `sbatch --wait` waits."""
    jobs: list[dict[str, str]] = []

    def has_ended() -> bool:
        jobs[:] = _states(env, job)
        return not {table["JobState"] for table in jobs} & STILL

    wait_until(has_ended, f"the end of job {job}", seen=lambda: jobs)
    return jobs


def _states(env: Mapping[str, str], job: str) -> list[dict[str, str]]:
    """Return scontrol's data about a job, or about the tasks of an array."""
    done = ask(env, "scontrol", "--oneliner", "show", "job", job)
    found = []
    for line in done.stdout.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        names = ("ArrayTaskId", "JobState", "Reason", "ExitCode", "Restarts", "Requeue", "TimeLimit", "NumNodes")
        # Slurm's scheduler replaces no limit with a year.
        fields["TimeLimit"] = fields["TimeLimit"].replace("365-00:00:00", "UNLIMITED")
        found.append({key: fields[key] for key in names if key in fields})
    return sorted(found, key=lambda table: int(table.get("ArrayTaskId", 0)))


def ask(env: Mapping[str, str], *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=LIMIT_S)


def _files(root: Path, name: str, job: str, jobs: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return a job's output without the parts that differ between runs: job ids, paths, times, order.

    A job of one node may run on either node.
    """
    node = "node2" if all(table["NumNodes"] == "1" for table in jobs) else "node1"
    # torchrun's log is not Slurm's: the last agent may warn that the rendezvous store has closed.
    ignored = {f"{name}.sbatch", "listen.py", "given.txt", "torchrun.log"}
    found = {}
    for path in sorted((root / name).rglob("*")):
        if path.is_file() and path.name not in ignored:
            text = plain(path.read_text(), job, root).replace(node, "node1")
            found[plain(path.name, job, root)] = sorted(
                line for line in text.splitlines() if not NOT_EMULATED.match(line) and not OWN_WORDS.match(line)
            )
    return found


def plain(text: str, job: str, root: Path) -> str:
    text = re.sub(rf"\b{job}(?=\b|_)", "JOB", text.replace(str(root), "ROOT"))
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(
        r"^((?:\d+: )?SLURM_(?:CLUSTER_NAME|SUBMIT_HOST|JOB_UID|JOB_GID))=.*", r"\1=NAME", text, flags=re.MULTILINE
    )
    text = re.sub(r"slurmstepd-node\d:", "slurmstepd:", text)
    # A signal is lost if the process has not yet handled an earlier one of the same kind.
    text = text.replace(" TERM TERM", " TERM")
    # The nodes of the real Slurm share this machine's name.
    return text.replace(getpass.getuser(), "USER").replace(f"batch-{socket.gethostname()}.", "batch-node1.")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the environment with the emulator's commands."""
    folder = tmp_path_factory.mktemp("emulator") / "cluster"
    emulator_cluster.up(folder, NODES, GPUS_PER_NODE, CPUS_PER_NODE)
    try:
        yield {**os.environ, **emulator_cluster.environment(folder)}
    finally:
        emulator_cluster.down(folder)


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest) -> dict[str, str] | None:
    """Return the environment with the real Slurm's commands, if it can run here."""
    return None if missing_programs() else request.getfixturevalue("real_slurm").env


def on_both(
    part: str,
    run: Callable[[Mapping[str, str], Path], dict[str, Any]],
    real: dict[str, str] | None,
    emulator: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of the real Slurm (or its record) and of the emulator, run in parallel: they mostly wait."""
    found: dict[str, Any] = {}

    def run_on(name: str, env: Mapping[str, str], folder: Path) -> None:
        found[name] = run(env, folder)

    clusters = {"emulator": emulator} | ({"real": real} if real else {})
    threads = [
        threading.Thread(target=run_on, args=(name, env, tmp_path_factory.mktemp(f"{part}_{name}")))
        for name, env in clusters.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _known(part, found.get("real")), found["emulator"]


@pytest.fixture(scope="module")
def outcomes(
    real: dict[str, str] | None, emulator: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of each job file on the real Slurm (or its record) and on the emulator."""
    return on_both("jobs", run_all, real, emulator, tmp_path_factory)


@pytest.mark.parametrize("name", FILES)
def test_job_file_gives_equal_results_on_both_slurms(
    outcomes: tuple[dict[str, Any], dict[str, Any]], name: str
) -> None:
    real, emulated = outcomes
    assert emulated[name] == real[name]


COMMANDS = [
    # Slurm's messages for mistakes: same words, same exit code.
    "sbatch missing.sbatch",
    "sbatch --wrap true name.sbatch",
    "sbatch --nodez=2 name.sbatch",
    "sbatch -Y name.sbatch",
    "sbatch --nodes=x name.sbatch",
    "sbatch --ntasks=0 name.sbatch",
    "sbatch --cpus-per-task=x name.sbatch",
    "sbatch --gpus-per-node=9 name.sbatch",
    "sbatch --gpus-per-task=1 name.sbatch",
    "sbatch --ntasks=2 --gpus-per-task=5 name.sbatch",
    "sbatch --ntasks=9 --gpus-per-task=1 name.sbatch",
    "srun --gpus-per-task=1 true",
    "srun --ntasks=3 --gpus-per-task=1 bash -c echo\\ $CUDA_VISIBLE_DEVICES,$SLURM_GPUS_ON_NODE",
    "sbatch --nodes=2 --ntasks=3 --ntasks-per-node=1 name.sbatch",
    "sbatch --mem=999999999M name.sbatch",
    "sbatch --nodelist=node9 name.sbatch",
    "sbatch --nodes=1 --nodelist=node1,node2 name.sbatch",
    "sbatch --partition=other name.sbatch",
    "sbatch --time=soon name.sbatch",
    "sbatch --signal=NONE@60 name.sbatch",
    "sbatch --signal=USR1@99999 name.sbatch",
    "sbatch --array=3-1 name.sbatch",
    "sbatch --array=1001 name.sbatch",
    "sbatch --array=x name.sbatch",
    "sbatch --dependency=before:1 name.sbatch",
    "sbatch --open-mode=both name.sbatch",
    "sbatch --wait=3 name.sbatch",
    "sbatch empty",
    "sbatch no-interpreter",
    "sbatch line-ends",
    "sbatch unknown-directive",
    "squeue --jobs=999999",
    "squeue --jobs=999998,999999",
    "squeue --jobs=None",
    "squeue --noheader --states=PENDING --name=held --format=%.4P|%5j|%t|%T|%M|%l|%D|%C|%R|%r|%E",
    "squeue --states=PENDING --name=held --format=%.10P|%j|%.3t",
    "squeue --noheader --states=PENDING --name=many --format=%K|%t|%r",
    "squeue --noheader --states=PENDING --name=many --array --format=%K|%t|%r",
    "scancel 999999",
    "scancel",
    "scancel first",
    "scancel 999999,None",
    "scancel --signal=NONE 999999",
    "scontrol requeue 999999",
    "scontrol requeue None",
    "scontrol show job 999999",
    "scontrol show node node9",
    "scontrol show hostnames node[1-2]",
    "scontrol show hostnames node[08-11,3],login",
    "scontrol show hostnames",
    "scontrol show hostlist node1,node2,node4",
    "scontrol show hostlist n08,n09,n10,n8,n9,n10,n1,n01",
    "sinfo --noheader --format=%N|%c|%G|%P|%a|%l|%D",
    "sinfo --noheader --Node --format=%N|%c",
    "srun",
    "srun --frobnicate true",
    "srun --nodes=2 --label hostless",
    "srun --nodes=2 -lN2 --chdir=/nonexist pwd",
    "srun --nodes=1 --nodelist=node1,node2 true",
    "env SLURM_LABELIO=yes SRUN_CPUS_PER_TASK=4 srun --nodes=2 bash -c echo\\ $SLURM_CPUS_PER_TASK",
    "srun --ntasks=2 bash -c exit\\ 3",
    "srun --nodes=2 --ntasks-per-node=1 bash -c echo\\ $SLURM_JOB_NUM_NODES,$SLURM_NTASKS,$SLURM_JOB_NAME",
]


@pytest.fixture(scope="module")
def output(
    real: dict[str, str] | None, emulator: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output of each command on the real Slurm (or its record) and on the emulator."""
    return on_both("commands", run_commands, real, emulator, tmp_path_factory)


def run_commands(env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run each command in order while no job runs."""
    shutil.copy(JOBS / "name.sbatch", folder)
    (folder / "empty").write_text("")
    (folder / "no-interpreter").write_text("true\n")
    (folder / "line-ends").write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    (folder / "unknown-directive").write_text("#!/bin/bash\n#SBATCH --nodez=2\ntrue\n")
    for options in (["--job-name=held"], ["--job-name=many", "--array=1-3,7%2"]):
        assert ask(env, "sbatch", "--hold", *options, "name.sbatch", cwd=folder).returncode == 0
    found = {command: _answer(env, folder, command) for command in COMMANDS}
    ask(env, "scancel", "--name=held")
    ask(env, "scancel", "--name=many")
    return found


def _answer(env: Mapping[str, str], folder: Path, command: str) -> dict[str, Any]:
    words = [word.replace("\\ ", " ") for word in re.split(r"(?<!\\) ", command)]
    done = ask(env, *words, cwd=folder)
    stderr = re.sub(r"slurmstepd-node\d:", "slurmstepd:", done.stderr)
    stderr = re.sub(
        r"^srun: job \d+ (queued and|has been).*\n", "", stderr, flags=re.MULTILINE
    )  # printed only if it had to wait
    stderr = re.sub(r"^  try: .*\n", "", stderr, flags=re.MULTILINE)  # the emulator's hint follows Slurm's own words
    # Real srun reports tasks that end within 0.1 s in one line.
    stderr = re.sub(r"^(.*: )tasks 0-1: (.*)$", r"\1task 0: \2\n\1task 1: \2", stderr, flags=re.MULTILINE)
    return {"code": done.returncode, "stdout": sorted(done.stdout.splitlines()), "stderr": sorted(stderr.splitlines())}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_gives_equal_output_on_both_slurms(output: tuple[dict[str, Any], dict[str, Any]], command: str) -> None:
    real, emulated = output
    assert emulated[command] == real[command]


def chain(env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return the results of dependent jobs: jobs that ran, and the states of jobs that never will."""
    shutil.copy(JOBS / "name.sbatch", folder)

    def submit(name: str, *words: str) -> str:
        done = ask(env, "sbatch", "--parsable", f"--job-name={name}", *words, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    good = submit("good", "--hold", "name.sbatch", "good", "0")
    bad = submit("bad", "--hold", "name.sbatch", "bad", "3")
    jobs = {
        f"{kind}_{name}": submit(f"{kind}_{name}", f"--dependency={kind}:{job}", "name.sbatch")
        for name, job in (("good", good), ("bad", bad))
        for kind in ("afterok", "afternotok", "afterany", "after")
    }
    jobs["both"] = submit("both", f"--dependency=afterany:{good}:{bad},afterok:{good}", "name.sbatch")
    jobs["dropped"] = submit("dropped", f"--dependency=afterok:{bad}", "--kill-on-invalid-dep=yes", "name.sbatch")
    before = ask(env, "squeue", "--noheader", f"--jobs={','.join(jobs.values())}", "--format=%j %T %r").stdout
    for job in (good, bad):
        ask(env, "scontrol", "release", job)
    never = {jobs["afternotok_good"], jobs["afterok_bad"]}
    states: dict[str, dict[str, str]] = {}

    def others_have_ended() -> bool:
        states.update({name: _states(env, job)[0] for name, job in jobs.items()})
        return {jobs[name] for name, state in states.items() if state["JobState"] in STILL} == never

    wait_until(others_have_ended, "the end of all jobs that can run", seen=lambda: states)
    after = {name: [state["JobState"], state["Reason"], state["ExitCode"]] for name, state in states.items()}
    ask(env, "scancel", *never)
    return {"before": sorted(before.splitlines()), "after": after, "ran": sorted(x.name for x in folder.glob("*.out"))}


def test_dependencies_give_equal_results_on_both_slurms(
    real: dict[str, str] | None, emulator: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, emulated = on_both("chain", chain, real, emulator, tmp_path_factory)
    assert emulated == expected
