from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, Harness, run_to_end, set_words

from frog.core.machine import free_port
from frog.core.processes import NOT_MET
from frog.core.runs.event_schema import StartEvent

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("on_loss", ["fail", "shrink"])
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_gives_up_at_its_deadline_if_peers_never_come(harness: Harness, rank: int, on_loss: str) -> None:
    told = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    done = harness.run(
        *("frog", "train", "run.toml", *set_words("train.timeout_s=3", f"comm.on_loss={on_loss}")),
        code=1,
        env={**told, "MASTER_PORT": str(free_port())},
    )
    last = done.stderr.splitlines()[-2:]
    assert f"rank {rank} could not join a world of 2" in last[0]
    assert "MASTER_ADDR" in last[1]
    assert "Traceback" not in done.stderr


def test_two_first_nodes_on_one_port_are_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ["--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={taken.getsockname()[1]}"]
        agent = [sys.executable, "-m", "frog.launch.torchrun.agent", str(tmp_path / "reports"), "--nnodes=2", *place]
        done = subprocess.run([*agent, "program.py"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == NOT_MET, done.stderr
    assert "the nodes did not connect: DistNetwork: " in done.stderr
    assert "Traceback" not in done.stderr


def test_hanging_rank_ends_the_world_at_the_deadline(harness: Harness) -> None:
    settings = ("name=hung", "train.steps=100000", "checkpoint.every=1000", "train.timeout_s=8")
    words = [word for text in settings for word in ("--set", text)]
    process = harness.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *words)
    harness.wait_for_step("hung", 2, process)
    pid = harness.events("hung").ranks[1].of(StartEvent)[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        _, err = run_to_end(process)
    finally:
        with contextlib.suppress(ProcessLookupError):  # torchrun has already ended it
            os.kill(pid, signal.SIGKILL)
    assert process.returncode == 1
    last = err[err.rindex("error:") :]
    assert "all_reduce of" in last
    assert "[rank 0, dp 0 of 2]" in last
    assert "Traceback" not in last
