"""What the launcher makes of its agents' ends. Shell scripts stand in for the agents, so that a case takes a second."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from run_files import beat

from frog.core.env import MAY_MEET, SURVIVES
from frog.core.errors import ConfigError, LaunchError, UsageError
from frog.core.processes import NOT_MET, is_alive
from frog.core.schema import write_typed
from frog.launch.agent import Agent
from frog.launch.lifecycle import Limits
from frog.launch.nodes import Nodes, parse_nodes
from frog.launch.start import Options, Starter
from frog.launch.world import _Launch, run_world
from frog.runs.folder import RunFolder
from frog.runs.launch_request import LaunchRequest

PRELUDE = r"""
world() { # attempt, world size, ranks, pids
    printf '{"event":"world","unix_ns":1,"attempt":%s,"node_rank":0,"ranks":[%s],"world_size":%s,"master_addr":"x",' \
        "$1" "$3" "$2" >> "$REPORTS"
    printf '"master_port":1,"pids":[%s]}\n' "$4" >> "$REPORTS"
}
failed() { # attempt, rank, code, its error's class and words
    printf '{"event":"exit","unix_ns":1,"attempt":%s,"node_rank":0,"rank":%s,"pid":7,"code":%s,' \
        "$1" "$2" "$3" >> "$REPORTS"
    printf '"error":{"type":"%s","message":"%s","hint":null,"facts":{},"unix_ns":1},' "$4" "$5" >> "$REPORTS"
    printf '"traceback":null,"time_s":%s}\n' "$(date +%s)" >> "$REPORTS"
}
replaced() { # rank, pid
    printf '{"event":"replace","unix_ns":1,"attempt":0,"node_rank":0,"rank":%s,"lost":7,"pid":%s,"number":1}\n' \
        "$1" "$2" >> "$REPORTS"
}
nobody=$(bash -c 'echo $$')
rank() { setsid sleep "$1" > /dev/null 2>&1 & }
"""

UP = "until test -e $SCRATCH/up; do sleep 0.02; done"
"""Waits until another node is ready for signals."""

RunNodes = Callable[..., int]
pytestmark = pytest.mark.timeout(400)  # what is to be ended sleeps for ten minutes
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


@pytest.fixture
def run_nodes(tmp_path: Path) -> RunNodes:
    """Run a world of one script (or more, one for each start) a node; return its exit code."""
    launches = itertools.count()

    def run(nodes: str, *scripts: str | list[str], restarts: int = 0, **limits: float) -> int:
        options = Options(restarts=restarts, repair_s=0.2)
        scratch = tmp_path / f"launch_{next(launches)}"
        scratch.mkdir()
        starter = ScriptedStarter(parse_nodes(nodes), [], options, scratch, None)
        starter.scripts = {node: [given] if isinstance(given, str) else given for node, given in enumerate(scripts)}
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


def test_all_ended_well(run_nodes: RunNodes) -> None:
    assert run_nodes("2x1", "exit 0", "sleep 0.2") == 0


def test_after_a_failure_the_others_are_asked_to_leave(run_nodes: RunNodes, tmp_path: Path) -> None:
    stays = "trap 'touch $SCRATCH/asked; exit 1' TERM; touch $SCRATCH/up; sleep 600 & wait"
    error = error_of(run_nodes, "2x1", f"{UP}; failed 0 0 1 DataError 'torn'; exit 1", stays)
    assert error.what.endswith("torn")
    assert (tmp_path / "launch_0" / "asked").exists()


def test_who_does_not_leave_is_made_to(run_nodes: RunNodes) -> None:
    error = error_of(run_nodes, "2x1", "exit 3", "rank 600; world 0 2 1 $!; trap '' TERM; wait; wait")
    assert error.exit_code == 3


def test_an_agent_without_ranks_is_not_given_as_long(run_nodes: RunNodes) -> None:
    """It asks a node for news that it cannot reach, and hears nothing else."""
    error_of(
        run_nodes,
        "2x1",
        "exit 3",
        "rank 0; world 0 2 1 $!; trap '' TERM; sleep 600 & wait; wait",
        grace_s=60.0,
        last_words_s=0.3,
    )


@pytest.mark.slow
def test_it_is_counted_from_the_end_of_its_ranks(run_nodes: RunNodes, tmp_path: Path) -> None:
    """They save for a while; then it reports how they ended."""
    saves = "rank 5; world 0 2 1 $!; trap '' TERM; wait; sleep 0.3; touch $SCRATCH/reported; exit 1"
    error_of(run_nodes, "2x1", "exit 3", saves, grace_s=60.0, last_words_s=3.0)
    assert (tmp_path / "launch_0" / "reported").exists()


def test_a_world_that_may_shrink_goes_on_without_a_node_that_lost_the_others(
    run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = "trap 'exit 1' TERM; sleep 1.2 & wait"
    assert run_nodes("1:3x1", stays, f"exit {NOT_MET}", stays) == 0
    assert "node1 lost contact with the other nodes" in capsys.readouterr().err


def test_and_without_one_that_has_gone_for_good(run_nodes: RunNodes) -> None:
    assert run_nodes("1:2x1", "trap 'exit 1' TERM; sleep 1.2 & wait", "kill -9 $$") == 0


def test_a_node_comes_back_when_the_others_have_gone_on_without_it(
    run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    shrinks = "until test -e $SCRATCH/gone; do sleep 0.02; done; sleep 0.5; world 1 1 0 $nobody"
    stays = f"world 0 2 0 $nobody; {shrinks}; until test -e $SCRATCH/back; do sleep 0.02; done"
    goes = "world 0 2 1 $nobody; until grep -qs pids $SCRATCH/reports-1.jsonl; do sleep 0.02; done; "
    goes += "sleep 0.2; touch $SCRATCH/gone; kill -9 $$"
    assert run_nodes("1:2x1", stays, [goes, "touch $SCRATCH/back"], restarts=1) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:2]) == ["node1 was lost (SIGKILL)", "restarted (attempt 1): world size 1"]
    assert lines[2:] == ["node1 returns"]


def test_also_one_that_ends_long_after_them(run_nodes: RunNodes) -> None:
    """Its network was cut: the others have been at work without it for a while."""
    stays = "world 0 2 0 $nobody; sleep 0.3; world 1 1 0 $nobody; until test -e $SCRATCH/back; do sleep 0.02; done"
    cut = f"world 0 2 1 $nobody; sleep 1; exit {NOT_MET}"
    assert run_nodes("1:2x1", stays, [cut, "touch $SCRATCH/back"], restarts=1) == 0


def test_or_if_they_have_not_for_a_long_time(run_nodes: RunNodes) -> None:
    stays = "world 0 2 0 $nobody; until test -e $SCRATCH/back; do sleep 0.02; done"
    assert (
        run_nodes(
            "1:2x1", stays, ["world 0 2 1 $nobody; kill -9 $$", "touch $SCRATCH/back"], restarts=1, repair_at_most_s=0.3
        )
        == 0
    )


@pytest.mark.parametrize("other", ["comes up", "ends", "stays away"])
def test_at_the_start_nobody_is_left_out_for_being_slow(other: str, tmp_path: Path) -> None:
    starter = ScriptedStarter(parse_nodes("1:2x1"), [], Options(), tmp_path, None)
    launch = _Launch(starter.nodes, Options(), tmp_path, starter)
    starter.scripts = {0: ["sleep 600"], 1: ["sleep 600"]}
    launch._start(0)
    launch._start(1)
    (tmp_path / "reports-1.up").touch()
    launch._let_meet()
    assert not (tmp_path / MAY_MEET).exists()
    if other == "comes up":
        (tmp_path / "reports-2.up").touch()
    elif other == "ends":
        launch.agents[1].kill()
        launch.agents[1].process.wait()
    else:
        launch._wait_until = 0.0
    launch._let_meet()
    assert (tmp_path / MAY_MEET).exists()
    launch.clean_up()


def test_a_world_that_may_not_shrink_ends(run_nodes: RunNodes) -> None:
    assert error_of(run_nodes, "2x1", f"exit {NOT_MET}", "trap 'exit 1' TERM; sleep 600 & wait").exit_code == NOT_MET


def test_nor_does_it_go_on_with_too_few(run_nodes: RunNodes) -> None:
    stays = "trap 'exit 1' TERM; sleep 600 & wait"
    assert error_of(run_nodes, "2:3x1", stays, "kill -9 $$", "kill -9 $$").what.startswith("node")


def test_a_failure_of_the_program_ends_a_world_that_may_shrink(run_nodes: RunNodes) -> None:
    fails = "failed 0 0 1 NonFiniteError 'nan'; exit 1"
    error = error_of(run_nodes, "1:2x1", fails, "trap 'exit 1' TERM; sleep 600 & wait")
    assert error.what.endswith("nan")


@pytest.mark.slow
def test_a_node_that_is_slower_than_the_others_may_finish(run_nodes: RunNodes, tmp_path: Path) -> None:
    """Its rank works on; how it ends counts."""
    slow = "rank 5; world 0 2 1 $!; wait; touch $SCRATCH/finished"
    assert run_nodes("2x1", "exit 0", slow, patience_s=3.0) == 0
    assert (tmp_path / "launch_0" / "finished").exists()
    assert error_of(run_nodes, "2x1", "exit 0", f"{slow}; exit 3", patience_s=3.0).exit_code == 3


def test_a_node_whose_ranks_have_left_is_not_waited_for(run_nodes: RunNodes) -> None:
    """Its network is cut: it looks for the others, which have finished, and has not noticed that its rank has left."""
    ended = "import subprocess, time; p = subprocess.Popen(['true']); print(p.pid, flush=True); time.sleep(30)"
    script = f'exec 3< <(exec python3 -c "{ended}"); read pid <&3; world 0 2 1 $pid; sleep 600 & wait'
    assert run_nodes("2x1", "sleep 0.5", script) == 0


def test_nor_is_one_that_has_not_come_to_start_any(run_nodes: RunNodes) -> None:
    assert run_nodes("2x1", "exit 0", "sleep 600", patience_s=60.0, last_words_s=0.3) == 0


@pytest.mark.parametrize("report", ["world 0 1 0 $!", "world 0 1 0 $nobody; replaced 0 $!"], ids=["first", "replaced"])
def test_ranks_of_an_agent_that_was_killed_are_ended(run_nodes: RunNodes, tmp_path: Path, report: str) -> None:
    gone = f"rank 600; echo $! > $SCRATCH/pid; {report}; sleep 0.3; kill -9 $$"
    assert error_of(run_nodes, "1x1", gone).exit_code == 128 + signal.SIGKILL
    pid = int((tmp_path / "launch_0" / "pid").read_text())
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_what_failed_before_a_recovery_is_not_what_failed(run_nodes: RunNodes) -> None:
    script = "world 0 1 0 $nobody; failed 0 0 1 DataError 'torn'; world 1 1 0 $nobody; sleep 0.2; kill -9 $$"
    error = error_of(run_nodes, "1x1", script, restarts=1)
    assert error.what == "node0 was killed by SIGKILL with all its ranks"


@pytest.mark.parametrize("survives", [True, False])
def test_those_who_go_on_after_a_loss_are_watched(survives: bool, tmp_path: Path) -> None:
    """Where nobody goes on the agent ends them, and may take its time for that."""
    options = Options(replace=1)
    starter = ScriptedStarter(parse_nodes("1x3"), [], options, tmp_path, None)
    launch = _Launch(starter.nodes, options, tmp_path, starter)
    starter.scripts = {0: ["world 0 3 0,1,2 11,12,13; failed 0 1 -9 None ''; replaced 1 14"]}
    agent = starter.start_agent(0)
    agent.process.wait(60)
    if survives:
        (tmp_path / SURVIVES).touch()
    launch._handle_reports(agent)
    assert agent.watched == ({0: 11, 1: 14, 2: 13} if survives else {1: 14})
    launch.clean_up()


def test_a_rank_that_was_left_out_is_ended_and_told(tmp_path: Path) -> None:
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
    assert stopped.wait(60) == -signal.SIGKILL
    (told,) = map(json.loads, RunFolder(tmp_path).launcher_events.read_text().splitlines())
    assert (told["event"], told["rank"], told["pid"]) == ("left_out", 2, stopped.pid)
    launch.clean_up()


def test_a_hang_is_of_the_attempt_that_agents_count(tmp_path: Path) -> None:
    """A heartbeat counts the changes of the world too."""
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
    assert agent.process.wait(60) == -signal.SIGKILL
    launch.clean_up()


def test_a_world_is_at_work_once_a_process_of_it_is_in_the_first_place(tmp_path: Path) -> None:
    """A heartbeat counts the changes of the world too, so that one of the last attempt may be ahead of this one."""
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


def test_nor_is_a_node_that_came_back(run_nodes: RunNodes) -> None:
    fails = "world 2 2 0 $nobody; failed 2 0 1 CommError closed; exit 1"
    error = error_of(
        run_nodes, "2x1", f"sleep 1; {fails}", ["kill -9 $$", "world 2 2 1 $nobody; sleep 1.2; exit 1"], restarts=1
    )
    assert error.what.startswith("rank 0 (pid 7) ended with exit code 1")


def test_ctrl_c_does_not_hide_what_had_failed(run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "trap 'trap \"\" TERM; kill -INT $PPID; sleep 0.3; exit 143' TERM; touch $SCRATCH/up; sleep 600 & wait"
    assert run_nodes("2x1", f"{UP}; failed 0 0 1 DataError 'torn'; exit 1", asked) == 130
    assert "error: rank 0 (pid 7) ended with exit code 1\ntorn" in capsys.readouterr().err


def test_ctrl_c_is_told_by_the_exit_code_alone(run_nodes: RunNodes, capsys: pytest.CaptureFixture[str]) -> None:
    stops = "trap 'failed 0 0 143 null null; exit 143' TERM; touch $SCRATCH/up"
    presses = f"{UP}; kill -INT $PPID"
    assert run_nodes("2x1", f"{stops}.0; {presses}; sleep 600 & wait", f"{stops}; sleep 600 & wait") == 130
    assert "error" not in capsys.readouterr().err


def test_a_signal_that_finds_nothing_to_stop_changes_nothing(run_nodes: RunNodes) -> None:
    assert run_nodes("1x1", "trap '' TERM; kill -INT $PPID; sleep 0.3") == 0


def test_what_cannot_go_on_is_not_started_again() -> None:
    with pytest.raises(UsageError, match="prove cannot resume"):
        run_world(Nodes(1, 1, 2), ["prove", "cases.json"], Options(restarts=1))


def test_a_world_larger_than_the_machine() -> None:
    with pytest.raises(ConfigError, match="a world of 1000000000 ranks takes at least"):
        run_world(10**9, ["train", "none.toml"])
