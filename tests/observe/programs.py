"""Small programs, in which an observer could change something, and a way to run one as an observed rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from harness import LIMIT_S

from frog.observe.environment import environment

PROGRAMS = {
    "ends": "print('done')",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "raises_from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "exits_with_code": "import sys\nsys.exit(3)",
    "exits_with_text": "import sys\nsys.exit('bad arguments')",
    "exits_at_once": "import os\nprint('last', flush=True)\nos._exit(4)",
    "kills_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "is_terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "handles_a_signal": "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    "os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
    "is_interrupted": "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "waits_for_a_blocked_signal": "import os, signal, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\ntime.sleep(0.7)\n"
    "os.kill(os.getpid(), signal.SIGUSR1)\nprint(signal.sigwait([signal.SIGUSR1]))",
    "signals_are_not_blocked": "import signal\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "crashes": "import os\nos.abort()",
    "overflows": "import ctypes\nctypes.string_at(0)",
    "has_its_own_hook": "import sys\nsys.excepthook = lambda *args: print('mine', args[0].__name__)\n1 / 0",
    "chains_to_the_hook": "import sys\nnext = sys.excepthook\n"
    "sys.excepthook = lambda *args: (print('first', flush=True), next(*args))\n1 / 0",
    "message_fails": "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad",
    "thread_raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='worker')\nt.start()\nt.join()",
    "thread_remains": "import threading, time\nmain = threading.current_thread()\n"
    "threading.Thread(target=lambda: (main.join(), time.sleep(0.2), print('later'))).start()\nprint('main')",
    "daemon_thread_remains": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "counts_threads": "import threading\n"
    "print(threading.active_count(), [thread.name for thread in threading.enumerate()])",
    "exit_handlers_run_in_order": "import atexit\natexit.register(print, 'b')\natexit.register(print, 'a')",
    "uses_faulthandler": "import faulthandler, os\nprint(faulthandler.is_enabled())\nfaulthandler.enable()\n"
    "print(faulthandler.is_enabled(), flush=True)\nos.abort()",
    "disables_faulthandler": "import faulthandler\nfaulthandler.enable()\nprint(faulthandler.disable())\n"
    "print(faulthandler.disable(), faulthandler.is_enabled())",
    "uses_the_timer": "import faulthandler, time\nfaulthandler.dump_traceback_later(1)\ntime.sleep(1.6)",
    "forks": "import os\nif os.fork() == 0:\n    print('child', flush=True)\n    raise ValueError('of the child')\n"
    "print(os.wait()[1])",
    "child_uses_the_timer": "import faulthandler, os\nif os.fork() == 0:\n    faulthandler.dump_traceback_later(60)\n"
    "    faulthandler.cancel_dump_traceback_later()\n    raise SystemExit(6)\nprint(os.wait()[1])",
    "pool": "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing\nif __name__ == '__main__':\n"
    "    with ProcessPoolExecutor(2, multiprocessing.get_context('spawn')) as pool:\n"
    "        print(list(pool.map(abs, [-1, -2])))",
    "becomes_another_program": "import os, sys\n"
    "os.execv(sys.executable, [sys.executable, '-c', 'raise ValueError(7)'])",
    "starts_a_child": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', '1 / 0']).returncode)",
    "reads_stdin": "import sys\nprint(repr(sys.stdin.read()))",
    "does_not_import": "import sys\nprint('torch' in sys.modules, 'numpy' in sys.modules, sys.argv)",
}


BEATS = """
import os, time
from frog_observer.rank_files import read_json
def beats():
    path = f"{os.environ['FROG_RUN_DIR']}/observed/attempt_0/rank_{os.environ['RANK']}/status.json"
    return (read_json(path) or {"samples": {"taken": 0}})["samples"]["taken"]
before = beats()
while beats() < before + 2:
    time.sleep(0.01)
"""
"""Part of a program that continues once its observer has beaten twice."""


def run_program(code: str, folder: Path | None, tmp: Path, *options: str, **changes: str) -> tuple[str, str, int]:
    """Run a program as rank 1 of 2, observed if it has a folder; return stdout, stderr and the exit code."""
    script = tmp / "program.py"
    script.write_text(code + "\n")
    return run_command([sys.executable, *options, str(script)], folder, tmp, **changes)


def run_command(words: list[str], folder: Path | None, tmp: Path, **changes: str) -> tuple[str, str, int]:
    """Run a command as rank 1 of 2, observed if it has a folder; return stdout, stderr and the exit code."""
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", **changes}
    if folder is not None:
        env |= environment(folder, before=env.get("PYTHONPATH"))
    done = subprocess.run(words, env=env, cwd=tmp, capture_output=True, text=True, timeout=LIMIT_S, input="text")
    return done.stdout, done.stderr, done.returncode


def without_observers_threads(result: tuple[str, str, int]) -> tuple[str, str, int]:
    """Remove the observer's threads and the addresses from a fault handler's output."""
    out, err, code = result
    own = r"Thread 0x.*\n(?:(?:  File .*\n)*?  File .*frog_observer.*\n(?:  File .*\n)*|  <no Python frame>\n)\n"
    return out, re.sub("0x[0-9a-f]+", "0x", re.sub(own, "", err)), code
