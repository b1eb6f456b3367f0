"""A node's agent at its start, and when some of its ranks end while others continue. No process is started."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from frog.core.env import MAY_MEET, SURVIVES
from frog.launch.torchrun import agent as torchrun
from frog.launch.torchrun import elastic

TORCHS = RunResult(state=WorkerState.FAILED)
"""The result of torch's own check."""
GROUP: Any = SimpleNamespace(
    group_rank=0,
    group_world_size=1,
    workers=[SimpleNamespace(global_rank=rank, id=2**22 + rank) for rank in range(3)],
    spec=SimpleNamespace(numa_options=None),
)

MakeAgent = Callable[..., Any]


@pytest.fixture
def make_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeAgent:
    """Return an agent whose ranks have ended with these codes; None: still running."""
    monkeypatch.setenv("FROG_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: TORCHS)
    monkeypatch.setattr(torchrun._ReportingAgent, "reports", tmp_path / "reports", raising=False)
    monkeypatch.setattr(torchrun._ReportingAgent, "pids", ())
    (tmp_path / SURVIVES).touch()
    (tmp_path / "run_folder").write_text("runs/one")

    def make(*codes: int | None) -> Any:
        agent: Any = torchrun._ReportingAgent.__new__(torchrun._ReportingAgent)
        agent._attempt, agent._ended_ns, agent._left = 0, {}, []
        procs = [SimpleNamespace(pid=2**22 + n, poll=lambda code=code: code) for n, code in enumerate(codes)]
        places = dict.fromkeys(range(len(codes)), str(tmp_path / "none"))
        agent._pcontext = SimpleNamespace(
            subprocess_handlers={local: SimpleNamespace(proc=proc) for local, proc in enumerate(procs)},
            _running_local_ranks=set(range(len(codes))),
            error_files=places, envs=places, stdouts=places, stderrs=places, entrypoint="python",
        )  # fmt: skip
        return agent

    return make


def reported(folder: Path) -> list[tuple[str, int]]:
    lines = map(json.loads, (folder / "reports").read_text().splitlines())
    return [(line["event"], line["rank"]) for line in lines]


def test_agent_does_not_ask_torch_while_ranks_run(make_agent: MakeAgent, tmp_path: Path) -> None:
    """torch would end all remaining ranks if another one had failed meanwhile."""
    agent = make_agent(-9, None, None)
    assert agent._monitor_workers(GROUP).state is WorkerState.HEALTHY
    assert reported(tmp_path) == [("exit", 0)]
    assert make_agent(0, 0)._monitor_workers(GROUP) is TORCHS
    assert make_agent(-9, -9)._monitor_workers(GROUP) is TORCHS


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of replacements that the agent starts; an OSError in it is raised."""
    found: list[Any] = [SimpleNamespace(proc=SimpleNamespace(pid=2**22 + 10, poll=lambda: None))]

    def handler(
        *, entrypoint: Any, args: Any, env: Any, stdout: Any, stderr: Any, local_rank_id: int, numa_options: Any
    ) -> Any:
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    monkeypatch.setenv("FROG_REPLACE", "1")
    monkeypatch.setattr(elastic.processes, "get_subprocess_handler", handler)
    return found


def test_killed_rank_is_replaced(make_agent: MakeAgent, start: list[Any], tmp_path: Path) -> None:
    agent = make_agent(None, -9)
    assert agent._monitor_workers(GROUP).state is WorkerState.HEALTHY
    assert reported(tmp_path) == [("exit", 1), ("replace", 1)]
    assert agent._pcontext._running_local_ranks == {0, 1}


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_stopped_rank_is_not_replaced(asked: int, make_agent: MakeAgent, start: list[Any], tmp_path: Path) -> None:
    assert make_agent(None, 128 + asked)._monitor_workers(GROUP).state is WorkerState.HEALTHY
    assert reported(tmp_path) == [("exit", 1)]


def test_other_ranks_continue_if_no_replacement_can_start(
    make_agent: MakeAgent, start: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start[0] = BlockingIOError(11, "Resource temporarily unavailable")
    assert make_agent(None, -9)._monitor_workers(GROUP).state is WorkerState.HEALTHY
    assert reported(tmp_path) == [("exit", 1)]
    assert "Resource temporarily unavailable" in capsys.readouterr().err


def test_losses_of_one_world_do_not_affect_the_next(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start_workers(*_: Any) -> Any:
        assert not (tmp_path / SURVIVES).exists()
        raise InterruptedError

    monkeypatch.setattr(LocalElasticAgent, "_start_workers", start_workers)
    with pytest.raises(InterruptedError):
        make_agent(None)._start_workers(GROUP)


def test_agent_announces_itself_and_waits_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def sleep(_: float) -> None:
        waited.append((tmp_path / "reports.up").exists())
        (tmp_path / MAY_MEET).touch()

    monkeypatch.setenv("FROG_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setattr(torchrun, "time", SimpleNamespace(sleep=sleep))
    torchrun._wait_for_others(tmp_path / "reports.jsonl")
    assert waited == [True]
