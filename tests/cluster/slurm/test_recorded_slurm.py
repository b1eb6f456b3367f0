"""The emulator's words and variables against those recorded from a real Slurm, without starting a process.

jobs/recorded.json holds what a real Slurm printed and set: `test_both_slurms.py` records it, and compares it with whole
jobs under the emulator. Here the daemon is a thread of the test, and jobs are placed, but not run.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from test_both_slurms import COMMANDS, JOBS, NOT_EMULATED, RECORD, plain

from frog.cluster.emulator import SlurmRefusal, command
from frog.cluster.emulator import command_options as opt
from frog.cluster.emulator.controller import SlurmController
from frog.cluster.emulator.daemon import _Server, step_answer
from frog.cluster.emulator.emulated_job import RUNNING, EmulatedJob, Node
from frog.cluster.emulator.job_processes import batch_variables, submitted_environment, task_environment
from frog.cluster.emulator.scheduling import check_step_gpus, next_to_start
from frog.cluster.emulator.srun import _wanted
from frog.cluster.emulator.wire import Client
from frog.cluster.slurm_options import SRUN

RECORDED = json.loads(RECORD.read_text())
RUNS_A_TASK = re.compile(r"^(env .* )?srun (?!--frobnicate|--gpus-per-task=1 true)|scancel --name")
ANSWERS = [text for text in COMMANDS if not RUNS_A_TASK.match(text)]


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmController]:
    """Serve a controller of two nodes that starts no job; the commands find it."""
    for name in ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    controller = SlurmController(tmp_path, "frogtest", [Node("node1", 64, 4), Node("node2", 64, 4)], 70001, 1.0)
    with _Server(controller, "secret") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(command, "read_client", lambda folder: Client(server.server_address[1], "secret", folder))
        yield controller
        server.shutdown()


def call(text: str) -> int:
    name, *words = (word.replace("\\ ", " ") for word in re.split(r"(?<!\\) ", text))
    return command._run(Path(), name, words)


def test_commands_answer_as_the_real_ones(controller: SlurmController, capfd: pytest.CaptureFixture[str]) -> None:
    (Path.cwd() / "name.sbatch").write_text((JOBS / "name.sbatch").read_text())
    (Path.cwd() / "empty").write_text("")
    (Path.cwd() / "no-interpreter").write_text("true\n")
    (Path.cwd() / "line-ends").write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    (Path.cwd() / "unknown-directive").write_text("#!/bin/bash\n#SBATCH --nodez=2\ntrue\n")
    for options in ("--job-name=held", "--job-name=many --array=1-3,7%2"):
        assert call(f"sbatch --hold {options} name.sbatch") == 0
    assert next_to_start(controller.jobs, controller.nodes) is None
    capfd.readouterr()
    found = {}
    for text in ANSWERS:
        code = call(text)
        out, err = capfd.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith("  try: ")]
        found[text] = {"code": code, "stdout": sorted(out.splitlines()), "stderr": sorted(lines)}
    assert len(found) > 50
    assert found == {text: RECORDED["commands"][text] for text in ANSWERS}


# ---- variables ------------------------------------------------------------------------------------------------------

SHOWN = {
    "env_default": r"SLURM|CUDA",
    "env_exclusive": r"SLURM|CUDA",
    "env_gres": r"SLURM|CUDA",
    "env_gpus_per_task": r"SLURM|CUDA|GPU_|ROCR",
    "env_nodes": r"SLURM|CUDA|GPU_|ROCR|ENVIRONMENT=|HOSTNAME=|FROG_NODE_NAME=",
    "env_tasks": r"SLURM|CUDA|GPU_|ROCR|FROM_",
    "per_node_gpus_per_task": r"SLURM|CUDA|GPU_|ROCR",
}
"""The variables that each job prints."""
CHAIN = ("--job-name=variables", "--dependency=singleton")


def placed(controller: SlurmController, name: str) -> EmulatedJob:
    """Submit a job file of the record, and allocate its nodes."""
    (Path.cwd() / name).mkdir()
    options = "" if name in ("env_tasks", "env_default") else f" {' '.join(CHAIN)}"
    script = JOBS / f"{name}.sbatch"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path.cwd() / name)
        assert call(f"sbatch{options} {script}") == 0
    found = next_to_start(controller.jobs, controller.nodes)
    assert found is not None
    job, job.allocations = found
    job.state = RUNNING
    return job


def lines_of(env: Mapping[str, str], shown: str, job: EmulatedJob, root: Path) -> list[str]:
    lines = [f"{name}={value}" for name, value in env.items() if re.match(shown, f"{name}=")]
    text = plain("\n".join(lines), str(job.number), root)
    return sorted(line for line in text.splitlines() if not NOT_EMULATED.match(line))


def tasks_of(
    controller: SlurmController, job: EmulatedJob, base: dict[str, str], words: list[str]
) -> dict[str, Mapping[str, str]]:
    """Return the environment of each task of an srun, by the name of its output file."""
    options, _ = opt.read_words("srun", words, SRUN)
    options = opt.srun_variables(base) | options
    env = base | opt.export_changes(options.get("export"))
    wanted = _wanted(options, env)
    check_step_gpus(wanted, job)
    step, parts = controller.begin_step(job, wanted, 0, lambda text: None, lambda: None)
    label, cpus = "label" in options, opt.count(options, "cpus-per-task")
    answer = step_answer(controller, job, step, parts, wanted.gpus_per_task, label=label, cpus=cpus)
    step.ended = True
    form = options["output"] or ""
    return {
        form.replace("%t", str(task["rank"])).replace("%n", str(task["node_rank"])): task_environment(
            env, answer["variables"], task["variables"], with_gpus=answer["with_gpus"]
        )
        for task in answer["tasks"]
    }


@pytest.mark.parametrize("name", SHOWN)
def test_job_and_its_steps_have_the_variables_of_a_real_slurm(name: str, controller: SlurmController) -> None:
    job, root = placed(controller, name), Path.cwd()
    recorded = RECORDED["jobs"][name]["files"]
    batch = {**submitted_environment(job.request), **batch_variables(job, controller.cluster)}
    found = {"batch.txt": batch} if "batch.txt" in recorded else {}
    for line in (JOBS / f"{name}.sbatch").read_text().splitlines():
        match = re.match(r"((?:SLURM\w+=\S+ )*)srun (.*--output=\S+-%t\.txt.*)", line)
        if match:
            own = dict(word.split("=", 1) for word in match[1].split())
            found |= tasks_of(controller, job, batch | own, shlex.split(match[2]))
    assert len(found) > 1
    files = {file: lines_of(env, SHOWN[name], job, root) for file, env in found.items()}
    unlabelled = {file: [re.sub(r"^\d+: ", "", line) for line in recorded[file]] for file in files}
    assert files == unlabelled


# ---- what the commands show of jobs and nodes -----------------------------------------------------------------------


def shown(text: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    capfd.readouterr()
    assert call(text) == 0
    return [line.strip() for line in capfd.readouterr().out.splitlines() if line.strip()]


def test_queue_and_nodes_show_a_running_job_and_a_waiting_one(
    controller: SlurmController, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_750_000_000.0)
    job = placed(controller, "env_nodes")  # two tasks with two CPUs and GPUs on each of two nodes
    job.started_s, job.limit_min, job.limit_s = 1_749_999_935.0, 5, 1_750_000_235.0
    assert call("sbatch --nodes=2 --exclusive --comment=x --account=a --wrap true") == 0
    assert next_to_start(controller.jobs, controller.nodes) is None
    form = "--format=%A|%P|%j|%a|%k|%t|%M|%l|%D|%C|%N|%R"
    assert shown(f"squeue {form} --noheader", capfd) == [
        "70002|main|wrap|a|x|PD|0:00|UNLIMITED|2|1||(Resources)",
        "70001|main|variables|(null)|(null)|R|1:05|5:00|2|8|node[1-2]|node[1-2]",
    ]
    assert shown("squeue --jobs=70002 --format=%.7i|%7T|%.4t|%r", capfd) == [
        "  JOBID|STATE  |  ST|REASON".strip(),
        "70002|PENDING|  PD|Resources",
    ]
    assert shown("sinfo --noheader --format=%P|%D|%t|%T|%N|%c|%G", capfd) == ["main*|2|mix|mixed|node[1-2]|64|gpu:4"]
    assert shown("scontrol show node node2", capfd)[:3] == [
        "NodeName=node2",
        "CPUAlloc=4 CPUEfctv=64 CPUTot=64",
        "Gres=gpu:4",
    ]
    table = dict(word.split("=", 1) for line in shown("scontrol show job 70001", capfd) for word in line.split())
    expected = {
        "JobId": "70001", "JobName": "variables", "JobState": "RUNNING", "Reason": "None", "Dependency": "(null)",
        "Requeue": "1", "Restarts": "0", "BatchFlag": "1", "ExitCode": "0:0", "RunTime": "00:01:05",
        "TimeLimit": "00:05:00", "NodeList": "node[1-2]", "BatchHost": "node1", "NumNodes": "2", "NumCPUs": "8",
        "NumTasks": "4", "CPUs/Task": "2", "WorkDir": str(Path.cwd() / "env_nodes"), "StdIn": "/dev/null",
        "StdOut": str(Path.cwd() / "env_nodes/variables.out"), "StdErr": str(Path.cwd() / "env_nodes/variables.out"),
    }  # fmt: skip
    assert {name: table[name] for name in expected} == expected
    waiting = shown("scontrol --oneliner show job 70002", capfd)
    assert len(waiting) == 1
    assert "NumNodes=2 NumCPUs=1 NumTasks=1 CPUs/Task=1 Comment=x" in waiting[0]
    assert "BatchHost" not in waiting[0]
    job.state = "COMPLETING"
    assert shown("sinfo --noheader --format=%t|%T", capfd) == ["comp|completing"]
    job.state, job.exit_code, job.ended_s = "FAILED", 3, 1_749_999_995.0
    assert shown("sinfo --noheader --format=%t", capfd) == ["idle"]
    assert shown("squeue --noheader --format=%i", capfd) == ["70002"]
    assert "RunTime=00:01:00" in shown("scontrol show job 70001", capfd)[4]
    assert shown("squeue --states=F --noheader --format=%i|%R", capfd) == ["70001|(None)"]


def test_daemon_ends_while_a_client_still_waits(tmp_path: Path) -> None:
    """A hung `sbatch --wait` must not keep the daemon alive."""
    controller = SlurmController(tmp_path, "frogtest", [Node("node1", 64, 4)], 70001, 1.0)
    with _Server(controller, "secret") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        conversation = Client(int(server.server_address[1]), "secret", tmp_path).open("step", job="1")
        stranger = socket.create_connection(server.server_address[:2])  # it asks for nothing
        with pytest.raises(SlurmRefusal, match="Invalid job id specified for job 1"):
            conversation.hear()
        conversation.close()
        server.shutdown()
        closing = threading.Thread(target=server.server_close, daemon=True)
        closing.start()
        closing.join(timeout=20)
        stranger.close()
        assert not closing.is_alive()
