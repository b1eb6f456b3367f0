"""The launcher's reaction to the end of its agents. Shell scripts replace the agents, so a case takes a second."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest
from harness import LIMIT_S, wait_until
from run_files import beat

from frog.core.env import MAY_MEET, SURVIVES
from frog.core.errors import ConfigError, LaunchError, UsageError
from frog.core.processes import NOT_MET, is_alive
from frog.core.runs.folder import RunFolder
from frog.core.runs.launch_request import LaunchRequest
from frog.core.schema import write_typed
from frog.launch.lifecycle import Limits
from frog.launch.node_agents import Agent, Options, Starter
from frog.launch.nodes import Nodes, parse_nodes
from frog.launch.world import _Launch, run_world

PRELUDE = r"""
world() { # attempt, world size, ranks, pids
    printf '{"event":"world","unix_ns":1,"attempt":%s,"node_rank":0,"ranks":[%s],"world_size":%s,"master_addr":"x",' \
        "$1" "$3" "$2" >> "$REPORTS"
    printf '"master_port":1,"pids":[%s]}\n' "$4" >> "$REPORTS"
}
failed() { # attempt, rank, code, class and message of its error
    printf '{"event":"exit","unix_ns":1,"attempt":%s,"node_rank":0,"rank":%s,"pid":7,"code":%s,' \
        "$1" "$2" "$3" >> "$REPORTS"
    printf '"error":{"type":"%s","message":"%s","hint":null,"facts":{},"unix_ns":1},' "$4" "$5" >> "$REPORTS"
    printf '"traceback":null,"left":[],"time_s":%s}\n' "$(date +%s)" >> "$REPORTS"
}
replaced() { # rank, pid
    printf '{"event":"replace","unix_ns":1,"attempt":0,"node_rank":0,"rank":%s,"lost":7,"pid":%s,"number":1}\n' \
        "$1" "$2" >> "$REPORTS"
}
ended=$(bash -c 'echo $$')
rank() { setsid sleep "$1" > /dev/null 2>&1 & }
"""


def until(test: str) -> str:
    """Return shell code that waits until a command succeeds."""
    return f"until {test}; do sleep 0.02; done"


def until_printed(words: str) -> str:
    """Return shell code that waits until the launcher has printed these words."""
    return until(f"grep -qs '{words}' $SCRATCH/printed")


UP = until("test -e $SCRATCH/up")
"""Shell code that waits until another node is ready for signals."""
BACK = until("test -e $SCRATCH/back")
"""Shell code that waits until a lost node has returned."""

RunNodes = Callable[..., int]
pytestmark = pytest.mark.timeout(400)  # the processes that the launcher must end sleep for ten minutes
QUICK = Limits(grace_s=2.0, patience_s=0.4)


class ScriptedStarter(Starter):
    """Starts a node's next script in place of its agent."""

    scripts: dict[int, list[str]]

    def start_store(self) -> None:
        pass

    def start_agent(self, node: int) -> Agent:
        self._num_agents += 1
        reports = self.scratch / f"reports-{self._num_agents}.jsonl"
        process = subprocess.Popen(
            ["bash", "-c", PRELUDE + self.scripts[node].pop(0)],
            env={**os.environ, "REPORTS": str(reports), "SCRATCH": str(self.scratch)},
            stdout=subprocess.PIPE if self.nodes.several else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Agent(node, self.nodes.host(node), process, reports)


class Copied:
    """The test's stderr, with a copy in a file for the nodes' scripts."""

    def __init__(self, stderr: TextIO, path: Path) -> None:
        self._stderr, self._path = stderr, path

    def write(self, text: str) -> int:
        with self._path.open("a") as copy:
            copy.write(text)
        return self._stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stderr, name)


@pytest.fixture
def run_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunNodes:
    """Run a world with one script per node, or one per start of the node; return its exit code."""
    launches = itertools.count()

    def run(nodes: str, *scripts: str | list[str], restarts: int = 0, **limits: float) -> int:
        options = Options(restarts=restarts, repair_s=0.2)
        scratch = tmp_path / f"launch_{next(launches)}"
        scratch.mkdir()
        starter = ScriptedStarter(parse_nodes(nodes), [], options, scratch, None)
        starter.scripts = {node: [given] if isinstance(given, str) else given for node, given in enumerate(scripts)}
        monkeypatch.setattr(sys, "stderr", Copied(sys.stderr, scratch / "printed"))
        launch = _Launch(starter.nodes, options, scratch, starter, replace(QUICK, **limits))
        try:
            return launch.run()
        finally:
            launch.clean_up()

    return run


