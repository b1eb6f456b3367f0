"""Stands in for a training program: meet the other ranks, as torch.distributed does, and end. Do not change it.

Reads RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT. Rank 0 listens; the others knock until it
opens; when all have come, each is told who the others are. With FAIL_RANK=2 in the environment, rank 2 fails once all
have met, and the others wait for it, as they would in a collective.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
PATIENCE_S = 4.0 * SLOWNESS
"""For the others to come. When one has lost patience, those that come later have none."""
WAITS_S = 2.5 * SLOWNESS
"""For one that has failed, as in a collective."""


def main() -> None:
    missing = [name for name in NAMES if name not in os.environ]
    note("started", {name: os.environ.get(name) for name in NAMES})
    if missing:
        sys.exit(f"worker: {', '.join(missing)} not in the environment")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        lines = listen(address, world_size) if rank == 0 else [knock(address, rank)]
        names = meet(lines, rank)
    except OSError as error:
        note("alone" if isinstance(error, TimeoutError | ConnectionRefusedError) else "refused", str(error))
        sys.exit(f"rank {rank} of {world_size}: the others did not come together at {address[0]}:{address[1]}: {error}")
    note("met", names)
    print(f"rank {rank} of {world_size} met {names}", flush=True)
    if (failing := os.environ.get("FAIL_RANK")) is not None:
        if int(failing) == rank:
            note("failed", rank)
            sys.exit(7)
        time.sleep(WAITS_S)
        note("waited", rank)
    note("ended", rank)


def listen(address: tuple[str, int], world_size: int) -> list[socket.socket]:
    """A connection from each of the others."""
    door = socket.create_server(address)
    door.settimeout(0.1)
    deadline, lines = time.monotonic() + PATIENCE_S, []
    while len(lines) < world_size - 1:
        try:
            lines.append(door.accept()[0])
        except TimeoutError:
            if is_over(deadline):
                raise TimeoutError(f"{len(lines) + 1} of {world_size} came") from None
    return lines


def knock(address: tuple[str, int], rank: int) -> socket.socket:
    """A connection to rank 0, however late it comes."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            line = socket.create_connection(address, timeout=PATIENCE_S)
            line.sendall(f"{rank}\n".encode())
            return line
        except ConnectionRefusedError:
            if is_over(deadline):
                raise
            time.sleep(0.02)


def is_over(deadline: float) -> bool:
    """Whether it is time to give up, for this worker or because another has."""
    return time.monotonic() > deadline or any(word in notes() for word in ('"alone"', '"refused"'))


def meet(lines: list[socket.socket], rank: int) -> list[int]:
    """The ranks that have come: rank 0 hears them and tells all."""
    for line in lines:
        line.settimeout(PATIENCE_S)
    if rank != 0:
        if not (said := lines[0].makefile().readline()):
            raise ConnectionError("rank 0 went away")
        return json.loads(said)
    names = sorted([0, *(int(line.makefile().readline()) for line in lines)])
    for line in lines:
        line.sendall(f"{json.dumps(names)}\n".encode())
    return names


def note(what: str, value: object) -> None:
    """What this worker has come to, for the check, in the order of time."""
    if path := os.environ.get("WORKER_NOTES"):
        line = json.dumps([time.monotonic_ns(), os.getpid(), what, value])
        with open(path, "a") as file:
            file.write(line + "\n")


def notes() -> str:
    """What all workers have come to."""
    path = os.environ.get("WORKER_NOTES")
    return Path(path).read_text() if path and os.path.exists(path) else ""


if __name__ == "__main__":
    main()
