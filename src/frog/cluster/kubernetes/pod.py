"""The main program of a pod: `python -m frog.cluster.kubernetes.pod torchrun ARGUMENTS...`.

It waits until the host name of the rendezvous resolves, starts torchrun with those arguments and forwards SIGTERM.
The Job's rules can distinguish its exit codes: 2 for a user's mistake, which a new pod cannot correct; 128 + n after
signal n; otherwise that of the rank that failed first. As process 1 of the pod it must handle signals itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from frog.core.env import variable
from frog.core.errors import CommError, FrogError, UsageError, shell_code, signal_code
from frog.core.runs.outcome import describe_failure, first_failure, last_failures

_NAME_TIMEOUT_S = 300.0
_POLL_S = 0.5


def main(arguments: Sequence[str]) -> int:
    """Run the pod's world; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m frog.cluster.kubernetes.pod", description="Run torchrun in a pod.")
    parser.add_argument("--in", dest="folder", metavar="FOLDER", help="working folder")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="torchrun ARGUMENTS", help="the command")
    args = parser.parse_args(arguments)
    try:
        if args.words[:1] != ["torchrun"]:
            raise UsageError(f"{args.words[0] if args.words else 'nothing'}: a pod runs torchrun")
        return _Pod().run(args.words[1:], args.folder)
    except FrogError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


class _Pod:
    """Runs torchrun, and handles the stop signal that a pod's process 1 receives."""

    def __init__(self) -> None:
        self._agent: subprocess.Popen[bytes] | None = None
        self._stop: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._stop = self._stop or number
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def run(self, words: Sequence[str], folder: str | None) -> int:
        """Wait for the name, run torchrun to its end, return the exit code."""
        if folder is not None:
            os.chdir(folder)
        name = rendezvous_host(words)
        if name is not None and not self._wait_for(name):
            return signal_code(self._stop or signal.SIGTERM)
        with tempfile.TemporaryDirectory(prefix="frog-pod-") as scratch:
            reports = Path(scratch) / "torchrun.jsonl"
            self._agent = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", "frog.launch.torchrun.agent", str(reports), *words]
            )
            if self._stop is not None:  # a stop was requested in between
                self._agent.send_signal(signal.SIGTERM)
            code = self._agent.wait()
            failures = last_failures(reports)
        if self._stop is not None:
            return signal_code(self._stop)
        return exit_code(code, failures)

    def _wait_for(self, name: str) -> bool:
        """Wait until `name` resolves; return False if the pod must stop.

        Raises:  CommError at the deadline.
        """
        start, reported = time.monotonic(), False
        while self._stop is None:
            with contextlib.suppress(OSError):
                address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
                if reported:
                    print(f"{name} resolved to {address} after {time.monotonic() - start:.1f} s", flush=True)
                return True
            if not reported:
                print(f"waiting for the name {name}", flush=True)
                reported = True
            if time.monotonic() - start > _NAME_TIMEOUT_S:
                raise CommError(
                    f"{name}: the name did not resolve within {_NAME_TIMEOUT_S:.0f} s",
                    "check that the pod's subdomain has a headless Service that selects the pod's labels and sets "
                    "publishNotReadyAddresses",
                )
            time.sleep(_POLL_S)
        return False


def rendezvous_host(words: Sequence[str]) -> str | None:
    """Return the host of torchrun's rendezvous: its --master-addr, otherwise the one set by Kubeflow's runtime."""
    for option in ("--master-addr", "--master_addr"):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
            if word == option:
                return following
    return variable("PET_MASTER_ADDR")


def exit_code(agent_code: int, failures: Sequence[dict[str, Any]]) -> int:
    """Compute the pod's exit code from its agent's exit code and its ranks' failures."""
    if not failures:
        return shell_code(agent_code)
    first = first_failure(failures)
    print(describe_failure(first), file=sys.stderr, flush=True)
    if any(failure["code"] == UsageError.exit_code for failure in failures):
        return UsageError.exit_code
    return shell_code(first["code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
