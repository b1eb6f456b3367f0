"""docs/launch/launchers.md: its commands run unchanged and give the weights of `frog run`; other statements hold."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_S, Harness, all_gone, kill_tree, tree, wait_until

from frog.core.machine import free_port
from frog.core.runs.event_schema import StartEvent

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "launch" / "launchers.md").read_text()
MPICH = "mpiexec.mpich" if shutil.which("mpiexec.mpich") else "mpiexec"
"""The page's mpiexec. Debian uses this name, since Open MPI has a different mpiexec."""
LINES = {
    name: block.replace("\\\n", " ").replace("mpiexec", MPICH).splitlines()
    for name, block in re.findall(r"^### ([^\n]+)\n\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
"""The page's commands by heading, one per node."""

SLOW = ("train.steps=100000", "checkpoint.every=1000", "eval.every=1000")
OF_LAUNCHERS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "DS_ACCELERATOR": "cpu"}
"""Variables for the launchers only: with them, no `frog` starts warm (tests/warm_frog)."""
_LAUNCHER_VARIABLES = re.compile(
    r"(NODE_|LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_\w+|(SLURM|OMPI|PMI|PMIX|TORCHELASTIC)_\w+"
)


@pytest.fixture(scope="module")
def floor(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Copy the project with a tiny config/demo.toml, and run the reference for all launchers."""
    ours = Harness(tmp_path_factory.mktemp("launchers"))
    for name in ("config", "scripts"):
        shutil.copytree(ROOT / name, ours.root / name)
    shutil.copy(ROOT / "train.py", ours.root)
    shutil.copytree(harness.root / "data", ours.root / "data")
    shutil.copy(harness.root / "config.json", ours.root / "config" / "config.json")
    run_file = (harness.root / "run.toml").read_text().replace('name = "tiny"', 'name = "demo"')
    (ours.root / "config" / "demo.toml").write_text(run_file)
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(_LAUNCHER_VARIABLES.fullmatch, list(os.environ)):
            patch.delenv(name)
        patch.setenv("OMP_NUM_THREADS", "1")
        ours.run("frog", "run", "--nproc", "2", "--", "train", "config/demo.toml", "--set", "name=ours")
        yield ours


def need(launcher: str) -> None:
    """Skip the test if the launcher is not installed."""
    line = LINES[launcher][0]
    program = line.split()[0]
    package = "submitit" if program == "python" else program
    if package in ("submitit", "deepspeed", "accelerate") and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    mpi = "mpirun" if "openmpi" in line or "accelerate_cpu" in line else program
    if not mpi.startswith("mpi"):
        return
    if shutil.which(mpi) is None:
        pytest.skip(f"{mpi} is not installed: it comes with Open MPI, or with MPICH")
    version = subprocess.run([mpi, "--version"], capture_output=True, text=True).stdout
    if ("Open MPI" in version or "OpenRTE" in version) != (mpi == "mpirun"):
        pytest.skip(f"{mpi} is of another MPI than the page's: {version.splitlines()[0]}")


def start(floor: Harness, launcher: str, name: str, *settings: str) -> list[subprocess.Popen[str]]:
    """Start the page's commands, each in a separate process group, as in separate terminals."""
    need(launcher)
    port = str(free_port())
    more = [word for setting in (f"name={name}", *settings) for word in ("--set", setting)]
    return [
        floor.start(*shlex.split(line.replace("29501", port)), *more, start_new_session=True, env=OF_LAUNCHERS)
        for line in LINES[launcher]
    ]


def end(processes: list[subprocess.Popen[str]], limit_s: float = LIMIT_S) -> list[tuple[int, str]]:
    """Wait until all have ended; return the exit code and the output of each."""
    ends = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            for other in processes:
                with contextlib.suppress(psutil.Error):
                    kill_tree(other)
            out, err = process.communicate()
            pytest.fail(f"no end within {limit_s:g} s\n{out}\n{err}")
        ends.append((process.returncode, out + err))
    return ends


def test_launchers_page_contains_the_tested_commands() -> None:
    assert len(LINES) == 10
    assert [len(lines) for name, lines in LINES.items() if "two" in name] == [2, 2]


@pytest.mark.parametrize(
    ("launcher", "settings"),
    [
        *((name, ()) for name in LINES if name != "submitit"),
        ("DeepSpeed, two nodes", ("strategy.name=zero3",)),
    ],
)
def test_all_launchers_give_the_same_weights(floor: Harness, launcher: str, settings: tuple[str, ...]) -> None:
    name = re.sub(r"\W+", "-", " ".join((launcher, *settings)))
    processes = start(floor, launcher, name, *settings)
    for code, words in end(processes):
        assert code == 0, words
    segment = floor.folder(name).read_run_json().segments[0]
    nodes = len(LINES[launcher])
    assert (segment.world_size, segment.num_nodes) == (2, nodes)
    assert [floor.events(name).ranks[rank].of(StartEvent)[0].node_rank for rank in (0, 1)] == [0, nodes - 1]
    reference = "ours"
    if chosen := (*re.findall(r"--set (\S+)", LINES[launcher][0]), *settings):
        reference = f"ours-as-{name}"
        words = [word for setting in (f"name={reference}", *chosen) for word in ("--set", setting)]
        floor.run("frog", "run", "--nproc", "2", "--", "train", "config/demo.toml", *words)
    assert floor.record(name)["weights_sha256"] == floor.record(reference)["weights_sha256"]
    assert floor.record(name)["order_sha256"] == floor.record("ours")["order_sha256"]


def rank_pid(floor: Harness, name: str, rank: int) -> int:
    return int(floor.events(name).ranks[rank].of(StartEvent)[-1].pid)


CODES = {  # after a killed rank, and after Ctrl-C, as in the page's table; a shell shows 130 for "ended by SIGINT"
    "mpirun": ({137}, 1),
    "mpiexec": ({9}, 130),
    "DeepSpeed, one node": ({247, 1}, -signal.SIGINT),  # the first ended rank that it finds
    "accelerate": ({1}, 1),
    "submitit": ({1}, 130),
}


@pytest.mark.parametrize("launcher", CODES)
def test_killed_rank_ends_the_world_under_every_launcher(floor: Harness, launcher: str) -> None:
    name = f"killed-{launcher.split(',')[0]}"
    (process,) = start(floor, launcher, name, *SLOW)
    floor.wait_for_step(name, 2, process)
    family = tree(process)
    os.kill(rank_pid(floor, name, 1), signal.SIGKILL)
    ((code, words),) = end([process])
    assert code in CODES[launcher][0], words
    wait_until(lambda: all_gone(family), "the end of all processes")


@pytest.mark.parametrize("launcher", CODES)
def test_ctrl_c_saves_and_leaves_no_process(floor: Harness, launcher: str) -> None:
    name = f"stopped-{launcher.split(',')[0]}"
    (process,) = start(floor, launcher, name, *SLOW)
    floor.wait_for_step(name, 2, process)
    family = tree(process)
    os.killpg(process.pid, signal.SIGINT)
    ((code, words),) = end([process])
    assert code == CODES[launcher][1], words
    wait_until(lambda: all_gone(family), "the end of all processes")
    if launcher in ("mpirun", "submitit"):  # they kill after a second, even if a slow machine has not saved yet
        return
    record = floor.record(name)
    assert record["status"] == "interrupted"
    assert floor.folder(name).checkpoint_steps() == [record["step"]]


def test_world_restarted_by_torchrun_resumes(floor: Harness) -> None:
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "--max-restarts=1")
    settings = ("name=again", "train.steps=40", "checkpoint.every=2", "eval.every=40", "eval.sample_tokens=0")
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["torchrun", "--nproc_per_node=2", *meeting, "train.py", "config/demo.toml", "--continue", *words]
    process = floor.start(*command, start_new_session=True, env=OF_LAUNCHERS)
    floor.wait_for_step("again", 4, process)
    os.kill(rank_pid(floor, "again", 1), signal.SIGKILL)
    ((code, said),) = end([process])
    assert code == 0, said
    starts = floor.events("again").ranks[0].of(StartEvent)
    assert len(starts) == 2
    assert floor.record("again")["step"] == 40


def test_submitit_job_near_its_limit_resumes_at_the_same_step(floor: Harness) -> None:
    settings = ("train.steps=200", "checkpoint.every=1000", "eval.every=1000")
    (process,) = start(floor, "submitit", "warned", *settings)
    floor.wait_for_step("warned", 3, process)
    pids = [rank_pid(floor, "warned", rank) for rank in (0, 1)]
    os.kill(pids[1], signal.SIGSTOP)  # the run must not end before the signal arrives
    for pid in pids:  # Slurm signals every task some time before the limit
        os.kill(pid, signal.SIGUSR2)
    os.kill(pids[1], signal.SIGCONT)
    ((code, words),) = end([process])
    assert code == 0, words
    assert "Requeued job" in words
    first, second = floor.folder("warned").read_run_json().segments
    assert 3 <= second.from_step < 200
    assert f"resumed at step {second.from_step}" in words
    sets = [word for setting in ("name=calm", *settings) for word in ("--set", setting)]
    floor.run("frog", "run", "--nproc", "2", "--", "train", "config/demo.toml", *sets)
    for key in ("weights_sha256", "order_sha256", "step"):
        assert floor.record("warned")[key] == floor.record("calm")[key]
    assert first.world_size == second.world_size == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no run file"),
        ("--nodes 2 config/demo.toml", "has one node, not 2"),
        ("absent.toml", "2 of 2 ranks failed"),
    ],
)
def test_submitit_script_rejects_invalid_arguments(floor: Harness, words: str, message: str) -> None:
    need("submitit")
    code = 1 if "absent" in words else 2
    done = floor.run("python", "scripts/submit_with_submitit.py", *words.split(), code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_submitit_resubmits_after_the_third_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("submitit")
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("sys.argv", ["page", "--cluster", "slurm", "--folder", str(tmp_path), "run.toml"])
    page = runpy.run_path(str(ROOT / "scripts" / "submit_with_submitit.py"))
    executors = []
    monkeypatch.setattr("submitit.AutoExecutor.submit", lambda executor, call: executors.append(executor))
    page["submit"](page["read_arguments"]())
    assert executors[0]._executor.max_num_timeout >= 1000


def test_accelerate_with_one_process_of_two_is_rejected(floor: Harness) -> None:
    need("accelerate")
    text = (floor.root / "config" / "accelerate_cpu.yaml").read_text()
    lone = "".join(line for line in text.splitlines(keepends=True) if "mpirun" not in line)
    (floor.root / "lone.yaml").write_text(lone)
    words = ("accelerate", "launch", "--quiet", "--config_file", "lone.yaml", "train.py")
    done = floor.run(*words, code=1, env=OF_LAUNCHERS)
    assert "started one process" in done.stderr
