"""`frog world`: the same ranks at a prompt, in a terminal and from standard input."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_S, wait_until

COMMAND = [sys.executable, "-m", "frog.cli", "world", "--nproc", "2"]

TYPED = """\
x = torch.ones(2) * (1 + dist.get_rank())
dist.all_reduce(x)
x
:draw
[1] for i in range(2):
    print("i", i)

:rank 1
dist.barrier()
:rank all
dist.barrier(); "alive"
:rank 7
1 / 0
"""


def test_standard_input_runs_statement_by_statement(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, input=TYPED, capture_output=True, text=True, cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 1  # a cell failed
    lines = done.stdout.splitlines()
    assert lines[:2] == ["tensor (2) float32 cpu: [3, 3]", "equal on all ranks"]
    assert lines[2] == "cell 3: collectives in order; for each rank, when it entered"
    assert lines[3].startswith("  all_reduce, 8 B at cell 3, line 1: ")
    assert [line for line in lines if "│ i " in line] == ["rank 1 │ i 0", "rank 1 │ i 1"]
    assert "hang: rank 1 waits for rank 0" in lines
    assert "  rank 0: is not in this cell" in lines
    assert "'alive'" in lines
    assert lines[-1] == "ranks 0, 1 │ ZeroDivisionError: division by zero"
    assert done.stderr == "error: rank 7: the world has ranks 0 to 1\n  try: :rank all\n"


def test_option_that_makes_no_sense_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    command = [*COMMAND[:-2], "--nproc", "2", "--network", "rate=1mbit"]
    done = subprocess.run(command, input="", capture_output=True, text=True, cwd=tmp_path, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --network needs several nodes")


@pytest.mark.slow
def test_ctrl_c_interrupts_the_cell_and_the_prompt_goes_on(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True, close_fds=True
    )
    os.close(theirs)
    seen = ""

    def shows(words: str) -> bool:
        nonlocal seen
        seen += os.read(ours, 65536).decode(errors="replace")
        return words in seen

    def say(text: str, answer: str) -> None:
        nonlocal seen
        seen = ""
        os.write(ours, text.encode())
        wait_until(lambda: shows(answer), answer)

    try:
        wait_until(lambda: shows("[0,1] >>> "), "the prompt")
        say("import os, time\n", "[0,1] >>> ")
        started = tmp_path / "started"
        os.write(ours, f"open({str(started)!r}, 'w').close(); time.sleep(1000)\n".encode())
        wait_until(started.exists, "a cell that runs")
        process.send_signal(2)
        wait_until(lambda: shows("KeyboardInterrupt"), "the interrupted cell")
        say("dist.get_world_size() * 21\n", "42")
        go = tmp_path / "go"
        os.write(ours, f"print('early'); exec(\"while not os.path.exists('{go}'): time.sleep(.01)\")\n".encode())
        wait_until(lambda: shows("rank 1 │ early"), "output of a cell that still runs")
        go.touch()
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 2
        os.write(ours, b":quit\n")
        assert process.wait(LIMIT_S) == 0
        _, alive = psutil.wait_procs(family, timeout=LIMIT_S)
        assert alive == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
