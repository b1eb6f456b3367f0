"""Parts of a node's agent, without ranks: when it forks them, and the store in which nodes find each other."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistNetworkError
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from frog.core.errors import FrogError
from frog.core.processes import NOT_MET
from frog.launch.rank_output import mark, pipe_path
from frog.launch.torchrun import agent, elastic, forkserver, store


@pytest.mark.parametrize(
    ("script", "method", "gpus", "changes", "forks"),
    [
        ("frog.train", None, None, {}, True),
        ("frog.train", "fork", None, {}, True),
        ("frog.train", "spawn", None, {}, False),
        ("frog.train", None, "cuda", {}, False),
        ("frog.train", None, "hip", {}, False),
        ("frog.train", "fork", "cuda", {}, True),
        ("other.train", None, None, {}, False),
        ("other.train", "fork", None, {}, True),
        ("frog.train", None, None, {"module": False}, False),
        ("frog.train", "fork", None, {"module": False}, True),
        ("frog.train", None, None, {"no_python": True}, False),
        ("frog.train", "fork", None, {"no_python": True}, False),
    ],
)
def test_ranks_are_forked_for_programs_of_frog_without_gpus_or_on_request(
    script: str,
    method: str | None,
    gpus: str | None,
    changes: dict[str, bool],
    forks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str | None] = []
    used: list[object] = []
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, "12" if name == gpus else None)
    monkeypatch.setattr(agent, "start_method", lambda: method)
    monkeypatch.setattr(agent, "missing_to_fork", lambda: None)
    monkeypatch.setattr(
        agent, "start_fork_server", lambda module: started.append(module) or SimpleNamespace(fork="a fork")
    )
    monkeypatch.setattr(agent, "fork_ranks_with", used.append)
    args: Any = SimpleNamespace(**{"module": True, "no_python": False, "training_script": script, **changes})
    agent._fork_ranks(args)
    assert started == ([script if args.module else None] if forks else [])
    assert used == (["a fork"] if forks else [])


def test_torch_without_what_forks_ranks_is_an_error_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    args: Any = SimpleNamespace(module=True, no_python=False, training_script="frog.train")
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, None)
    monkeypatch.setattr(agent, "missing_to_fork", lambda: "a name")
    monkeypatch.setattr(agent, "start_method", lambda: "fork")
    with pytest.raises(FrogError, match="FROG_START=fork"):
        agent._fork_ranks(args)
    monkeypatch.setattr(agent, "start_method", lambda: None)
    agent._fork_ranks(args)


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("own_pages", "own_pages.main"), ("own_page", "own_page"), ("own_pages.main", "own_pages.main")],
)
def test_fork_server_loads_what_a_package_runs(
    module: str, loaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_pages").mkdir()
    for name in ("own_pages/__init__.py", "own_pages/main.py", "own_page.py"):
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []
    monkeypatch.setattr(forkserver.importlib, "import_module", seen.append)
    forkserver._load(module)
    assert seen == [loaded]


class Ended(Exception):
    """The store's process is killed."""


