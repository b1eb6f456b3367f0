"""The troubleshooting page: tests cause each error that one process can cause, and compare its text."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import LIMIT_S
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ENTRY = re.compile(r"^### (\d+)\. `(.+?)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = {int(number): (words, body) for number, words, body in ENTRY.findall(PAGE)}
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
HERE = "tests/test_troubleshooting.py"
TO_TEXT: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
RAISED = (RuntimeError, AssertionError, IndexError, ValueError, UnpicklingError)


def widths(tmp_path: Path) -> None:
    nn.Linear(54, 8)(torch.zeros(8, 8))


def heads(tmp_path: Path) -> None:
    torch.zeros(2, 64, 128).view(2, 64, -1, 42)


def vocabulary(tmp_path: Path) -> None:
    nn.Embedding(10, 4)(torch.tensor([10]))


def backward_twice(tmp_path: Path) -> None:
    loss = (torch.ones(1, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def cuda_without(tmp_path: Path) -> None:
    if torch.version.cuda:
        pytest.skip("torch was built with CUDA here")
    torch.zeros(1, device="cuda")


def spawned_at_import(tmp_path: Path) -> None:
    program = tmp_path / "starts.py"
    program.write_text(
        "import multiprocessing as mp\nmp.set_start_method('spawn', force=True)\n"
        "process = mp.Process(target=print)\nprocess.start()\nprocess.join()\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=LIMIT_S)
    raise RuntimeError(done.stderr)


def plain_python(tmp_path: Path) -> None:
    dist.init_process_group("gloo")


def no_group(tmp_path: Path) -> None:
    dist.all_reduce(torch.zeros(1))


def port_taken(tmp_path: Path) -> None:
    first = store(0, is_master=True)
    store(first.port, is_master=True)


def nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as bound:  # occupies the port without listening
        bound.bind(("127.0.0.1", 0))
        store(bound.getsockname()[1], is_master=False)


def too_few(tmp_path: Path) -> None:
    store(0, is_master=True, world_size=2)


def unused_parameter(tmp_path: Path) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    with world_of_one():
        model = DistributedDataParallel(TwoHeads())
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()


def half_weights(tmp_path: Path) -> None:
    model = nn.Linear(2, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2).half()).sum()).backward()
    scaler.unscale_(optimizer)


def wrapped_names(tmp_path: Path) -> None:
    saved = {f"module.{name}": value for name, value in nn.Linear(2, 1).state_dict().items()}
    nn.Linear(2, 1).load_state_dict(saved)


def torn_file(tmp_path: Path) -> None:
    path = tmp_path / "torn.pt"
    torch.save(torch.zeros(1000), path)
    path.write_bytes(path.read_bytes()[:2000])
    torch.load(path)


def not_a_tensor(tmp_path: Path) -> None:
    torch.save(argparse.Namespace(steps=1), tmp_path / "arguments.pt")
    torch.load(tmp_path / "arguments.pt")


def mismatched_collectives(tmp_path: Path) -> None:
    program = tmp_path / "mismatched.py"
    program.write_text(
        "import sys, torch, torch.distributed as dist\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "dist.init_process_group('gloo', store=store, rank=int(sys.argv[1]), world_size=2)\n"
        "dist.all_reduce(torch.ones(4)) if dist.get_rank() == 0 else dist.broadcast(torch.ones(4), 0)\n"
    )
    detail = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ranks = [subprocess.Popen([sys.executable, program, str(rank)], env=detail, **TO_TEXT) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    raise RuntimeError(said[0])


BROUGHT_ABOUT: dict[int, Callable[[Path], None]] = {
    2: cuda_without,
    8: spawned_at_import,
    9: widths,
    10: heads,
    11: vocabulary,
    13: backward_twice,
    16: plain_python,
    17: no_group,
    18: port_taken,
    19: nobody_listens,
    20: too_few,
    25: mismatched_collectives,
    29: unused_parameter,
    31: half_weights,
    34: wrapped_names,
    35: torn_file,
    37: not_a_tensor,
}


def store(port: int, *, is_master: bool, world_size: int = 1) -> dist.TCPStore:
    timeout = datetime.timedelta(seconds=1)
    waits = world_size > 1
    return dist.TCPStore("127.0.0.1", port, world_size, is_master, timeout=timeout, wait_for_workers=waits)


@contextmanager
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("number", BROUGHT_ABOUT)
def test_error_text_matches_the_troubleshooting_page(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RAISED) as caught:
        BROUGHT_ABOUT[number](tmp_path)
    words = ENTRIES[number][0].split("…")
    said = " ".join(str(caught.value).split()).lower()
    assert all(" ".join(part.split()).lower() in said for part in words), said[:500]


WRAPS_A_MODEL = """
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
DistributedDataParallel(nn.Linear(2, 1))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("level", "code"), [("INFO", 0), ("DETAIL", -signal.SIGSEGV)])
def test_debug_level_detail_crashes_ddp_on_gloo(level: str, code: int, tmp_path: Path) -> None:
    env = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": level}
    done = subprocess.run([sys.executable, "-c", WRAPS_A_MODEL], env=env, cwd=tmp_path, timeout=LIMIT_S, **TO_TEXT)
    assert done.returncode == code, "torch has changed: update entry 25 of docs/troubleshooting.md"
    assert "segmentation fault" in ENTRIES[25][1]


def test_troubleshooting_entries_are_numbered_without_gaps() -> None:
    numbers = [int(number) for number in re.findall(r"^### (\d+)\.", PAGE, re.MULTILINE)]
    assert numbers == list(ENTRIES) == list(range(1, len(ENTRIES) + 1))
    assert numbers


def problems_of_entry(number: int) -> Iterator[str]:
    """Yield what an entry of the page lacks."""
    body = ENTRIES[number][1]
    if not re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", body):
        yield "no link to an issue or a pull request"
    yield from (f"no {word}" for word in ("**Do:**", "**Here:**") if word not in body)
    named = TEST.findall(body)
    if ((HERE, "") in named) != (number in BROUGHT_ABOUT):
        yield f"names {HERE}, or BROUGHT_ABOUT has the entry, but not both"
    for file, test in named:
        if test and not re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE):
            yield f"{file} has no {test}"


def test_troubleshooting_entries_have_a_thread_a_remedy_and_a_place() -> None:
    assert len(ENTRIES) >= 40
    assert [f"{number}: {problem}" for number in ENTRIES for problem in problems_of_entry(number)] == []
