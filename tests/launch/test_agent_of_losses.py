"""A node's agent at its start, and when some of its ranks end while others continue. No process is started."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

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
    for rank, worker in enumerate(GROUP.workers):
        worker.id = 2**22 + rank  # a replacement has another one

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


# ---- what the agent of any program reports ---------------------------------------------------------------------------


@pytest.fixture
def plain_agent(make_agent: MakeAgent, tmp_path: Path) -> MakeAgent:
    """Return an agent whose run ends when a rank is lost."""
    (tmp_path / SURVIVES).unlink()
    return make_agent


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "reports").read_text().splitlines()]


def test_world_is_reported_with_its_ranks_and_processes(
    plain_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group: Any = SimpleNamespace(
        group_rank=1, master_addr="127.0.0.1", master_port=7,
        workers=[SimpleNamespace(global_rank=4 + local, local_rank=local, world_size=6) for local in (0, 1)],
    )  # fmt: skip
    monkeypatch.setattr(LocalElasticAgent, "_start_workers", lambda *_: {1: 51, 0: 50})
    agent = plain_agent(None)
    agent._attempt = 3
    assert agent._start_workers(group) == {0: 50, 1: 51}
    (line,) = lines(tmp_path)
    assert line.pop("unix_ns") > 10**18
    assert line == {
        "event": "world", "attempt": 3, "node_rank": 1, "ranks": [4, 5], "world_size": 6,
        "master_addr": "127.0.0.1", "master_port": 7, "pids": [50, 51],
    }  # fmt: skip
    assert (sorted(agent.pids), agent._asked, agent._left, agent._ended_ns) == ([50, 51], False, [], {})


@pytest.mark.parametrize(("code", "restarts"), [(1, 4), (2, 0), (-9, 4)])
def test_failure_is_reported_with_the_ranks_that_had_left_and_a_usage_error_is_not_retried(
    code: int, restarts: int, plain_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = ProcessFailure(1, 2**22 + 1, code, str(tmp_path / "none"))
    result = RunResult(state=WorkerState.FAILED, failures={1: failed})
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: result)
    monkeypatch.setattr(torchrun.time, "time_ns", lambda: 77)
    agent = plain_agent(0, code, None)
    agent._remaining_restarts, agent._asked = 4, True
    assert agent._monitor_workers(GROUP) is result
    assert agent._remaining_restarts == restarts
    assert agent._ended_ns == {2**22: 77, 2**22 + 1: 77}
    (line,) = lines(tmp_path)
    assert (line["event"], line["rank"], line["code"], line["left"], line["unix_ns"]) == ("exit", 1, code, [0], 77)
    assert (line["node_rank"], line["attempt"], line["pid"]) == (0, 0, 2**22 + 1)


@pytest.mark.parametrize(
    ("codes", "has_folder", "asked_before", "asks"),
    [
        ((1, None, None), True, False, True),
        ((-9, 0, None), True, False, True),
        ((0, None, None), True, False, False),
        ((None, None, None), True, False, False),
        ((1, None, None), False, False, False),
        ((1, None, None), True, True, False),
    ],
)
def test_other_ranks_are_asked_once_after_a_failure(
    codes: tuple[int | None, ...],
    has_folder: bool,
    asked_before: bool,
    asks: bool,
    plain_agent: MakeAgent,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    asked: list[tuple[Path, int, set[int]]] = []
    monkeypatch.setattr(torchrun, "run_dir", lambda: tmp_path if has_folder else None)
    monkeypatch.setattr(
        torchrun, "ask_others", lambda folder, attempt, running: asked.append((folder, attempt, running()))
    )
    agent = plain_agent(*codes)
    agent._attempt, agent._asked = 2, asked_before
    agent._ask_others(GROUP)
    running = {rank for rank, code in enumerate(codes) if code is None}
    assert asked == ([(tmp_path, 2, running)] if asks else [])
    assert agent._asked == (asks or asked_before)


@pytest.mark.parametrize("survives", [False, True])
def test_ranks_that_survive_losses_do_not_wait_for_other_nodes_at_the_end(
    survives: bool, plain_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(LocalElasticAgent, "_exit_barrier", lambda *_: waited.append(True))
    if survives:
        (tmp_path / SURVIVES).touch()
    node_1 = plain_agent(None)
    node_1._store, node_1._worker_group = HashStore(), SimpleNamespace(group_rank=1, group_world_size=2)
    node_1._exit_barrier()
    assert waited == ([] if survives else [True])
    assert node_1._store.check(["left_1"]) == (not survives)


def test_node_with_the_store_leaves_torchs_exit_barrier_last() -> None:
    calls: list[tuple[str, ...]] = []
    store: Any = SimpleNamespace(
        set=lambda key, _: calls.append(("set", key)), wait=lambda keys, _: calls.append(("wait", *keys))
    )
    for node in range(3):
        torchrun.leave_before_node_0(store, node, 3)
    assert calls == [("wait", "left_1", "left_2"), ("set", "left_1"), ("set", "left_2")]


def test_node_with_the_store_does_not_wait_long_for_a_node_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "_LONGEST_TO_LEAVE", timedelta(milliseconds=1))
    torchrun.leave_before_node_0(HashStore(), 0, 2)


@pytest.mark.parametrize(
    ("code", "error", "taken", "number"),
    [
        (-9, None, 0, 1),
        (1, {"type": "ValueError"}, 0, 1),
        (1, {"type": "CommError"}, 0, None),  # it lost all others
        (2, None, 0, None),
        (128 + signal.SIGTERM, None, 0, None),
        (-9, None, 1, 2),
        (-9, None, 2, None),
    ],
)
def test_number_of_replacements_is_shared_by_all_agents(
    code: int,
    error: dict[str, str] | None,
    taken: int,
    number: int | None,
    make_agent: MakeAgent,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FROG_REPLACE", "2")
    for one in range(1, taken + 1):
        (tmp_path / f"replaced_{one}").touch()
    assert make_agent(None)._reserve_replacement({"code": code, "error": error}) == number
    assert len(list(tmp_path.glob("replaced_*"))) == taken + (number is not None)