@pytest.mark.parametrize("by_address", [True, False])
def test_store_serves_at_its_address_until_it_is_killed(by_address: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise Ended

    monkeypatch.setattr(store, "leave_with_parent", lambda: None)
    monkeypatch.setattr(store, "TCPStore", lambda *args, **settings: made.append((*args, settings)) or object())
    monkeypatch.setattr(store.time, "sleep", sleep)
    settings = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(Ended):
            store.main(f"127.0.0.1:{port}" if by_address else str(listening.fileno()))
        settings |= {} if by_address else {"master_listen_fd": listening.fileno()}
        assert made == [("127.0.0.1", port, settings)]
        assert listening.getsockname()[1] == port  # still open


# ---- the agent's process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (ChildFailedError("my.py", {0: ProcessFailure(0, 7, 1, "none")}), 1, ""),
        (RendezvousTimeoutError("too late"), NOT_MET, "the nodes did not connect: RendezvousTimeout: too late\n"),
        (DistNetworkError(), NOT_MET, "the nodes did not connect: DistNetwork\n"),
        (SignalException("asked", signal.SIGTERM), 143, ""),
        (SignalException("asked", signal.SIGINT), 130, ""),
    ],
)
@pytest.mark.parametrize("is_piped", [False, True])
def test_exit_code_of_an_agent_says_how_its_ranks_ended(
    error: BaseException | None,
    code: int,
    said: str,
    is_piped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output of Frog's own programs is not piped, and only their ranks may be forked."""
    acts: list[str] = []

    def run(args: Any) -> None:
        assert (args.nproc_per_node, args.training_script) == ("2", "my.py")
        acts.append("run")
        if error is not None:
            raise error

    if is_piped:
        pipe_path(tmp_path, 0).touch()
    monkeypatch.setattr(agent._ReportingAgent, "reports", None, raising=False)
    monkeypatch.setattr(agent, "run", run)
    monkeypatch.setattr(agent, "_fork_ranks", lambda args: acts.append("may fork"))
    monkeypatch.setattr(agent, "leave_with_parent", lambda last: acts.append("leaves with its parent"))
    monkeypatch.setattr(agent, "_wait_for_others", lambda reports: acts.append("waits"))
    monkeypatch.setattr(agent, "use_agent", lambda kind: acts.append(kind.__name__))
    monkeypatch.setattr(agent, "pipe_output", lambda folder: acts.append(f"pipes {folder.name}"))
    arguments = [str(tmp_path / "reports.jsonl"), "--nproc-per-node", "2", "my.py"]
    assert agent.main(arguments) == code
    assert capsys.readouterr().err == said
    first, last = ([], [f"pipes {tmp_path.name}"]) if is_piped else (["may fork"], [])
    assert acts == [*first, "leaves with its parent", "waits", "_ReportingAgent", *last, "run"]
    assert agent._ReportingAgent.reports == tmp_path / "reports.jsonl"


def test_ranks_of_an_agent_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(agent, "kill_group", killed.append)
    monkeypatch.setattr(agent._ReportingAgent, "pids", (11, 12))
    agent._kill_ranks()
    assert killed == [11, 12]


@pytest.mark.parametrize(("round_", "attempt"), [(None, 2), (0, 0), (7, 7)])
def test_attempt_is_the_round_of_the_rendezvous_or_the_agents_own_restart(
    round_: int | None, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(LocalElasticAgent, "_rendezvous", lambda *_: None)
    monkeypatch.setattr(agent, "check_state", lambda _: None)
    monkeypatch.setattr(agent, "set_attempt", told.append)
    handler = SimpleNamespace() if round_ is None else SimpleNamespace(
        _state_holder=SimpleNamespace(state=SimpleNamespace(round=round_))
    )  # fmt: skip
    group: Any = SimpleNamespace(spec=SimpleNamespace(rdzv_handler=handler, max_restarts=5))
    own: Any = agent._ReportingAgent.__new__(agent._ReportingAgent)
    own._worker_group, own._remaining_restarts = group, 3
    own._rendezvous(group)
    assert (own._attempt, told) == (attempt, [attempt])


def test_agent_outside_a_launch_waits_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "launch_dir", lambda: None)
    agent._wait_for_others(tmp_path / "reports.jsonl")
    assert list(tmp_path.iterdir()) == []


# ---- torch's agent ---------------------------------------------------------------------------------------------------


def test_output_of_each_rank_goes_to_its_pipe_after_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic.PipedOutput, "folder", tmp_path, raising=False)
    monkeypatch.setattr(elastic, "attempt_number", lambda: 3)
    envs = {local: {"RANK": str(4 + local), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "x"}
            for local in (0, 1)}  # fmt: skip
    logs = elastic.PipedOutput(log_dir=str(tmp_path / "logs")).reify(envs)
    pipes = {local: str(pipe_path(tmp_path, local)) for local in (0, 1)}
    assert (logs.stdouts, logs.stderrs) == (pipes, pipes)
    assert [Path(pipe).read_bytes() for pipe in pipes.values()] == [mark(4, 3), mark(5, 3)]


@pytest.mark.parametrize(
    ("stdout", "stderr", "forked", "started"),
    [(None, None, "a fork", "a fork"), (None, None, None, "a program"), ("file", None, "a fork", "a program"),
     (None, "file", "a fork", "a program")],
)  # fmt: skip
def test_rank_with_its_own_output_is_a_new_program(
    stdout: str | None, stderr: str | None, forked: str | None, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubprocessHandler, "_popen", lambda self, args, env: "a program")
    monkeypatch.setattr(elastic.ForkingHandler, "fork", staticmethod(lambda args, env: forked), raising=False)
    handler: Any = elastic.ForkingHandler.__new__(elastic.ForkingHandler)
    handler._stdout, handler._stderr = stdout, stderr
    assert handler._popen(("x",), {}) == started


def test_agent_without_ranks_has_no_processes() -> None:
    holder: Any = SimpleNamespace(_pcontext=None)
    assert elastic.processes_of(holder) == []
    holder._pcontext = SimpleNamespace(subprocess_handlers={0: SimpleNamespace(proc="one")})
    assert elastic.processes_of(holder) == ["one"]


@pytest.mark.parametrize("name", ["get_subprocess_handler", "_popen"])
def test_name_that_forking_needs_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert elastic.missing_to_fork() is None
    monkeypatch.delattr(SubprocessHandler if name == "_popen" else elastic.processes, name)
    missing = elastic.missing_to_fork()
    assert missing is not None
    assert missing.endswith(f".{name}")


def test_error_of_a_failed_rank_is_described_with_its_code(tmp_path: Path) -> None:
    own = {"message": "ValueError: no", "extraInfo": {"timestamp": "100", "py_callstack": "its traceback"}}
    (tmp_path / "error").write_text(json.dumps({"message": own}))
    failure = ProcessFailure(1, 77, -9, str(tmp_path / "error"))
    found = agent._describe(5, failure)
    assert (found["rank"], found["pid"], found["code"], found["traceback"]) == (5, 77, -9, "its traceback")
    assert (found["time_s"], found["error"]["type"], found["error"]["unix_ns"]) == (100, "ValueError", 100 * 10**9)
    silent = agent._describe(5, ProcessFailure(1, 77, 1, str(tmp_path / "none")))
    assert (silent["code"], silent["error"]) == (1, None)
