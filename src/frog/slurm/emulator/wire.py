"""How the commands speak with the daemon: lines of JSON over a loopback connection, with a secret in each request.

TCP and not a Unix socket: the path of a socket may have about 100 bytes, and temporary folders of a Mac are longer.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from frog.core.env import variable
from frog.slurm.emulator.processes import MARK
from frog.slurm.emulator.refusal import SlurmRefusal

CLUSTER_FILE = "cluster.json"
_ANSWER_S = 10.0


@dataclass(frozen=True)
class Client:
    """Where a daemon listens."""

    port: int
    token: str
    folder: Path

    def open(self, act: str, **fields: Any) -> Conversation:
        """Send a request and leave the connection open, for several answers."""
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
        """One request, one answer. Raises SlurmRefusal with the daemon's words."""
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
        """The next answer. Raises SlurmRefusal if it is an error, or if the daemon is gone."""
        try:
            line = self.answers.readline()
        except TimeoutError:
            raise SlurmRefusal(
                f"Unable to contact slurm controller: the emulator's daemon does not answer within {_ANSWER_S:.0f} s",
                hint="frog slurm down, then frog slurm up --emulator",
            ) from None
        except OSError:
            line = ""
        if not line:
            raise SlurmRefusal("Unable to contact slurm controller: the emulator's daemon has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SlurmRefusal(answer["error"], exit_code=answer.get("code", 1))
        return answer

    def close(self) -> None:
        self.answers.close()
        self.connection.close()


def read_client(folder: Path) -> Client:
    """The daemon of a folder. Raises SlurmRefusal if there is none."""
    try:
        table = json.loads((folder / CLUSTER_FILE).read_text())
        return Client(int(table["port"]), str(table["token"]), folder)
    except (OSError, ValueError, KeyError):
        raise SlurmRefusal(f"{folder}: no emulator of Slurm is up there", hint="frog slurm up --emulator") from None
