"""Tutorial script 3: simulated nodes form a world, run it, and leave nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_S, Harness, all_gone, tree, wait_until
from page_harness import SCRIPTS, PageHarness, finish, make_page_harness

from frog.core.machine import free_port
from frog.core.runs import read_run
from frog.core.runs.event_schema import StartEvent
from frog.core.runs.folder import RunFolder

PAGE = "fake_multi_node_launcher.py"
HELLO = str(SCRIPTS / "say_hello.py")
PATIENT = ("--timeout-s", "600")
"""Time-out of a node that waits while the test starts the others one by one."""


@pytest.fixture
def pages(harness: Harness, tmp_path: Path) -> PageHarness:
    return make_page_harness(harness, tmp_path)


def by_hand(port: int, node_rank: int, nnodes: int = 2) -> dict[str, str]:
    """Return the variables that a user exports for one node."""
    values = {"NODE_RANK": node_rank, "NNODES": nnodes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()}


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Wait until the process prints these words; at the limit, end it."""
    assert process.stdout is not None
    deadline = threading.Timer(LIMIT_S, process.terminate)
    deadline.start()
    lines = []
    for line in iter(process.stdout.readline, ""):
        lines.append(line)
        if words in line:
            deadline.cancel()
            return
    raise AssertionError(f"the process ended without {words!r}:\n{''.join(lines)}")


def prove_barrier(out: str, world_size: int) -> None:
    """Check that all ranks reported, none left the barrier before the last arrival, and the sum is right."""
    rows = re.findall(r"rank (\d+) reached the barrier after ([\d.]+) s and left it after ([\d.]+) s", out)
    assert sorted(int(rank) for rank, _, _ in rows) == list(range(world_size))
    assert min(float(left) for _, _, left in rows) > max(float(came) for _, came, _ in rows) - 0.015, (
        "except for rounding"
    )
    assert f"= {world_size * (world_size - 1) // 2}, on every rank" in out


@pytest.mark.parametrize(
    ("words", "first", "last"), [("4 8 3", 24, 31), ("4 8 0", 0, 7), ("2 1 1", 1, 1), ("3 5 1", 5, 9)]
)
def test_launcher_explain_shows_the_arithmetic(pages: PageHarness, words: str, first: int, last: int) -> None:
    nnodes, nproc, node_rank = words.split()
    options = ("--nnodes", nnodes, "--nproc-per-node", nproc, "--node-rank", node_rank)
    out, _ = pages.page(PAGE, "--explain", *options)
    assert f"= {node_rank} x {nproc} = {first}\n" in out
    assert f"{first} + {nproc} - 1 = {last}\n" in out
    assert "SLURM_NODEID" in out
    again, _ = pages.page(PAGE, "--explain", env={"NODE_RANK": node_rank, "NNODES": nnodes, "NPROC_PER_NODE": nproc})
    assert again == out


def test_launcher_explain_without_a_node_shows_all_nodes(pages: PageHarness) -> None:
    out, _ = pages.page(PAGE, "--explain", "--nnodes", "4", "--nproc-per-node", "8")
    assert re.findall(r"global ranks (\d+) to (\d+)", out) == [("0", "7"), ("8", "15"), ("16", "23"), ("24", "31")]


def test_one_launcher_starts_all_nodes(pages: PageHarness) -> None:
    out, _ = pages.page(PAGE, "--", HELLO, "--delay-s", "0.4")
    prove_barrier(out, 4)
    found = re.findall(r"^(\w+) \| rank (\d) on (\w+), pid \d+: RANK=\d WORLD_SIZE=4 LOCAL_RANK=(\d) GROUP_RANK=(\d)",
                       out, re.MULTILINE)  # fmt: skip
    assert sorted(found) == [
        ("node0", "0", "node0", "0", "0"),
        ("node0", "1", "node0", "1", "0"),
        ("node1", "2", "node1", "0", "1"),
        ("node1", "3", "node1", "1", "1"),
    ]


@pytest.mark.slow
def test_two_launchers_form_one_world(pages: PageHarness) -> None:
    port = free_port()
    options = ("--nproc-per-node", "1", *PATIENT)
    second = pages.start_page(PAGE, *options, env=by_hand(port, 1), warm=True)
    wait_for_line(second, "node1 | waiting for node 0")
    first = pages.start_page(PAGE, *options, env=by_hand(port, 0), warm=True)
    here, _ = finish(first, 0)
    there, _ = finish(second, 0)
    prove_barrier(here + there, 2)
    assert f"MASTER_PORT={port}" in here
    assert "NODE_RANK=1  node1    global rank 1" in here
    assert "node1 connected from" in here
    assert "rank 1 on node1" in there


def test_ctrl_c_ends_a_waiting_launcher_that_a_script_started_in_the_background(pages: PageHarness) -> None:
    """A shell script starts `command &` with SIGINT ignored, as demo C does with node 1."""
    ignoring = ("bash", "-c", 'trap "" INT; exec "$@"', "bash", sys.executable, str(SCRIPTS / PAGE))
    node1 = pages.start(*ignoring, *PATIENT, env=by_hand(free_port(), 1))
    wait_for_line(node1, "node1 | waiting for node 0")
    node1.send_signal(signal.SIGINT)
    finish(node1, 130)


