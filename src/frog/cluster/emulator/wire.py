"""Protocol between the commands and the daemon: lines of JSON over a loopback connection, with a secret per request.

It uses TCP, not a Unix socket, whose path may have about 100 bytes: temporary folders of macOS have longer paths.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator.job_processes import MARK
from frog.cluster.simulated_cluster import EmulatorFile, read_cluster_file
from frog.core.env import variable
from frog.core.schema import Typed, convert, decode

_ANSWER_S = 10.0
_DAEMON = "the answer from the emulator's daemon"


class _Refused(Typed, frozen=True):
    """The error fields of an answer; `error` is None if the request succeeded."""

    error: str | None = None
    code: int = 1
    hint: str | None = None


@dataclass(frozen=True)
class Client:
    """Address of a daemon."""

    port: int
    token: str
    folder: Path

    def open(self, act: str, **fields: Any) -> Conversation:
        """Send a request and keep the connection open for several answers."""
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        except OSError as error:
            raise SlurmRefusal(
                f"Unable to contact slurm controller (the emulator's daemon at port {self.port}): {error.strerror}",
                hint="frog slurm down, then frog slurm up --emulator",
            ) from None
        connection.settimeout(None)
        conversation = Conversation(connection, connection.makefile("r", encoding="utf-8"))
        conversation.send(act=act, token=self.token, asker=os.getpid(), mark=variable(MARK) or "", **fields)
        return conversation

    def ask(self, act: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its only answer. Raises SlurmRefusal with the daemon's message."""
        conversation = self.open(act, **fields)
        if act != "wait":
            conversation.connection.settimeout(_ANSWER_S)
        try:
            return conversation.hear()
        finally:
            conversation.close()


@dataclass
class Conversation:
    """An open connection to the daemon."""

    connection: socket.socket
    answers: IO[str]

    def send(self, **fields: Any) -> None:
        self.connection.sendall((json.dumps(fields) + "\n").encode())

    def hear(self) -> dict[str, Any]:
        """Return the next answer. Raises SlurmRefusal if it is an error or the daemon has ended."""
        try:
            line = self.answers.readline()
        except TimeoutError:
            raise SlurmRefusal(
                f"Unable to contact slurm controller: the emulator's daemon did not answer within {_ANSWER_S:.0f} s",
                hint="frog slurm down, then frog slurm up --emulator",
            ) from None
        except OSError:
            line = ""
        if not line:
            raise SlurmRefusal("Unable to contact slurm controller: the emulator's daemon has ended")
        answer = decode(line, dict[str, Any], _DAEMON, error=SlurmRefusal)
        refused = convert(answer, _Refused, _DAEMON, error=SlurmRefusal)
        if refused.error is not None:
            raise SlurmRefusal(refused.error, refused.hint, exit_code=refused.code)
        return answer

    def close(self) -> None:
        self.answers.close()
        self.connection.close()


def read_client(folder: Path) -> Client:
    """Return the daemon of a folder. Raises SlurmRefusal if there is none."""
    try:
        settings = read_cluster_file(folder, EmulatorFile, SlurmRefusal)
    except FileNotFoundError:
        raise SlurmRefusal(f"{folder}: no Slurm emulator is running", "frog slurm up --emulator") from None
    return Client(settings.port, settings.token, folder)
