"""`%%ranks` in a real Jupyter kernel: cells on living ranks, planted errors, hangs and interrupts, and no orphan."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_S
from kernel import Kernel

START = "%%ranks --world 2\nimport os, signal, time\nimport torch, torch.distributed as dist\nrank = dist.get_rank()"
WAITS = "print('waits', flush=True)\n"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("notebook")) as running:
        assert running.run(START).error == ""
        yield running


def test_ranks_keep_their_variables_and_show_the_last_value(kernel: Kernel) -> None:
    assert kernel.run("%%ranks\nx = torch.ones(3) * rank\nprint('made')").text == "ranks 0, 1 │ made"
    assert kernel.run("%%ranks [1]\nx + 1").text == "rank 1 │ tensor (3) float32 cpu: [2, 2, 2]"
    shown = kernel.run("%ranks dist.all_reduce(x); x")
    assert shown.text == "ranks 0, 1 │ tensor (3) float32 cpu: [1, 1, 1]\nequal on all ranks"
    assert "equal on all ranks" in shown.displays[0]["text/html"]
    kernel.run("values = %ranks_get x + rank")
    assert kernel.run("[each.tolist() for each in values]").result == "[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]"
    assert "rank 0: process" in kernel.run("%ranks_info").text


def test_error_on_one_rank_leaves_the_others(kernel: Kernel) -> None:
    shown = kernel.run("%%ranks\ndef f(a):\n    return 1 / a\n'fine' if rank else f(0)")
    lines = shown.text.splitlines()
    assert lines[-2:] == ["rank 0 │ ZeroDivisionError: division by zero", "rank 1 │ 'fine'"]
    assert [line.rpartition(", line ")[2] for line in lines if ", line " in line] == ["4", "3, in f"]
    assert shown.error == "CellFailed: failed on rank 0"
    assert kernel.run("%ranks rank").text == "rank 0 │ 0\nrank 1 │ 1"


def test_cell_that_hangs_ends_with_who_waits_where(kernel: Kernel) -> None:
    kernel.run("%ranks held = rank")
    shown = kernel.run("%%ranks\nx = torch.zeros(4)\nif rank == 0:\n    dist.all_reduce(x)")
    assert "hang: rank 0 waits for rank 1\n  rank 0: waits in all_reduce number " in shown.text
    assert f" at cell {shown.number}, line 4\n  rank 1: has finished the cell" in shown.text
    assert shown.error == "CellFailed: hung on rank 0"
    drawn = kernel.run("%ranks_draw")
    assert "all_reduce, 16 B" in drawn.text
    assert re.search(r"rank 0 waited \d+\.\d s; rank 1 never entered it", drawn.text)
    assert "<svg" in drawn.displays[0]["text/html"]
    assert kernel.run("%ranks dist.barrier(); held").text == "rank 0 │ 0\nrank 1 │ 1"


@pytest.mark.slow
def test_different_lines_and_absent_ranks_are_named(kernel: Kernel) -> None:
    shown = kernel.run("%%ranks --allow-errors\nx = torch.zeros(4)\nif rank:\n    dist.broadcast(x, 0)\ndist.barrier()")
    assert "rank 0: waits in barrier" in shown.text or "rank 0: has finished the cell" in shown.text
    assert shown.error == ""
    shown = kernel.run("%%ranks [1]\ndist.barrier()")
    assert "rank 0: is not in this cell" in shown.text
    assert kernel.run("%ranks dist.barrier(); 7").text == "ranks 0, 1 │ 7"


def test_interrupt_ends_the_cell_on_all_ranks(kernel: Kernel) -> None:
    kernel.run("%ranks held = rank")
    code = f"%%ranks\n{WAITS}if rank == 0:\n    dist.recv(torch.zeros(2), 1)\nwhile True:\n    time.sleep(0.01)"
    shown = kernel.run(code, then=kernel.interrupt, once="waits")
    assert shown.error == "CellFailed: was interrupted on ranks 0, 1"
    assert [line for line in shown.text.splitlines() if "Interrupt" in line] == [
        "rank 0 │ KeyboardInterrupt",
        "rank 1 │ KeyboardInterrupt",
    ]
    assert kernel.run("%ranks dist.barrier(); held").text == "rank 0 │ 0\nrank 1 │ 1"


def test_killed_rank_returns_with_the_definitions_and_the_other_keeps_its_variables(kernel: Kernel) -> None:
    kernel.run("%%ranks\nclass Net(torch.nn.Linear):\n    pass\nnet = Net(2, 2)\ngen = (n for n in range(2))")
    shown = kernel.run("%%ranks\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert "was killed by SIGKILL: the world was started again" in shown.text
    assert "gen (a generator" in shown.text
    assert shown.error.endswith("ended the process of rank 1")
    assert kernel.run("%%ranks [0]\nisinstance(net, Net)").text == "rank 0 │ True"
    assert "NameError: name 'net' is not defined" in kernel.run("%%ranks [1]\nNet\nnet").text
    assert kernel.run(START).error == ""


def test_mistakes_are_errors_without_a_traceback(kernel: Kernel) -> None:
    assert kernel.run("%ranks [5] 1").error == "error: rank 5: the world has ranks 0 to 1\n  try: --world 6"
    assert "unrecognized arguments: --wrold" in kernel.run("%%ranks --wrold 3\n1").error


@pytest.mark.slow
def test_interrupted_start_and_killed_kernel_leave_no_process(tmp_path: Path) -> None:
    with Kernel(tmp_path) as kernel:
        shown = kernel.run("%%ranks --world 2\n1", then=kernel.interrupt, once="starting a world of 2 ranks ...")
        assert (shown.text, shown.error) == ("", "error: interrupted before the cell ran")
        assert psutil.Process(kernel.pid).children(recursive=True) == []
        kernel.run("%%ranks --world 2\nimport torch.distributed as dist, subprocess\ndist.get_rank()")
        kernel.run("%%ranks\nchild = subprocess.Popen(['sleep', '1000'])")
        family = psutil.Process(kernel.pid).children(recursive=True)
        assert len([own for own in family if own.name() == "sleep"]) == 2
        os.kill(kernel.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=LIMIT_S)
        assert [own.cmdline() for own in alive] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_world_survives_200_cells_with_errors_hangs_and_interrupts(tmp_path: Path) -> None:
    planted = {
        "error": "%%ranks\nif rank == 1:\n    raise ValueError('planted')",
        "hang": "%%ranks\nif rank == 0:\n    dist.all_reduce(torch.ones(2))",
        "mismatch": "%%ranks\ndist.barrier() if rank else dist.recv(torch.ones(2), 1)",
        "interrupt": f"%%ranks\n{WAITS}while True:\n    time.sleep(0.01)",
        "interrupt_wait": f"%%ranks\n{WAITS}dist.barrier() if rank else time.sleep(1000)",
        "death": "%%ranks\nif rank == 0:\n    os._exit(3)\ndist.barrier()",
        "syntax": "%%ranks\n1 +",
        "store": "%%ranks\nif rank == 0:\n    dist.new_group([0, 1])",
    }
    often = {
        "error": 9,
        "syntax": 3,
        "hang": 4,
        "interrupt": 4,
        "mismatch": 2,
        "interrupt_wait": 2,
        "store": 2,
        "death": 1,
    }
    kinds = [kind for kind, times in often.items() for _ in range(times)]
    order = [kinds[7 * number % len(kinds)] for number in range(len(kinds))]  # 27 of 200; mixed, the same each time
    with Kernel(tmp_path) as kernel:
        assert kernel.run(START).error == ""
        kernel.run("%ranks total = torch.zeros(1)")
        expected = 0
        for number in range(198):
            if number % 7 == 3 and order:
                kind = order.pop()
                interrupts = kernel.interrupt if kind.startswith("interrupt") else None
                shown = kernel.run(planted[kind], then=interrupts, once="waits")
                assert shown.error.startswith("CellFailed"), (kind, shown)
                assert ("hang:" in shown.text) == (kind in ("hang", "mismatch", "store")), (kind, shown)
                if kind == "death":
                    kernel.run(START)
                    kernel.run(f"%ranks total = torch.full((1,), {expected}.0)")
                continue
            shown = kernel.run("%%ranks\nstep = torch.ones(1)\ndist.all_reduce(step)\ntotal += step\nint(total)")
            expected += 2
            assert shown.text == f"ranks 0, 1 │ {expected}", (number, shown)
        assert order == []