@pytest.mark.slow
def test_launcher_times_out_if_a_node_never_joins(pages: PageHarness) -> None:
    port = free_port()
    come = pages.start_page(PAGE, *PATIENT, env=by_hand(port, 2, nnodes=3))
    wait_for_line(come, "node2 | waiting for node 0")
    alone = [pages.start_page(PAGE, "--timeout-s", "1", env=by_hand(free_port(), 1))]
    alone.append(pages.start_page(PAGE, "--timeout-s", "8", env=by_hand(port, 0, nnodes=3)))
    (_, err1), (_, err0) = (finish(process, 1) for process in alone)
    assert "could not reach node 0 at" in err1
    assert "but NODE_RANK=1 did not connect in time" in err0
    assert "node 0 gave up waiting for NODE_RANK=1" in finish(come, 1)[1]
    assert "Traceback" not in err0 + err1


def test_launcher_refuses_nodes_with_conflicting_settings(pages: PageHarness) -> None:
    port = free_port()
    first = pages.start_page(PAGE, *PATIENT, env=by_hand(port, 0, nnodes=3))
    for size in (2, 4):
        _, err = finish(pages.start_page(PAGE, env=by_hand(port, 1, nnodes=size)), 1)
        assert f"nnodes is {size} on that node, but 3 on node 0" in err
    twin = pages.start_page(PAGE, *PATIENT, env=by_hand(port, 1, nnodes=3))
    wait_for_line(first, "node1 connected from")
    _, err = finish(pages.start_page(PAGE, env=by_hand(port, 1, nnodes=3)), 1)
    assert "NODE_RANK=1 is already in use" in err
    _, err = finish(pages.start_page(PAGE, env=by_hand(port, 0, nnodes=3)), 1)
    assert "node 0 cannot listen" in err
    first.send_signal(signal.SIGINT)
    finish(first, 130)
    assert "node 0 was stopped" in finish(twin, 1)[1]


@pytest.mark.parametrize(
    ("env", "words", "told"),
    [
        ({"NODE_RANK": "1"}, "", ["NNODES is not set", "MASTER_ADDR is not set", "MASTER_PORT is not set"]),
        ({**by_hand(1234, 2)}, "", ["NODE_RANK=2 of NNODES=2: nodes count from 0 to 1"]),
        ({**by_hand(99999, 1)}, "", ["MASTER_PORT=99999"]),
        ({**by_hand(1234, 1), "NODE_RANK": "one"}, "", ["NODE_RANK='one': must be a number"]),
        ({**by_hand(1234, 1)}, "--node-rank 0", ["NODE_RANK=1 in the environment contradicts --node-rank 0"]),
        ({**by_hand(1234, 1), "WORLD_SIZE": "3"}, "", ["WORLD_SIZE=3, but", "is 4"]),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "", ["RANK=1", "not torchrun"]),
        ({}, "--nnodes 0", ["NNODES=0: must be at least 1"]),
        ({}, "--nnodes 9 --nproc-per-node 9", ["81 processes are too many", "--explain"]),
        ({}, "absent.py", ["absent.py: no such script"]),
    ],
)
def test_launcher_reports_invalid_variables(
    pages: PageHarness, env: dict[str, str], words: str, told: list[str]
) -> None:
    out, err = pages.page(PAGE, *words.split(), env=env, code=2)
    assert all(text in err for text in told), err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.slow
def test_launcher_exits_with_the_first_failures_code(pages: PageHarness) -> None:
    (pages.root / "fail.py").write_text(
        "import os, sys, time\nfrom pathlib import Path\n"
        "Path('pid_' + os.environ['RANK']).write_text(str(os.getpid()))\n"
        "while os.environ['RANK'] != '2' or len(list(Path().glob('pid_*'))) < 4:\n    time.sleep(0.05)\n"
        "sys.exit(7)\n"
    )
    out, _ = pages.page(PAGE, "--", "fail.py", code=7)
    assert "first failure: rank 2, exit code 7" in out
    pids = [int(path.read_text() or 0) for path in pages.root.glob("pid_*")]
    assert len(pids) == 4
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of all ranks")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [*(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL],
    ids=lambda how: how.name,
)
def test_launcher_leaves_no_processes_behind(pages: PageHarness, how: signal.Signals) -> None:
    process = pages.start_page(PAGE, "--nproc-per-node", "1", "--", HELLO, "--delay-s", "200")
    assert process.stdout is not None
    for line in iter(process.stdout.readline, ""):
        if "rank 1 on node1" in line:
            break
    family = tree(process)
    assert len(family) >= 7, "a launcher, two nodes, two agents, two ranks"
    process.send_signal(how)
    finish(process, -9 if how == signal.SIGKILL else 128 + how)
    wait_until(lambda: all_gone(family), "the end of all")


@pytest.mark.slow
def test_launcher_trains_across_simulated_nodes(pages: PageHarness) -> None:
    program = (str(SCRIPTS.parent / "train.py"), "run.toml", "--set", "name=across", "--set", "train.steps=4")
    pages.page(PAGE, "--", *program)
    folder = RunFolder(pages.root / "runs" / "across")
    assert folder.read_run_json().segments[0].num_nodes == 2
    (starts,) = zip(*[read_run(folder).ranks[rank].of(StartEvent) for rank in range(4)], strict=True)
    assert [start.host for start in starts] == ["node0", "node0", "node1", "node1"]
    assert [start.node_rank for start in starts] == [0, 0, 1, 1]
    names = sorted(path.name for path in folder.checkpoint(4).iterdir())
    assert names == ["manifest.json", *(f"rank_{rank}.safetensors" for rank in range(4))]
    record = folder.read_record()
    pages.train(4, "local", "train.steps=4")
    assert record is not None
    assert pages.record("local")["weights_sha256"] == record.weights_sha256
