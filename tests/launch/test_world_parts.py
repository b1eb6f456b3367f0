"""The parts of a world's launcher, with nodes and agents that only note what is done to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.core.env import MAY_MEET, SURVIVES
from frog.core.errors import HangError, LaunchError, UsageError
from frog.core.processes import NOT_MET
from frog.core.runs.folder import RunFolder
from frog.core.runs.launch_request import LaunchRequest
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS
from frog.core.schema import write_typed
from frog.launch import network, world
from frog.launch.launch_record import RecordedProgram
from frog.launch.lifecycle import State
from frog.launch.node_agents import Options, Starter
from frog.launch.nodes import Nodes, parse_nodes
from frog.launch.world import _Launch, run_world


class Node:
    """An agent without a process."""

    def __init__(self, node: int, code: int | None = None, **pids: int) -> None:
        self.node, self.host, self.code = node, f"node{node}", code
        self.pids = {int(rank[1:]): pid for rank, pid in pids.items()}
        self.watched = dict(self.pids)
        self.done = self.excused = False
        self.acts: list[str] = []
        self.reports: list[dict[str, Any]] = []
        self.process = self

    @property
    def returncode(self) -> int | None:
        return self.code

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.acts.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.acts.append("kill")

    def kill_ranks(self) -> None:
        self.acts.append("kill ranks")

    def finish(self) -> None:
        self.done = True

    def news(self) -> Iterator[dict[str, Any]]:
        yield from self.reports


def launch_of(path: Path, nodes: str, *agents: Any, **options: Any) -> _Launch:
    asked = Options(**options)
    launch = _Launch(parse_nodes(nodes), asked, path, Starter(parse_nodes(nodes), [], asked, path, None))
    launch.agents = [*agents]
    return launch


def recorded(launch: _Launch) -> list[tuple[str, dict[str, Any]]]:
    """Return what is journaled from now on."""
    found: list[tuple[str, dict[str, Any]]] = []

    def record(event: str, unix_ns: int | None = None, **fields: Any) -> None:
        assert fields.keys() == set(LAUNCHER_FIELDS[event])
        found.append((event, fields))

    launch.journal.record = record  # type: ignore[method-assign]
    return found


# ---- the start -------------------------------------------------------------------------------------------------------


class Launched:
    """Stands for a launch, and notes how it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: Nodes
        self.starter: Starter
        self.recorded: Any = None
        self.acts: list[str] = []
        self.fails = False
        monkeypatch.setattr(world, "_Launch", self.make)

    def make(self, nodes: Nodes, options: Options, scratch: Path, starter: Starter, recorded: Any) -> Launched:
        assert scratch.is_dir()
        self.nodes, self.starter, self.recorded = nodes, starter, recorded
        return self

    def run(self) -> int:
        self.acts.append("run")
        if self.fails:
            raise LaunchError("failed")
        return 7

    def clean_up(self) -> None:
        self.acts.append("clean up")


def test_number_of_ranks_means_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch)
    needed: list[tuple[int, str]] = []
    monkeypatch.setattr(world, "check_memory", lambda num_bytes, what, hint: needed.append((num_bytes, what)))
    assert run_world(1, ["train", "run.toml"]) == 7
    assert (launched.nodes, launched.starter.words) == (Nodes(1, 1, 1), ("-m", "frog.train", "run.toml"))
    assert run_world(Nodes(1, 3, 2), ["train", "run.toml"]) == 7
    assert launched.nodes == Nodes(1, 3, 2)
    assert [what for _, what in needed] == ["a world of 1 ranks", "a world of 6 ranks"]
    assert needed[1][0] == 6 * needed[0][0]
    assert launched.acts == ["run", "clean up"] * 2
    with pytest.raises(UsageError, match="--nproc 0: a world needs at least one rank"):
        run_world(0, ["train", "run.toml"])


