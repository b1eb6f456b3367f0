"""A real Slurm on this machine: it starts, its commands work, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest
from harness import LIMIT_S, run_to_end, wait_until
from slurm_harness import BIN, RealSlurm, frog_slurm, need_slurm

from frog.cluster.simulated_cluster import Shape
from frog.cluster.slurm import configuration, slurm_programs
from frog.cluster.slurm import real_cluster as cluster
from frog.cluster.slurm.slurm_programs import find_processes
from frog.core.errors import LaunchError, UsageError

pytestmark = pytest.mark.slow


def cluster_name(folder: Path) -> str:
    return str(json.loads((folder / "cluster.json").read_text())["site"]["name"])


def scratch_of(folder: Path) -> Path:
    return Path(json.loads((folder / "cluster.json").read_text())["site"]["scratch"])


def clusters_on(root: Path) -> set[str]:
    """Return every process whose environment or arguments name a folder."""
    found = set()
    for process in psutil.process_iter():
        try:
            text = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(root) in word for word in text):
            found.add(f"{process.pid} {' '.join(process.cmdline())}")
    return found


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    """Create a folder for a test's own cluster; clean up what the test leaves."""
    need_slurm()
    yield tmp_path
    if (tmp_path / ".slurm" / "cluster.json").exists():
        frog_slurm("down", cwd=tmp_path)


def kill(pid: int) -> None:
    """Kill a process that may have ended after another process of its cluster was killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def shell(command: str, cwd: Path) -> str:
    """Run a command line in a shell that uses the folder's cluster, as a user types it."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f'eval "$(frog slurm env)"; {command}'],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ---- A running cluster -----------------------------------------------------------------------------------------------


def test_nodes_start_idle_and_tasks_see_their_gpus(real_slurm: RealSlurm) -> None:
    assert real_slurm.ask("sinfo", "-h", "-o", "%D %T").split() == ["2", "idle"]
    output = real_slurm.ask(
        *("srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=3", "bash", "-c"),
        "echo $SLURMD_NODENAME $FROG_NODE_NAME $SLURM_NODEID $CUDA_VISIBLE_DEVICES",
    )
    assert sorted(output.splitlines()) == ["node1 node1 0 0,1,2", "node2 node2 1 0,1,2"]


