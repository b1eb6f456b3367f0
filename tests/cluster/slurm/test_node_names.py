"""Names of simulated nodes: the file of hosts, systems without namespaces, and processes that connect by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cluster import node_names
from frog.cluster.emulator import emulated_cluster as cluster

SERVE = """
import os, socket, time
host = os.environ["MASTER_ADDR"]
if os.environ["SLURM_PROCID"] == "0":
    with socket.create_server((host, 0)) as server:
        open("port.part", "w").write(str(server.getsockname()[1]))
        os.rename("port.part", "port")
        print(server.accept()[0].recv(99).decode(), "reached", socket.gethostname())
else:
    while not os.path.exists("port"):
        time.sleep(0.01)
    with socket.create_connection((host, int(open("port").read())), timeout=60) as connection:
        connection.sendall(socket.gethostname().encode())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("names") / "cluster"
    problem = cluster.up(place, 2, 0, 4, kill_wait_s=1)
    try:
        if problem is not None:
            pytest.skip(problem)
        yield place
    finally:
        cluster.down(place)


def submit(folder: Path, script: str) -> str:
    env = {**os.environ, **cluster.environment(folder)}
    words = ("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--output=out", "--wrap", script)
    done = subprocess.run(words, cwd=folder.parent, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    said = (folder.parent / "out").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + said
    return said


def test_tasks_connect_to_the_first_host_name_of_the_job(folder: Path) -> None:
    (folder.parent / "serve.py").write_text(SERVE)
    script = (
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1); '
        f"srun {sys.executable} serve.py"
    )
    assert submit(folder, script) == "node2 reached node1\n"


def test_every_process_has_the_host_name_of_its_node(folder: Path) -> None:
    assert submit(folder, "hostname; srun -N1 -n1 -w node2 hostname; hostname").split() == ["node1", "node2", "node1"]


def test_hosts_lists_the_nodes_before_the_lines_of_the_system() -> None:
    text = node_names._hosts_text(node_names.loopback_addresses(["node1", "node2"]))
    assert text.startswith("127.1.0.1 node1\n127.1.0.2 node2\n")
    assert text.endswith(Path("/etc/hosts").read_text())


def test_system_without_namespaces_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    addresses = {"no-such-node-1": "127.1.0.1", "no-such-node-2": "127.1.0.2"}
    names, problem = node_names.provide_names(tmp_path / "hosts", addresses, rename=True)
    assert names is None
    assert problem is not None
    assert "this system has no namespaces" in problem
    assert "add to /etc/hosts: 127.0.0.1 no-such-node-1 no-such-node-2" in problem
    assert not (tmp_path / "hosts").exists()


def test_names_that_resolve_to_this_machine_need_no_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert node_names.provide_names(tmp_path / "hosts", {"localhost": "127.1.0.1"}, rename=True) == (None, None)