def test_launch_is_cleaned_up_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch)
    launched.fails = True
    with pytest.raises(LaunchError):
        run_world(1, ["train", "run.toml"])
    assert launched.acts == ["run", "clean up"]


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        ("prove", {"restarts": 1}, "prove cannot resume"),
        ("finetune", {"replace": 1}, "finetune does not support joining ranks"),
        ("finetune", {"restarts": 1}, None),
        ("train", {"restarts": 1, "replace": 1}, None),
        ("prove", {}, None),
    ],
)
def test_only_programs_with_checkpoints_restart_and_only_training_is_joined(
    program: str, options: dict[str, int], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Launched(monkeypatch)
    if said is None:
        assert run_world(1, [program, "x"], Options(**options)) == 7  # type: ignore[arg-type]
    else:
        with pytest.raises(UsageError, match=said):
            run_world(1, [program, "x"], Options(**options))  # type: ignore[arg-type]


def test_unknown_start_method_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch)
    monkeypatch.setenv("FROG_START", "clone")
    with pytest.raises(UsageError, match="FROG_START=clone: expected fork or spawn"):
        run_world(1, ["train", "run.toml"])
    assert launched.acts == []


@pytest.mark.parametrize(
    ("program", "runs", "is_recorded"),
    [("my.py", "runs", True), ("my.py", None, False), ("train", "runs", False)],
)
def test_run_folder_of_another_program_is_made_and_told(
    program: str, runs: str | None, is_recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").touch()
    launched = Launched(monkeypatch)
    told: list[Path] = []
    options = Options(runs=None if runs is None else Path(runs), on_folder=told.append)
    assert run_world(1, [program], options) == 7
    assert told == ([Path("runs/my")] if is_recorded else [])
    assert (launched.recorded is not None) == is_recorded
    assert launched.starter.output is (launched.recorded.output if is_recorded else None)


def test_network_exists_while_the_world_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch)

    @contextmanager
    def make(num_nodes: int, link: network.Link) -> Iterator[str]:
        launched.acts.append(f"network of {num_nodes}")
        yield "the network"
        launched.acts.append("no network")

    monkeypatch.setattr(network, "Network", make)
    assert run_world(Nodes(1, 3, 2), ["train"], Options(network=network.Link())) == 7
    assert launched.starter.network == "the network"
    assert launched.acts == ["network of 3", "run", "clean up", "no network"]


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_the_agents_and_the_second_kills_them(number: signal.Signals, tmp_path: Path) -> None:
    running, ended = Node(0), Node(1, code=0)
    launch = launch_of(tmp_path, "2x1", running, ended)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    launch.repairs.go(1, 0.0)
    with launch._take_signals():
        signal.raise_signal(number)
        assert (running.acts, launch.life.state, bool(launch.repairs)) == (["SIGTERM"], State.STOPPING, False)
        signal.raise_signal(number)
        assert running.acts == ["SIGTERM", "kill"]
    assert (ended.acts, launch.signals, launch._failed_by_itself) == ([], [number] * 2, False)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("has_failed", "is_asked"), [(False, True), (True, False)])
def test_ranks_that_wait_are_asked_before_the_first_signal_unless_one_has_failed(
    has_failed: bool, is_asked: bool, tmp_path: Path
) -> None:
    node, answered = Node(0), [False]
    launch = launch_of(tmp_path, "1x1", node)
    launch.failures = [{}] if has_failed else []  # type: ignore[typeddict-item]
    launch._stalls.ask_before_stop = lambda now: True  # type: ignore[method-assign]
    launch._stalls.may_stop = lambda now: answered[0]  # type: ignore[method-assign]
    with launch._take_signals():
        signal.raise_signal(signal.SIGINT)
        assert node.acts == ([] if is_asked else ["SIGTERM"])
        launch._stop_asked()
        assert node.acts == ([] if is_asked else ["SIGTERM"])
        answered[0] = True
        launch._stop_asked()
        assert node.acts[:1] == ["SIGTERM"]
        signal.raise_signal(signal.SIGINT)
        assert node.acts[-1] == "kill"
    assert launch._failed_by_itself == has_failed


# ---- reports, requests and hangs -------------------------------------------------------------------------------------


def world_event(attempt: int, node: int, *ranks: int, size: int = 4) -> dict[str, Any]:
    common = {"world_size": size, "master_addr": "x", "master_port": 1, "pids": [*ranks], "unix_ns": 1}
    return {"event": "world", "attempt": attempt, "node": node, "node_rank": node, "ranks": [*ranks], **common}


