"""Starting a node's processes, and their output; `Popen` only notes what it is given."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.core.runs.folder import RunFolder
from frog.launch import node_agents
from frog.launch.network import Link
from frog.launch.node_agents import Agent, NodeOutput, Options, Starter, agent_command
from frog.launch.nodes import parse_nodes
from frog.launch.rank_output import RankOutput, pipe_path


class Opened:
    """Stands for `subprocess.Popen`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []
        self.acts: list[str] = []
        monkeypatch.setattr(subprocess, "Popen", self)

    def __call__(self, command: list[str], **settings: Any) -> Any:
        self.calls.append((command, settings))
        return SimpleNamespace(
            pid=7, kill=lambda: self.acts.append("kill"), wait=lambda: self.acts.append("wait"), stdout=None
        )


NETWORK: Any = SimpleNamespace(
    interface="eth0",
    address=lambda node: f"10.77.0.{node + 1}",
    enter=lambda node, command: ["enter", str(node), *command],
)


@pytest.mark.parametrize("network", [None, NETWORK])
def test_launch_is_described_by_its_nodes_and_its_link(network: Any, tmp_path: Path) -> None:
    link = None if network is None else Link(1e6)
    starter = Starter(parse_nodes("2x3"), ("my.py", "-x"), Options(restarts=2, network=link), tmp_path, network)
    addresses = ["127.0.0.1", "127.0.0.2"] if network is None else ["10.77.0.1", "10.77.0.2"]
    if network is None and not sys.platform.startswith("linux"):
        addresses = ["127.0.0.1"] * 2
    assert starter.describe() == {
        "nodes": [{"node": n, "host": f"node{n}", "address": addresses[n]} for n in (0, 1)],
        "ranks_per_node": 3, "program": ["my.py", "-x"], "restarts": 2,
        "network": None if link is None else link.describe(),
    }  # fmt: skip


def test_store_has_a_socket_whose_port_the_agents_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    starter = Starter(parse_nodes("2x1"), ["my.py"], Options(), tmp_path, None)
    starter.close()  # there is none yet
    starter.start_store()
    starter.close()
    ((command, settings),) = opened.calls
    module, descriptor = command[:-1], int(command[-1])
    assert module == [sys.executable, "-P", "-m", "frog.launch.torchrun.store"]
    assert (settings["pass_fds"], settings["start_new_session"]) == ((descriptor,), True)
    assert settings["env"]["FROG_LAUNCHER_PID"] == str(os.getpid())
    assert opened.acts == ["kill", "wait"]
    host, _, port = starter._endpoint.partition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    with pytest.raises(ConnectionRefusedError):  # the launcher has closed it; the store has a copy
        socket.create_connection((host, int(port))).close()


def test_store_of_a_network_is_inside_its_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    starter = Starter(parse_nodes("2x1"), ["my.py"], Options(), tmp_path, NETWORK)
    starter.start_store()
    ((command, settings),) = opened.calls
    module = [sys.executable, "-P", "-m", "frog.launch.torchrun.store"]
    assert command == ["enter", "0", *module, "10.77.0.1:29400"]
    assert (settings["start_new_session"], starter._endpoint) == (True, "10.77.0.1:29400")