def error_of(run_nodes: RunNodes, *words: object, **options: float) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        run_nodes(*words, **options)
    return caught.value


def test_world_exits_with_0_if_every_agent_does(run_nodes: RunNodes) -> None:
    assert run_nodes("2x1", "exit 0", "sleep 0.2") == 0


def test_agents_receive_sigterm_after_another_agent_fails(run_nodes: RunNodes, tmp_path: Path) -> None:
    stays = "trap 'touch $SCRATCH/asked; exit 1' TERM; touch $SCRATCH/up; sleep 600 & wait"
    error = error_of(run_nodes, "2x1", f"{UP}; failed 0 0 1 DataError 'torn'; exit 1", stays)
    assert error.what.endswith("torn")
    assert (tmp_path / "launch_0" / "asked").exists()


def test_agent_that_ignores_sigterm_is_killed(run_nodes: RunNodes) -> None:
    error = error_of(run_nodes, "2x1", "exit 3", "rank 600; world 0 2 1 $!; trap '' TERM; wait; wait")
    assert error.exit_code == 3


def test_agent_without_ranks_is_killed_sooner(run_nodes: RunNodes) -> None:
    """The agent asks an unreachable node for its state, and ignores SIGTERM meanwhile."""
    error_of(
        run_nodes,
        "2x1",
        "exit 3",
        "rank 0; world 0 2 1 $!; trap '' TERM; sleep 600 & wait; wait",
        grace_s=60.0,
        rankless_grace_s=0.3,
    )


@pytest.mark.slow
def test_time_of_an_agent_without_ranks_counts_from_their_end(run_nodes: RunNodes, tmp_path: Path) -> None:
    """The ranks save for a while; then the agent reports how they ended."""
    saves = "rank 5; world 0 2 1 $!; trap '' TERM; wait; sleep 0.3; touch $SCRATCH/reported; exit 1"
    error_of(run_nodes, "2x1", "exit 3", saves, grace_s=60.0, rankless_grace_s=3.0)
    assert (tmp_path / "launch_0" / "reported").exists()