def test_table_of_a_world_is_printed_when_all_its_nodes_have_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = launch_of(tmp_path, "1:2x2")
    launch._show(world_event(0, 0, 0, 1))
    assert capsys.readouterr().out == ""
    launch._show(world_event(0, 1, 2, 3))
    told = capsys.readouterr()
    assert (len(told.out.splitlines()), told.err) == (3, "")
    assert launch.repairs.world == {0, 1}
    launch._show(world_event(2, 1, 0, 1, size=2))
    told = capsys.readouterr()
    assert (len(told.out.splitlines()), told.err) == (2, "restarted (attempt 2): world size 2\n")
    assert launch.repairs.world == {1}
    launch._show(world_event(1, 0, 0, 1, size=2))  # late
    assert (capsys.readouterr().out, launch.repairs.world) == ("", {1})
    assert [launch._ranks_of(attempt) for attempt in (0, 1, 2, 3)] == [{0, 1, 2, 3}, {0, 1}, {0, 1}, set()]
    alone = launch_of(tmp_path, "1x2")
    alone._show(world_event(0, 0, 0, 1, size=2))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "survives", "is_printed"),
    [({}, False, False), ({"restarts": 1}, False, True), ({}, True, True)],
)
def test_failure_is_printed_at_once_if_the_run_may_continue(
    options: dict[str, int], survives: bool, is_printed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(0, r1=11)
    fields = {"attempt": 0, "node": 0, "node_rank": 0, "rank": 1, "pid": 11, "code": -9, "error": None, "left": []}
    node.reports = [{"event": "exit", "unix_ns": 5, "time_s": 3, **fields, "traceback": None}]
    launch = launch_of(tmp_path, "1x2", node, **options)
    found = recorded(launch)
    if survives:
        (tmp_path / SURVIVES).touch()
    launch._handle_reports(node)  # type: ignore[arg-type]
    ((event, told),) = found
    assert (event, told["rank"], "time_s" in told) == ("exit", 1, False)
    ((failure),) = launch.failures
    assert (failure["time_s"], failure["unix_ns"], failure["rank"]) == (3, 5, 1)
    assert node.watched == ({1: 11} if survives else {})
    assert ("rank 1" in capsys.readouterr().err) == is_printed


def test_replacement_is_printed_with_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(0)
    told = {"attempt": 0, "node": 0, "node_rank": 0, "rank": 1, "lost": 11, "pid": 12, "number": 2, "unix_ns": 5}
    node.reports = [{"event": "replace", **told}]
    launch = launch_of(tmp_path, "1x2", node, replace=3)
    recorded(launch)
    launch._handle_reports(node)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "rank 1 is replaced by process 12 (2 of 3)\n"
    assert launch.failures == []


def test_requests_of_ranks_are_served_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(world, "kill_group", killed.append)
    first, second, gone = Node(0, r0=10), Node(1, r1=11, r2=12), Node(1, code=-9)
    launch = launch_of(tmp_path, "2x1", first, second, gone)
    found = recorded(launch)
    links: list[tuple[str, int]] = []
    launch.network = SimpleNamespace(  # type: ignore[assignment]
        cut=lambda node: links.append(("cut", node)), heal=lambda node: links.append(("heal", node))
    )
    launch._shown = {0: [], 3: []}
    for request in (
        LaunchRequest(act="kill_node", node=1), LaunchRequest(act="cut", node=0), LaunchRequest(act="heal", node=1),
        LaunchRequest(act="end_rank", pid=12), LaunchRequest(act="end_rank", pid=99),
    ):  # fmt: skip
        path = tmp_path / "requests" / f"{request.act}_{request.pid}.json"
        write_typed(path, request)
        launch._serve_requests()
        assert path.with_suffix(".done").exists()
    launch._serve_requests()
    assert (first.acts, second.acts, gone.acts) == ([], ["kill"], [])
    assert (links, killed) == ([("cut", 0), ("heal", 1)], [12])
    assert found == [("left_out", {"attempt": 3, "rank": 2, "pid": 12})]
    launch.network = None
    write_typed(tmp_path / "requests" / "cut_9.json", LaunchRequest(act="cut", node=0))
    launch._serve_requests()  # it is granted, and does nothing
    assert (tmp_path / "requests" / "cut_9.done").exists()


@pytest.mark.parametrize(
    ("state", "failed_attempts", "hangs", "is_ended"),
    [
        (State.RUNNING, [], True, True),
        (State.RUNNING, [], False, False),
        (State.RUNNING, [0], True, True),  # an earlier attempt
        (State.RUNNING, [0, 1], True, False),  # the other ranks wait for the failed one
        (State.FINISHING, [], True, False),
        (State.STOPPING, [], True, False),
    ],
)
def test_ranks_of_a_healthy_world_that_hangs_are_ended(
    state: State, failed_attempts: list[int], hangs: bool, is_ended: bool, tmp_path: Path
) -> None:
    running, ended = Node(0), Node(1, code=0)
    launch = launch_of(tmp_path, "2x1", running, ended)
    launch.life.state = state
    launch.failures = [{"attempt": attempt} for attempt in failed_attempts]  # type: ignore[typeddict-item]
    launch._shown = {0: [world_event(0, 0, 7)], 1: [world_event(1, 0, 0, 2), world_event(1, 1, 1)]}
    looked: list[tuple[int, set[int]]] = []
    launch._stalls.must_end = lambda attempt, ranks, now: looked.append((attempt, ranks)) or hangs  # type: ignore[assignment, return-value]
    launch._look_for_stalls()
    assert running.acts == (["kill ranks"] if is_ended else [])
    assert ended.acts == []
    assert looked in ([(1, {0, 1, 2})], [])


# ---- the end ---------------------------------------------------------------------------------------------------------

WENT_ON, CAME_BACK, FAILED, NOTHING = "continues without it", "comes back", "fails", "nothing"


@pytest.mark.parametrize(
    ("nodes", "code", "others", "more", "outcome"),
    [
        ("2x1", 0, [None], {}, NOTHING),
        ("2x1", 1, [None], {}, FAILED),
        ("2x1", -9, [None], {}, FAILED),
        ("2x1", -9, [None], {"restarts": 1}, CAME_BACK),
        ("2x1", -9, [None], {"restarts": 1, "returns": 1}, FAILED),
        ("2x1", -9, [None], {"restarts": 2, "returns": 1}, CAME_BACK),
        ("2x1", 1, [None], {"restarts": 1}, FAILED),
        ("2x1", NOT_MET, [None], {"restarts": 1}, FAILED),
        ("1x1", -9, [], {"restarts": 1}, FAILED),
        ("1:2x1", -9, [None], {}, WENT_ON),
        ("1:2x1", -9, [0], {}, WENT_ON),
        ("1:2x1", -9, [1], {}, FAILED),
        ("1:2x1", -9, [None], {"restarts": 1}, CAME_BACK),
        ("1:2x1", NOT_MET, [None], {}, WENT_ON),
        ("1:2x1", NOT_MET, [None], {"restarts": 1}, CAME_BACK),
        ("1:2x1", 1, [None], {}, FAILED),
        ("2:3x1", -9, [None, -9], {}, FAILED),
        ("2:3x1", -9, [None, None], {}, WENT_ON),
        ("2x1", 1, [None], {"survives": 1}, WENT_ON),
        ("2x1", 1, [0], {"survives": 1}, WENT_ON),
        ("2x1", 1, [2], {"survives": 1}, FAILED),
        ("1x1", 1, [], {"survives": 1}, FAILED),
        ("2x1", 1, [None], {"stopping": 1}, NOTHING),
    ],
)
def test_end_of_a_node_ends_the_world_unless_it_returns_or_others_are_enough(
    nodes: str,
    code: int,
    others: list[int | None],
    more: dict[str, int],
    outcome: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Node(0, code)
    launch = launch_of(tmp_path, nodes, node, *(Node(n, each) for n, each in enumerate(others, 1)),
                       restarts=more.get("restarts", 0))  # fmt: skip
    launch.repairs.returns = more.get("returns", 0)
    if "survives" in more:
        (tmp_path / SURVIVES).touch()
    if "stopping" in more:
        launch.life.stop(0.0)
    found = recorded(launch)
    launch._ended(node)  # type: ignore[arg-type]
    assert found == [("node", {"node": 0, "host": "node0", "code": code})]
    assert (node.done, node.acts) == (True, ["kill ranks"] if code else [])
    is_excused = outcome in (WENT_ON, CAME_BACK)
    assert (node.excused, bool(launch.repairs)) == (is_excused, outcome == CAME_BACK)
    assert (launch.life.state is State.FAILING) == (outcome == FAILED)
    assert launch.lost == ({"node0": 9} if code == -9 else {})
    how = "was lost (SIGKILL)" if code == -9 else "lost contact with the other nodes"
    assert capsys.readouterr().err == (f"node0 {how}\n" if is_excused else "")


@pytest.mark.parametrize(
    ("codes", "excused", "fails"),
    [
        ([0, 0], [], False),
        ([0, 3], [], True),
        ([0, 3], [1], False),
        ([3, 0], [1], True),
        ([3, 3], [0, 1], True),  # no node is left that counts
        ([], [], True),
    ],
)
def test_world_without_failed_agents_that_count_has_no_error(
    codes: list[int], excused: list[int], fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[list[int]] = []
    error = LaunchError("it failed")
    monkeypatch.setattr(world, "world_error", lambda failures, lost, codes, *_: judged.append(codes) or error)
    launch = launch_of(tmp_path, "2x1", *map(Node, range(len(codes)), codes))
    for node in excused:
        launch.agents[node].excused = True
    assert launch._error() is (error if fails else None)
    assert judged == ([[code for node, code in enumerate(codes) if node not in excused]] if fails else [])


@pytest.mark.parametrize("is_lost", [False, True])
def test_hang_is_the_error_unless_a_node_was_lost(
    is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang, other = HangError("all wait"), LaunchError("node1 was killed")
    launch = launch_of(tmp_path, "2x1", Node(0, 1))
    launch._stalls.error = lambda attempt: hang if attempt == 2 else None  # type: ignore[method-assign]
    launch._shown = {0: [], 2: []}
    launch.lost = {"node1": 9} if is_lost else {}
    monkeypatch.setattr(world, "world_error", lambda *_: other)
    assert launch._error() is (other if is_lost else hang)


def test_only_failures_of_the_last_attempt_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launch_of(tmp_path, "1x2")
    launch._shown = {0: [], 1: []}
    launch.failures = [{"attempt": attempt, "rank": attempt + 4} for attempt in (0, 1, 1)]  # type: ignore[typeddict-item]
    assert [failure["rank"] for failure in launch._final_failures()] == [5, 5]
    monkeypatch.setattr(world, "final_failures", lambda failures: failures[:1])
    (tmp_path / SURVIVES).touch()
    assert len(launch._final_failures()) == 1
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(world, "with_errors", lambda *args: seen.append(args) or ["described"])
    launch.recorded = RecordedProgram(None, RunFolder(tmp_path))  # type: ignore[arg-type]
    assert launch._final_failures() == ["described"]
    assert seen == [(launch.failures[1:2], launch.recorded.output.kept, launch.recorded.folder)]


def test_node_returns_only_while_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for running, state, starts in ((True, State.RUNNING, [1]), (False, State.RUNNING, []), (True, State.STOPPING, [])):
        launch = launch_of(tmp_path, "2x1", Node(0, None if running else 0), restarts=1)
        found, started = recorded(launch), list[int]()
        launch._start = started.append  # type: ignore[method-assign]
        launch.lost = {"node1": 9}
        launch.repairs.go(1, 0.0)
        launch.life.state = state
        launch._restart_lost_nodes()
        assert (started, bool(launch.repairs)) == (starts, False)
        assert found == [("return", {"node": 1, "host": "node1"})] * len(starts)
        assert launch.lost == ({} if starts else {"node1": 9})
        assert capsys.readouterr().err == "node1 returns\n" * len(starts)


def test_figures_of_the_network_may_be_missing_at_the_end(tmp_path: Path) -> None:
    def refuse() -> dict[str, Any]:
        raise LaunchError("the switch has ended")

    launch = launch_of(tmp_path, "2x1")
    assert launch._network_figures() is None
    launch.network = SimpleNamespace(describe=lambda: {"mtu": 1500})  # type: ignore[assignment]
    assert launch._network_figures() == {"mtu": 1500}
    launch.network = SimpleNamespace(describe=refuse)  # type: ignore[assignment]
    assert launch._network_figures() is None


# ---- a look at the world, twenty times a second ----------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "has_folder"), [("2x1", False), ("2x1", True), ("1x1", True)])
def test_nodes_have_logs_once_there_is_a_run_folder(nodes: str, has_folder: bool, tmp_path: Path) -> None:
    launch = launch_of(tmp_path, nodes, Node(0, 0), Node(1, 0))
    logs: list[tuple[int, Path]] = []
    signs: list[str] = []
    launch.output.open_log = lambda node, path: logs.append((node, path))  # type: ignore[method-assign]
    launch.recorded = SimpleNamespace(sign=lambda: signs.append("alive"))  # type: ignore[assignment]
    folder = RunFolder(tmp_path / "run")
    launch.journal.folder = folder if has_folder else None
    launch._tick()
    expected = [(node, folder.node_log(node)) for node in (0, 1)] if has_folder and nodes == "2x1" else []
    assert (logs, signs) == (expected, ["alive"])


def test_last_reports_of_an_ended_agent_are_read_before_its_end_is_judged(tmp_path: Path) -> None:
    node = Node(0, 3)
    launch = launch_of(tmp_path, "1x1", node)
    order: list[str] = []
    launch._handle_reports = lambda agent: order.append("reports")  # type: ignore[method-assign]
    launch._ended = lambda agent: order.append("end")  # type: ignore[method-assign]
    launch._tick()
    assert order == ["reports", "reports", "end"]
    node.done = True
    launch._tick()
    assert order[3:] == ["reports"]


@pytest.mark.parametrize(("nodes", "is_asked"), [("1x1", True), ("2x1", False)])
def test_agent_that_starts_after_a_signal_is_asked_to_stop(nodes: str, is_asked: bool, tmp_path: Path) -> None:
    acts: list[str] = []
    agent: Any = SimpleNamespace(
        process=SimpleNamespace(terminate=lambda: acts.append("asked")), copy_lines=lambda _: acts.append("copied")
    )
    launch = launch_of(tmp_path, nodes)
    launch.starter.start_agent = lambda node: agent  # type: ignore[method-assign]
    launch.signals = [2] if is_asked else []
    launch._start(0)
    assert launch.agents == [agent]
    assert acts == ["asked"] * is_asked + ["copied"] * (nodes == "2x1")


def test_program_without_heartbeats_has_begun(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "1x1")
    assert launch._has_begun()
    launch.journal.folder = RunFolder(tmp_path)
    assert not launch._has_begun()


def test_heartbeats_are_read_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 100.0, list[tuple[float, dict[int, int], float, float]]()
    monkeypatch.setattr(world.time, "monotonic", lambda: now)
    monkeypatch.setattr(world, "find_hangs", lambda folder, *args: looks.append((now, *args)) or [])
    launch = launch_of(tmp_path, "1x2", Node(0, r0=10, r1=11), Node(1, code=0, r2=12), deadline_s=7.0, stuck_s=9.0)
    launch._look_for_hangs()  # there is no run folder yet
    launch.journal.folder = RunFolder(tmp_path)
    for now in (100.0, 100.25, 100.5, 100.99, 101.0):  # noqa: B007
        launch._look_for_hangs()
    assert looks == [(at, {0: 10, 1: 11}, 7.0, 9.0) for at in (100.0, 100.5, 101.0)]


@pytest.mark.parametrize("nodes", ["2x1", "1:2x1"])
def test_rendezvous_of_a_fixed_world_starts_at_once(nodes: str, tmp_path: Path) -> None:
    launch = launch_of(tmp_path, nodes, *(SimpleNamespace(process=Node(0), is_up=lambda: False) for _ in range(2)))
    launch._let_meet()
    assert (tmp_path / MAY_MEET).exists() == (nodes == "2x1")
