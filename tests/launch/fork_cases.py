"""Cases for a fork server, in a process that may fork: `python -u -m fork_cases FOLDER` prints the results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from frog.launch.torchrun import forkserver
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer, start_fork_server

PYTHON = [sys.executable, "-u"]
LOOK = str(Path(__file__).with_name("fork_look.py"))
ENV = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "x y='\udc80"}
ENDS = {
    "falls off its end": "import atexit, threading, time\natexit.register(time.sleep, 0)\n"
    "threading.Thread(target=time.sleep, args=(0.1,)).start()",
    "exits": "import sys; sys.exit(7)",
    "exits with words": "import sys; sys.exit('words')",
    "raises": "raise ValueError",
    "is interrupted": "raise KeyboardInterrupt",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "leaves": "import os; os._exit(5)",
}


def spawn(command: Sequence[str], env: dict[str, str]) -> Any:
    """Start a rank like torchrun's own handler."""
    return subprocess.Popen(command, env=env, start_new_session=True)


def looks(start: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the environment that a script and a module see when they are started this way."""
    found = []
    for number, words in enumerate(([LOOK], [LOOK], ["-m", "fork_look"])):
        path = folder / f"look_{number}.json"
        process = start([*PYTHON, *words, str(path), "--a b", ""], ENV)
        assert process.wait(60) == 0
        found.append(json.loads(path.read_text()))
    return found


def codes(start: Any, folder: Path) -> dict[str, int]:
    found = {}
    for name, text in ENDS.items():
        (folder / "ends.py").write_text(text)
        found[name] = start([*PYTHON, str(folder / "ends.py")], ENV).wait(60)
    return found


def leads_its_session(server: ForkServer, folder: Path) -> bool:
    """Return True if each rank leads its session as soon as its pid is known, and so can be stopped by its group."""
    (folder / "pass.py").write_text("")
    groups = []
    for _ in range(20):
        rank = server.fork([*PYTHON, str(folder / "pass.py")], ENV)
        assert rank is not None
        groups.append(os.getsid(rank.pid) == os.getpgid(rank.pid) == rank.pid)
        rank.wait(60)
    return all(groups)


def refusals(server: ForkServer, folder: Path) -> dict[str, bool]:
    """Test that the server refuses ranks that must be new programs."""
    sleeper = [*PYTHON, LOOK, str(folder / "refused.json")]
    (folder / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    )
    sys.path.insert(0, str(folder))
    threaded = start_fork_server("threaded")
    sys.path.pop(0)
    assert threaded is not None
    return {
        "another thread count": server.fork(sleeper, {**ENV, "OMP_NUM_THREADS": "3"}) is None,
        "a variable that is gone": server.fork(sleeper, {k: v for k, v in ENV.items() if k != "HOME"}) is None,
        "another python": server.fork(["/usr/bin/python3", "-u", *sleeper[2:]], ENV) is None,
        "a message that is too long": server.fork([*sleeper, "x" * 2_000_000], ENV) is None,
        "a server with threads": threaded.fork(sleeper, ENV) is None,
    }


def interrupted(server: ForkServer, folder: Path) -> list[int]:
    """Send a request whose answer is not read, then another; return whether the second gets its own answer."""
    command = [*PYTHON, LOOK, str(folder / "left.json")]
    server._requests.send(json.dumps({"number": 0, "command": command, "env": ENV}).encode())
    (folder / "own.py").write_text("import sys; sys.exit(9)")
    rank = server.fork([*PYTHON, str(folder / "own.py")], ENV)
    assert rank is not None
    return [rank.wait(60)]


def without_server(server: ForkServer, folder: Path) -> dict[str, Any]:
    """Kill the server of a running rank, then request another rank."""
    begun = folder / "begun"
    os.mkfifo(begun)
    (folder / "sleep.py").write_text(f"import signal; open({str(begun)!r}, 'w').close(); signal.pause()")
    rank = server.fork([*PYTHON, str(folder / "sleep.py")], ENV)
    assert rank is not None
    begun.read_text()  # a rank that has not begun when its server is killed ends itself
    for child in psutil.Process().children():
        if child.pid != rank.pid:
            child.kill()
    late = server.fork([*PYTHON, LOOK, str(folder / "late.json")], ENV)
    alive = rank.poll() is None
    try:
        rank.wait(0)
        timed_out = False
    except subprocess.TimeoutExpired:
        timed_out = True
    os.kill(rank.pid, signal.SIGTERM)
    return {"alive": alive, "late": late is None, "code": rank.wait(60), "timed_out": timed_out}


def silent(folder: Path) -> dict[str, Any]:
    """Send two requests to a stopped server."""
    with mock.patch.object(forkserver, "_ANSWER_S", 0.2):
        server = start_fork_server(None)
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    ranks = [server.fork([*PYTHON, LOOK, str(folder / "silent.json")], ENV) for _ in range(2)]
    return {"ranks": ranks, "server": psutil.Process(server.pid).wait(60)}


def unnamed(folder: Path) -> bool:
    """Return True if a rank began although its requester no longer listened."""
    before = psutil.Process().children()
    server = start_fork_server(None)
    assert server is not None
    server._requests.shutdown(socket.SHUT_RD)
    begun = folder / "unnamed.json"
    server._requests.send(json.dumps({"number": 1, "command": [*PYTHON, LOOK, str(begun)], "env": ENV}).encode())
    server._requests.close()
    while children := [child for child in psutil.Process().children() if child not in before]:
        psutil.wait_procs(children)
    return begun.exists()


def main(folder: Path) -> None:
    server = start_fork_server(None)
    assert server is not None
    findings = {
        "agent": os.getpid(),
        "spawned": {"looks": looks(spawn, folder), "codes": codes(spawn, folder)},
        "forked": {"looks": looks(server.fork, folder), "codes": codes(server.fork, folder)},
        "leads_its_session": leads_its_session(server, folder),
        "refusals": refusals(server, folder),
        "interrupted": interrupted(server, folder),
        "silent": silent(folder),
        "unnamed": unnamed(folder),
        "without_server": without_server(server, folder),
    }
    print(json.dumps(findings))


def stay(folder: Path) -> None:
    """Fork a rank that ends with its parent, print its pid, and stay."""
    server = start_fork_server(None)
    assert server is not None
    script = folder / "stays.py"
    script.write_text(
        "import signal, sys\nfrom frog.core.processes import leave_with_parent\n"
        "leave_with_parent()\nopen(sys.argv[1], 'w').close()\nsignal.pause()"
    )
    os.mkfifo(folder / "up")
    rank = server.fork([*PYTHON, str(script), str(folder / "up")], ENV)
    assert isinstance(rank, ForkedRank)
    (folder / "up").read_text()
    print(json.dumps([child.pid for child in psutil.Process().children()]), flush=True)
    signal.pause()


if __name__ == "__main__":
    (stay if sys.argv[2:] else main)(Path(sys.argv[1]))