def test_batch_job_from_queue_to_cancel(real_slurm: RealSlurm, tmp_path: Path) -> None:
    script = "echo begins on $SLURMD_NODENAME; srun bash -c 'sleep 100'; sleep 5; echo never"
    words = ("sbatch", "--parsable", "--nodes=2", "--gpus-per-node=2", "--output=%x-%j.txt", "--job-name=nap")
    job_id = real_slurm.ask(*words, "--wrap", script, cwd=tmp_path).strip()
    real_slurm.wait_for(job_id, "RUNNING")
    log = tmp_path / f"nap-{job_id}.txt"
    wait_until(lambda: log.exists() and "begins on node1" in log.read_text(), "the job's first line")
    assert real_slurm.ask("squeue", "-h", "-o", "%i %j %T %D") == f"{job_id} nap RUNNING 2\n"

    # A second job gets the other GPUs of the same nodes, and a third must wait.
    output = real_slurm.ask("srun", "--nodes=1", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert output == "2,3\n"
    wait_until(lambda: real_slurm.ask("squeue", "-h", "-o", "%i").split() == [job_id], "the end of the second job")
    waiting = real_slurm.ask(*words, "--gpus-per-node=4", "--wrap", "true", cwd=tmp_path).strip()
    assert real_slurm.job(waiting)["JobState"] == "PENDING"

    table = frog_slurm("status", cwd=real_slurm.folder.parent)
    assert [line.split()[-1] for line in table.splitlines()[1:5]] == ["runs"] * 4
    assert "node1  mixed  2 of 4" in table
    assert f"{job_id}  nap   RUNNING" in table

    real_slurm.ask("scancel", job_id, waiting)
    assert real_slurm.wait_for(job_id, "CANCELLED")["Restarts"] == "0"
    wait_until(lambda: not real_slurm.ask("squeue", "-h"), "an empty queue")
    assert "never" not in log.read_text()
    assert f"{job_id}" in real_slurm.ask("sacct", "-c", "-o", "JobID")


def test_slurm_listens_only_on_the_loopback_interface(real_slurm: RealSlurm) -> None:
    listening = []
    for process in find_processes(cluster_name(real_slurm.folder)):
        with contextlib.suppress(psutil.NoSuchProcess):  # the last process of an earlier job
            for connection in psutil.Process(process.pid).net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    listening.append(connection.laddr.ip)
    assert len(listening) == 3, "slurmctld and two slurmd"
    assert all(address.startswith("127.") for address in listening)


def test_second_slurm_up_is_refused(real_slurm: RealSlurm) -> None:
    output = frog_slurm("up", cwd=real_slurm.folder.parent, code=2)
    assert "a cluster of 2 nodes is already running" in output
    assert "frog slurm down" in output
    assert real_slurm.ask("sinfo", "-h", "-o", "%D").strip() == "2"


# ---- Clusters that end -----------------------------------------------------------------------------------------------


def test_slurm_down_ends_even_detached_processes(workdir: Path) -> None:
    shown = frog_slurm("up", "--nodes", "1", "--gpus-per-node", "8", cwd=workdir)
    assert 'eval "$(frog slurm env)"' in shown
    folder = workdir / ".slurm"
    name, scratch = cluster_name(folder), scratch_of(folder)
    ports = json.loads((folder / "cluster.json").read_text())["site"]["ports"]
    # Slurm loses a process that leaves its session and its parent; `down` must not.
    shell(
        "sbatch --gpus-per-node=8 --wrap '(setsid sleep 300 &) ; echo $CUDA_VISIBLE_DEVICES > gpus; sleep 300'", workdir
    )
    wait_until(lambda: sum(p.command.endswith("sleep 300") for p in find_processes(name)) == 2, "the job's processes")
    assert (workdir / "gpus").read_text() == "0,1,2,3,4,5,6,7\n"
    shell("sbatch --hold --array=2-3%1 --wrap true", workdir)  # squeue prints 12_[2-3%1], which scancel does not accept
    os.link(folder / "logs" / "jobs.txt", workdir / "jobs.txt")

    frog_slurm("down", cwd=workdir)
    assert (workdir / "jobs.txt").read_text().count("JobState=CANCELLED") == 2
    assert find_processes(name) == []
    assert not folder.exists()
    assert not scratch.exists()
    assert clusters_on(workdir) == set()
    for port in ports:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    assert "no cluster found" in frog_slurm("down", cwd=workdir, code=2)
    assert "no cluster found" in frog_slurm("env", cwd=workdir, code=2)
    assert "no cluster found" in frog_slurm("status", cwd=workdir, code=2)


def test_cluster_with_dead_daemons_is_reported_and_restarted(workdir: Path) -> None:
    frog_slurm("up", "--nodes", "2", cwd=workdir)
    folder = workdir / ".slurm"
    old, scratch = cluster_name(folder), scratch_of(folder)
    shell("sbatch --nodes=2 --wrap 'srun sleep 300'", workdir)
    wait_until(lambda: sum(p.command.endswith("/sleep 300") for p in find_processes(old)) == 2, "the job's processes")
    for process in find_processes(old):
        if "slurmctld" in process.command or "node2" in process.command:
            kill(process.pid)

    table = frog_slurm("status", cwd=workdir)
    states = {line.split()[0] + line.split()[1]: line.split()[-1] for line in table.splitlines()[1:5]}
    assert states["slurmctld-"] == states["slurmdnode2"] == "dead"
    assert states["slurmdnode1"] == "runs"
    assert "slurmctld does not answer" in table

    assert "removed the remains of a cluster whose slurmctld, slurmd node2 had died" in frog_slurm("up", cwd=workdir)
    assert find_processes(old) == []
    assert not scratch.exists()
    assert shell("sinfo -h -o '%D %T'", workdir) == "2 idle\n"

    for process in find_processes(cluster_name(folder)):
        kill(process.pid)
    frog_slurm("down", "--keep-logs", cwd=workdir)
    assert [entry.name for entry in folder.iterdir()] == ["logs"]
    assert "slurmctld version" in (folder / "logs" / "slurmctld.log").read_text()
    assert clusters_on(workdir) == set()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_interrupted_slurm_up_leaves_nothing(workdir: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [str(BIN / "frog"), "slurm", "up", "--nodes", "8"],
        cwd=workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    folder = workdir / ".slurm"
    wait_until(lambda: (folder / "slurm.conf").exists(), "the configuration")
    name, scratch = cluster_name(folder), scratch_of(folder)
    process.send_signal(how)
    out, _ = run_to_end(process)
    if how == signal.SIGKILL:
        frog_slurm("down", "--keep-logs", cwd=workdir)
    else:
        assert process.returncode == 128 + how, out
    assert find_processes(name) == []
    assert not scratch.exists()
    assert not (folder / "cluster.json").exists()
    assert clusters_on(workdir) == set()


def test_daemon_that_dies_at_start_is_reported_with_its_log(workdir: Path) -> None:
    wrapper = workdir / "bin" / "slurmd"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/sh\nexec {slurm_programs.find_program('slurmd')} -f {workdir}/wrong.conf\n")
    (workdir / "wrong.conf").write_text("NoSuchKey=1\n")
    wrapper.chmod(0o755)
    env = {**os.environ, "PATH": f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"}
    output = frog_slurm("up", "--nodes", "1", cwd=workdir, env=env, code=1)
    assert "did not start: slurmd-node1 ended" in output
    assert "slurmd-node1.out:" in output
    assert "NoSuchKey" in output
    assert clusters_on(workdir) == set()
    assert not (workdir / ".slurm" / "cluster.json").exists()
    frog_slurm("up", "--nodes", "1", cwd=workdir)  # leftover logs do not prevent a start


@pytest.mark.parametrize("name", ["thesis.txt", "logs/thesis.txt", "lock", "logs"])
def test_folder_with_other_files_is_refused_and_kept(workdir: Path, name: str) -> None:
    mine = workdir / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    output = frog_slurm("up", "--folder", "mine", cwd=workdir, code=2)
    assert f"has other files ({name})" in output
    assert "no cluster found" in frog_slurm("down", "--folder", "mine", cwd=workdir, code=2)
    assert mine.read_text() == "years of work"
    assert os.listdir(workdir / "mine") == [name.split("/")[0]]


def test_slurm_down_removes_only_logs_of_daemons(tmp_path: Path) -> None:
    names = ("munged.log", "slurmctld.out", "slurmd-node12.log", "jobs.txt")
    for name in (*names, "mine.log"):
        (tmp_path / "logs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "logs" / name).write_text("")
    cluster._remove_logs(tmp_path / "logs")
    assert os.listdir(tmp_path / "logs") == ["mine.log"]
    (tmp_path / "logs" / "mine.log").unlink()
    cluster._remove_logs(tmp_path / "logs")
    assert os.listdir(tmp_path) == []


def test_status_accepts_unusual_names_of_jobs_and_nodes() -> None:
    class FakeCluster:
        def ask(self, *command: str) -> str:
            if command[0] == "squeue":
                return "7|RUNNING|0:01|UNLIMITED|1|node1|a|b c\n"
            return "a-node-of-more-than-20-letters|idle|gpu:h100:4(S:0-1)|gpu:h100:2(IDX:0-1)|1/31/0/32|\n"

    output = cast(cluster.Cluster, FakeCluster())
    assert cluster._jobs(output).splitlines()[1].split() == [
        *("7", "a|b", "c", "RUNNING", "0:01", "UNLIMITED", "1", "node1")
    ]
    assert cluster._nodes(output).splitlines()[1] == "a-node-of-more-than-20-letters  idle   2 of 4     1 of 32"


def test_real_cluster_ignores_emulator_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real cluster uses the real commands even in a shell that uses an emulator."""
    for place in ("emulator", "other"):
        (tmp_path / place / "bin").mkdir(parents=True)
        (tmp_path / place / "bin" / "squeue").write_text("#!/bin/sh\n")
        (tmp_path / place / "bin" / "squeue").chmod(0o755)
    (tmp_path / "emulator" / "cluster.json").write_text('{"kind": "emulator"}')
    others = f"{tmp_path}/other/bin{os.pathsep}/bin"
    monkeypatch.setenv("PATH", f"{tmp_path}/emulator/bin{os.pathsep}{others}")
    assert slurm_programs.find_program("squeue") == f"{tmp_path}/other/bin/squeue"
    assert cluster.environment(tmp_path)["PATH"] == others
    monkeypatch.setenv("PATH", others)
    assert "PATH" not in cluster.environment(tmp_path)


# ---- Users and host names --------------------------------------------------------------------------------------------


def test_slurm_runs_as_ordinary_user_in_folder_with_space(workdir: Path) -> None:
    ordinary = ["unshare", "--user", "--map-user=nobody", "--map-group=nogroup", "setpriv", "--bounding-set=-all"]
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        ordinary = []  # this user is one already
    elif subprocess.run([*ordinary, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system does not let root become an ordinary user in a namespace")
    frog = f"{BIN / 'frog'} slurm"
    script = (
        f"{frog} up --nodes 1 --folder 'a b' && eval \"$({frog} env --folder 'a b')\""
        " && srun --gpus-per-node=2 bash -c 'id -un; echo $CUDA_VISIBLE_DEVICES' > output"
        f"; {frog} down --folder 'a b'"
    )
    done = subprocess.run(
        [*ordinary, "bash", "-c", script], cwd=workdir, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    user = "nobody" if ordinary else subprocess.check_output(["id", "-un"], text=True).strip()
    assert (workdir / "output").read_text() == f"{user}\n0,1\n"
    assert os.listdir(workdir) == ["output"]


def test_daemons_use_another_host_name_if_it_is_not_loopback(workdir: Path) -> None:
    """Simulate a machine whose name resolves to a network address, as in many containers."""
    if subprocess.run(["unshare", "--uts", "hostname", "10.1.2.3"], capture_output=True).returncode != 0:
        pytest.skip("this system does not allow another host name for a process")
    script = (
        f"hostname 10.1.2.3; {BIN / 'frog'} slurm up --nodes 1"
        f' && eval "$({BIN / "frog"} slurm env)" && sbatch --wait --output=output --wrap "srun hostname"'
    )
    done = subprocess.run(
        ["unshare", "--uts", "bash", "-c", script], cwd=workdir, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workdir / "output").read_text() == "localhost\n"
    for process in find_processes(cluster_name(workdir / ".slurm")):
        for connection in psutil.Process(process.pid).net_connections():
            assert connection.status != psutil.CONN_LISTEN or connection.laddr.ip == "127.0.0.1"


def test_unresolvable_host_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(LaunchError, match=r"no-such-host.invalid, does not resolve") as caught:
        configuration.choose_host()
    assert "/etc/hosts" in str(caught.value)


def test_missing_slurm_error_names_package_and_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(slurm_programs, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="munged, slurmctld, slurmd") as caught:
        slurm_programs.need_programs()
    assert "apt-get install slurm-wlm" in str(caught.value)
    assert "frog slurm up --emulator" in str(caught.value)


@pytest.mark.parametrize("wrong", [(0, 4, 32), (2, -1, 32), (2, 17, 32), (2, 4, 0), (65, 4, 32)])
def test_invalid_cluster_size_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="must be between"):
        Shape(*wrong)
