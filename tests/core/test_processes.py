"""Parents and children among the processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil
from harness import LIMIT_S

from frog.core.processes import descendants, reap_orphans

PARENT = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
"""


def test_descendants_include_grandchildren_and_children_of_other_threads() -> None:
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as child:
        assert child.stdout
        family = {child.pid, int(child.stdout.readline())}
        assert family <= set(descendants(os.getpid())) == {one.pid for one in psutil.Process().children(recursive=True)}
        child.communicate("\n")
    assert not family & set(descendants(os.getpid()))


def test_ended_orphans_are_reaped() -> None:
    program = """
import os
from frog.core.processes import descendants, reap_orphans, take_orphans
if take_orphans():
    if os.fork() == 0:
        os.fork()  # an orphan, or soon to be one
        os._exit(0)
    while descendants(os.getpid()):
        reap_orphans()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)
    reap_orphans()  # without any


def test_all_ended_orphans_are_reaped_at_once_and_running_ones_are_left() -> None:
    program = (
        f"import os, signal\nfrom {reap_orphans.__module__} import reap_orphans\n"
        + """
running = os.fork()
if running == 0:
    signal.pause()
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped yet
reap_orphans()
assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a child that had ended was left, or the running one was not"
os.kill(running, signal.SIGKILL)
os.waitpid(running, 0)
"""
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