def test_elastic_world_continues_without_a_node_that_lost_contact(
    run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = f"trap 'exit 1' TERM; {until_printed('node1 lost contact')}; sleep 0.5 & wait"
    assert run_nodes("1:3x1", stays, f"exit {NOT_MET}", stays) == 0
    assert "node1 lost contact with the other nodes" in capsys.readouterr().err


def test_lost_node_returns_after_the_others_have_continued(
    run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = f"world 0 2 0 $ended; {until_printed('node1 was lost')}; world 1 1 0 $ended; {BACK}"
    goes = f"world 0 2 1 $ended; {until('grep -qs pids $SCRATCH/reports-1.jsonl')}; kill -9 $$"
    assert run_nodes("1:2x1", stays, [goes, "touch $SCRATCH/back"], restarts=1) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["node1 was lost (SIGKILL)", "restarted (attempt 1): world size 1", "node1 returns"]


def test_node_that_ends_long_after_the_others_continued_returns(run_nodes: RunNodes) -> None:
    """The node's network was cut: the others have worked without it for a while."""
    stays = f"world 0 2 0 $ended; world 1 1 0 $ended; {BACK}"
    cut = f"world 0 2 1 $ended; {until_printed('restarted (attempt 1)')}; sleep 0.5; exit {NOT_MET}"
    assert run_nodes("1:2x1", stays, [cut, "touch $SCRATCH/back"], restarts=1) == 0


def test_lost_node_returns_if_the_others_do_not_continue_for_long(run_nodes: RunNodes) -> None:
    stays = f"world 0 2 0 $ended; {BACK}"
    assert (
        run_nodes(
            "1:2x1", stays, ["world 0 2 1 $ended; kill -9 $$", "touch $SCRATCH/back"], restarts=1, repair_at_most_s=0.3
        )
        == 0
    )


@pytest.mark.parametrize("other", ["becomes ready", "ends", "never becomes ready"])
def test_first_world_waits_for_slow_nodes(other: str, tmp_path: Path) -> None:
    starter = ScriptedStarter(parse_nodes("1:2x1"), [], Options(), tmp_path, None)
    launch = _Launch(starter.nodes, Options(), tmp_path, starter)
    starter.scripts = {0: ["sleep 600"], 1: ["sleep 600"]}
    launch._start(0)
    launch._start(1)
    (tmp_path / "reports-1.up").touch()
    launch._let_meet()
    assert not (tmp_path / MAY_MEET).exists()
    if other == "becomes ready":
        (tmp_path / "reports-2.up").touch()
    elif other == "ends":
        launch.agents[1].kill()
        launch.agents[1].process.wait()
    else:
        launch._wait_until = 0.0
    launch._let_meet()
    assert (tmp_path / MAY_MEET).exists()
    launch.clean_up()


def test_program_error_ends_an_elastic_world(run_nodes: RunNodes) -> None:
    fails = "failed 0 0 1 NonFiniteError 'nan'; exit 1"
    error = error_of(run_nodes, "1:2x1", fails, "trap 'exit 1' TERM; sleep 600 & wait")
    assert error.what.endswith("nan")


@pytest.mark.slow
def test_slow_node_may_finish_after_the_others(run_nodes: RunNodes, tmp_path: Path) -> None:
    """The node's rank still works, and the way it ends counts."""
    slow = "rank 5; world 0 2 1 $!; wait; touch $SCRATCH/finished"
    assert run_nodes("2x1", "exit 0", slow, patience_s=3.0) == 0
    assert (tmp_path / "launch_0" / "finished").exists()
    assert error_of(run_nodes, "2x1", "exit 0", f"{slow}; exit 3", patience_s=3.0).exit_code == 3


def test_world_does_not_wait_for_a_node_whose_ranks_have_ended(run_nodes: RunNodes) -> None:
    """The network is cut: the agent looks for the others, which have finished, and has not noticed its rank's exit."""
    ended = "import signal, subprocess; p = subprocess.Popen(['true']); print(p.pid, flush=True); signal.pause()"
    script = f'exec 3< <(exec python3 -c "{ended}"); read pid <&3; world 0 2 1 $pid; sleep 600 & wait'
    assert run_nodes("2x1", until("grep -qs pids $SCRATCH/reports-2.jsonl"), script) == 0


def test_world_does_not_wait_for_a_node_that_never_started_ranks(run_nodes: RunNodes) -> None:
    assert run_nodes("2x1", "exit 0", "sleep 600", patience_s=60.0, rankless_grace_s=0.3) == 0


@pytest.mark.parametrize("report", ["world 0 1 0 $!", "world 0 1 0 $ended; replaced 0 $!"], ids=["first", "replaced"])
def test_ranks_of_a_killed_agent_are_ended(run_nodes: RunNodes, tmp_path: Path, report: str) -> None:
    gone = f"rank 3600; echo $! > $SCRATCH/pid; {report}; kill -9 $$"
    assert error_of(run_nodes, "1x1", gone).exit_code == 128 + signal.SIGKILL
    pid = int((tmp_path / "launch_0" / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the end of the rank")


def test_failure_before_a_recovery_is_not_reported_as_the_cause(run_nodes: RunNodes) -> None:
    script = "world 0 1 0 $ended; failed 0 0 1 DataError 'torn'; world 1 1 0 $ended; kill -9 $$"
    error = error_of(run_nodes, "1x1", script, restarts=1)
    assert error.what == "node0 was killed by SIGKILL with all its ranks"


@pytest.mark.parametrize("survives", [True, False])
def test_ranks_that_continue_after_a_loss_are_watched(survives: bool, tmp_path: Path) -> None:
    """If the ranks do not continue, the agent ends them, without a time limit."""
    options = Options(replace=1)
    starter = ScriptedStarter(parse_nodes("1x3"), [], options, tmp_path, None)
    launch = _Launch(starter.nodes, options, tmp_path, starter)
    starter.scripts = {0: ["world 0 3 0,1,2 11,12,13; failed 0 1 -9 None ''; replaced 1 14"]}
    agent = starter.start_agent(0)
    agent.process.wait(LIMIT_S)
    if survives:
        (tmp_path / SURVIVES).touch()
    launch._handle_reports(agent)
    assert agent.watched == ({0: 11, 1: 14, 2: 13} if survives else {1: 14})
    launch.clean_up()


def test_excluded_rank_is_killed_and_recorded(tmp_path: Path) -> None:
    starter = ScriptedStarter(parse_nodes("1x3"), [], Options(), tmp_path, None)
    launch = _Launch(starter.nodes, Options(), tmp_path, starter)
    starter.scripts = {0: ["sleep 600"]}
    agent = starter.start_agent(0)
    stopped = subprocess.Popen(["sleep", "600"], start_new_session=True)
    agent.pids = {2: stopped.pid}
    launch.agents, launch.journal.folder = [agent], RunFolder(tmp_path)
    for pid in (stopped.pid, 2**22 + 1):
        write_typed(tmp_path / "requests" / f"end_rank_{pid}.json", LaunchRequest(act="end_rank", pid=pid))
    launch._serve_requests()
    assert stopped.wait(LIMIT_S) == -signal.SIGKILL
    (told,) = map(json.loads, RunFolder(tmp_path).launcher_events.read_text().splitlines())
    assert (told["event"], told["rank"], told["pid"]) == ("left_out", 2, stopped.pid)
    launch.clean_up()


def test_hang_is_recorded_with_the_agents_attempt_number(tmp_path: Path) -> None:
    """A heartbeat's attempt number also counts membership changes."""
    starter = ScriptedStarter(parse_nodes("1x1"), [], Options(), tmp_path, None)
    launch = _Launch(starter.nodes, Options(), tmp_path, starter)
    starter.scripts = {0: ["sleep 600"]}
    agent = starter.start_agent(0)
    pid = agent.process.pid
    agent.watched = {1: pid}
    launch.agents, launch._shown, launch.journal.folder = [agent], {0: []}, RunFolder(tmp_path)
    RunFolder(tmp_path).heartbeats.mkdir()
    RunFolder(tmp_path).heartbeat(0).write_text(json.dumps(beat(pid=pid, attempt=3, beat_ns=0)))
    launch._look_for_hangs()
    (hang,) = map(json.loads, RunFolder(tmp_path).launcher_events.read_text().splitlines())
    assert (hang["event"], hang["attempt"], hang["rank"], agent.watched) == ("hang", 0, 1, {})
    assert agent.process.wait(LIMIT_S) == -signal.SIGKILL
    launch.clean_up()


def test_world_has_begun_once_rank_0_belongs_to_it(tmp_path: Path) -> None:
    """A heartbeat's attempt number also counts membership changes, so an old one may be higher than the current one."""
    starter = ScriptedStarter(parse_nodes("1x2"), [], Options(), tmp_path, None)
    launch = _Launch(starter.nodes, Options(), tmp_path, starter)
    starter.scripts = {0: ["sleep 600"]}
    agent = starter.start_agent(0)
    agent.pids = {0: 11, 1: 12}
    launch.agents, launch._shown, launch.journal.folder = [agent], {1: []}, RunFolder(tmp_path)
    RunFolder(tmp_path).heartbeats.mkdir()
    assert not launch._has_begun()
    for pid, begun in ((7, False), (12, True)):
        RunFolder(tmp_path).heartbeat(0).write_text(json.dumps(beat(pid=pid, attempt=3)))
        assert launch._has_begun() is begun
    launch.clean_up()


def test_loss_of_a_returned_node_is_not_reported_as_the_cause(run_nodes: RunNodes) -> None:
    fails = "world 2 2 0 $ended; failed 2 0 1 CommError closed; exit 1"
    returns = "world 2 2 1 $ended; touch $SCRATCH/back; trap 'exit 1' TERM; sleep 600 & wait"
    error = error_of(run_nodes, "2x1", f"{BACK}; {fails}", ["kill -9 $$", returns], restarts=1)
    assert error.what.startswith("rank 0 (pid 7) ended with exit code 1")


def test_ctrl_c_does_not_hide_an_earlier_failure(run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "trap 'trap \"\" TERM; kill -INT $PPID; exit 143' TERM; touch $SCRATCH/up; sleep 600 & wait"
    assert run_nodes("2x1", f"{UP}; failed 0 0 1 DataError 'torn'; exit 1", asked) == 130
    assert "error: rank 0 (pid 7) ended with exit code 1\ntorn" in capsys.readouterr().err


def test_ctrl_c_sets_the_exit_code_without_an_error_message(
    run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    stops = "trap 'failed 0 0 143 null null; exit 143' TERM; touch $SCRATCH/up"
    presses = f"{UP}; kill -INT $PPID"
    assert run_nodes("2x1", f"{stops}.0; {presses}; sleep 600 & wait", f"{stops}; sleep 600 & wait") == 130
    assert "error" not in capsys.readouterr().err


def test_signal_after_all_work_does_not_change_the_exit_code(run_nodes: RunNodes) -> None:
    assert run_nodes("1x1", "trap '' TERM; kill -INT $PPID") == 0


def test_restarts_are_rejected_for_a_command_that_cannot_resume() -> None:
    with pytest.raises(UsageError, match="prove cannot resume"):
        run_world(Nodes(1, 1, 2), ["prove", "cases.json"], Options(restarts=1))


def test_world_too_large_for_the_machine_is_rejected() -> None:
    with pytest.raises(ConfigError, match="a world of 1000000000 ranks takes at least"):
        run_world(10**9, ["train", "none.toml"])
