"""The reserve process: `python -m frog.learn.grader.reserve FD` loads torch, then forks itself for each check."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from frog.core.machine import use_huge_pages
from frog.core.namespaces import die_with_parent
from frog.core.processes import loading, reap_orphans, take_orphans

with loading():
    import torch

    from frog.launch.resource_limits import end_descendants, slowness
    from frog.learn.grader.grader_rank import load_all
    from frog.learn.grader.guard import leave_network
    from frog.learn.grader.job_clusters import running_slurm
    from frog.learn.grader.judge import Request, judge
    from frog.learn.grader.verdict import Verdict

MOST_S = 300.0
"""Time limit of one check on a machine that is not slow."""


def main(descriptor: int) -> None:
    """Answer each request with a verdict until the other end closes."""
    torch.set_num_threads(1)
    with loading():
        load_all()
    slow = slowness()
    use_huge_pages()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_orphans()
    with Connection(descriptor) as client:
        client.send_bytes(b"ready")
        while True:
            try:
                asked = client.recv_bytes()
            except (EOFError, OSError):  # the client has exited
                return
            request = msgspec.msgpack.decode(asked, type=Request)
            _load_torch_for(Path(request.exercise))
            verdict = _checked(request, client, slow)  # an error here is the grader's own, and its traceback must show
            try:
                client.send_bytes(msgspec.json.encode(verdict))
            except OSError:
                return


def _load_torch_for(exercise: Path) -> None:
    """Import the modules of torch that an exercise's own files import, so that its later checks find them loaded."""
    names: set[str] = set()
    for path in (exercise / "check.py", exercise / "ranks.py", *exercise.glob("reference/*.py")):
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # the check itself reports it
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module)
    with loading():
        for name in names:
            if name.startswith("torch.") and name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)


def _checked(request: Request, client: Connection, slow: float) -> Verdict:
    """Return the verdict of a forked judge, if forking is safe here; end the judge if the client exits."""
    if not sys.platform.startswith("linux"):
        return judge(request, slow)
    most_s = MOST_S * slow
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        client.close()
        _be_judge(request, writing, slow)
    os.close(writing)
    try:
        with Connection(reading, writable=False) as answer:
            if answer in wait([answer, client], most_s):
                return msgspec.json.decode(answer.recv_bytes(), type=Verdict)
        why = f"The check did not finish within {most_s:g} s."
    except EOFError:
        why = "The grader's own process ended."
    finally:
        with contextlib.suppress(ProcessLookupError):  # it is not a group leader yet, or has ended
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        reap_orphans()
    end_descendants()  # the judge's descendants, which it could not end itself
    return _broken(request, why)


def _be_judge(request: Request, writing: int, slow: float) -> None:
    try:
        os.setsid()
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if running_slurm() is None:  # its daemons are on this machine's network
            leave_network()
        Connection(writing, readable=False).send_bytes(msgspec.json.encode(judge(request, slow)))
    finally:
        os._exit(0)


def _broken(request: Request, why: str) -> Verdict:
    name = "/".join(request.exercise.split("/")[-2:])
    return Verdict(exercise=name, status="broken", misconception="broken", observed=why, seed=request.seed, seconds=0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