@pytest.mark.parametrize(("nodes", "is_piped"), [("1x2", False), ("2x2", True)])
@pytest.mark.parametrize("network", [None, NETWORK])
@pytest.mark.parametrize("records", [False, True])
def test_agent_is_started_with_its_own_folder_and_pipes(
    nodes: str, is_piped: bool, network: Any, records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    starter = Starter(parse_nodes(nodes), ["my.py"], Options(restarts=1), tmp_path, network)
    starter.output = RankOutput(None) if records else None
    starter._endpoint = "here:1"
    found = [starter.start_agent(0), starter.start_agent(0)]
    assert [agent.reports.relative_to(tmp_path) for agent in found] == [
        Path("node_0_0/reports.jsonl"), Path("node_0_1/reports.jsonl"),
    ]  # fmt: skip
    assert [(agent.node, agent.host, agent.process.pid) for agent in found] == [(0, "node0", 7)] * 2
    for agent, (command, settings) in zip(found, opened.calls, strict=True):
        inside = agent_command(starter.nodes, starter.address(0), "here:1", agent.reports, ["my.py"], 1)
        assert command == (["enter", "0", *inside] if network else inside)
        assert settings.pop("env")["FROG_LAUNCH_DIR"] == str(tmp_path)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        assert settings == {"start_new_session": True, **(pipes if is_piped else {})}
        assert [pipe_path(agent.reports.parent, rank).exists() for rank in (0, 1, 2)] == [records, records, False]
    if starter.output is not None:
        starter.output.close()
        assert {pipe.host for pipe in starter.output._pipes} == {"node0" if is_piped else ""}


@pytest.mark.parametrize(
    ("num_gpus", "own"), [(8, ["0,1,2", "3,4,5"]), (7, ["0,1,2", "3,4,5"]), (6, ["0,1,2", "3,4,5"]), (5, ["", ""])]
)
def test_simulated_nodes_share_the_gpus_if_there_is_one_for_each_rank(
    num_gpus: int, own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_agents, "visible_gpus", lambda: [str(number) for number in range(num_gpus)])
    monkeypatch.setattr(node_agents, "rank_environment", lambda *_: {})
    for simulated in (None, 3):
        starter = Starter(parse_nodes("2x3"), [], Options(simulate_gpus=simulated), tmp_path, None)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        found = [starter.environment(node).get("CUDA_VISIBLE_DEVICES") for node in (0, 1)]
        assert found == (own if simulated is None else [None, None])
    alone = Starter(parse_nodes("1x3"), [], Options(), tmp_path, None)
    assert "CUDA_VISIBLE_DEVICES" not in alone.environment(0)  # a real node's ranks see all


@pytest.mark.parametrize(
    ("has_output", "has_folder", "observe", "is_observed"),
    [(True, True, True, True), (True, True, False, False), (True, False, True, False), (False, False, True, False)],
)
def test_ranks_of_a_recorded_program_are_observed(
    has_output: bool,
    has_folder: bool,
    observe: bool,
    is_observed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        node_agents, "rank_environment", lambda before, *others: asked.append((dict(before), *others)) or {"MORE": "1"}
    )
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    options = Options(observe=observe, hooks=("one", "two"), simulate_gpus=4)
    starter = Starter(parse_nodes("2x1"), [], options, tmp_path, NETWORK)
    starter.output = RankOutput(RunFolder(tmp_path / "run") if has_folder else None) if has_output else None
    env = starter.environment(1)
    assert (env["MORE"], env["GLOO_SOCKET_IFNAME"], env["FROG_NODE_NAME"]) == ("1", "eth0", "node1")
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert env.get("PYTHONUNBUFFERED") == ("1" if has_output else None)
    ((before, folder, modules, num_gpus),) = asked
    assert (folder, modules, num_gpus) == (tmp_path / "run" if is_observed else None, ("one", "two"), 4)
    assert before["FROG_NODE_NAME"] == "node1"


# ---- a running agent -------------------------------------------------------------------------------------------------


def test_agent_is_killed_with_the_ranks_that_it_started_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(node_agents, "kill_group", killed.append)
    agent = Agent(0, "node0", SimpleNamespace(pid=7), tmp_path, pids={0: 40, 1: 50})  # type: ignore[arg-type]
    agent.kill_ranks()
    assert killed == [40, 50]
    agent.kill()
    assert killed[2:] == [7, 40, 50]
    agent.finish()  # what the agent started without reporting it
    assert (killed[5:], agent.done) == ([7], True)


@pytest.mark.parametrize("ends", [True, False])
def test_last_lines_of_an_ended_agent_are_awaited(ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agents, "kill_group", lambda pid: None)
    stdout = io.BytesIO(b"one\n")
    agent = Agent(0, "node0", SimpleNamespace(pid=7, stdout=stdout), tmp_path)  # type: ignore[arg-type]
    copied, may_end = list[bytes](), threading.Event()

    def copy(lines: Any, of: Agent) -> None:
        assert of is agent
        copied.extend(lines)
        may_end.wait(60 if not ends else 0)

    agent.copy_lines(SimpleNamespace(copy=copy))  # type: ignore[arg-type]
    assert agent._printer is not None
    join, waited = agent._printer.join, list[float | None]()
    monkeypatch.setattr(
        agent._printer, "join", lambda timeout=None: waited.append(timeout) or join(timeout if ends else 0)
    )
    agent.finish()
    assert (stdout.closed, agent.done, waited) == (ends, True, [5])  # another process may still write to it
    may_end.set()
    join()
    assert copied == [b"one\n"]


def test_nodes_have_their_own_logs_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = NodeOutput()
    one, two = (Agent(node, f"node{node}", SimpleNamespace(pid=7), tmp_path) for node in (1, 2))  # type: ignore[arg-type]
    output.copy(io.BytesIO(b"a\n\xffb"), one)
    output.copy(io.BytesIO(b"c\n"), two)
    assert capsys.readouterr().out.splitlines() == ["node1 | a", "node1 | \ufffdb", "node2 | c"]
    for _ in range(2):  # asked again and again
        output.open_log(1, tmp_path / "new" / "one.log")
        output.open_log(2, tmp_path / "two.log")
    output.copy(io.BytesIO(b"d\n"), two)
    assert [line.rpartition(" ")[2] for line in (tmp_path / "two.log").read_text().splitlines()] == ["c", "d"]
    assert [line.rpartition(" ")[2] for line in (tmp_path / "new" / "one.log").read_text().splitlines()] == [
        "a", "\ufffdb",
    ]  # fmt: skip
    output.close()
    output.copy(io.BytesIO(b"late\n"), two)
    assert "late" not in (tmp_path / "two.log").read_text()


def test_long_lines_of_a_node_continue_below_their_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_agents, "terminal_columns", lambda: 24)
    agent = Agent(1, "node1", SimpleNamespace(pid=7), tmp_path)  # type: ignore[arg-type]
    NodeOutput().copy(io.BytesIO(b"three words of twenty letters\n"), agent)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("node1 | three words")
    assert others
    assert {len(line) - len(line.lstrip()) for line in others} == {len("node1 | ")}
