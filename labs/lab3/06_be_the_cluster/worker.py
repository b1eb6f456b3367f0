"""Simulates a training program: joins the other ranks, as torch.distributed does, and ends. Do not change it.

Reads RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT. Rank 0 listens; the others try to connect until
it does; when all have joined, each receives the list of ranks. With FAIL_RANK=2 in the environment, rank 2 fails after
all have joined, and the others wait for it, as they would in a collective. With LAST_RANK=1, rank 1 ends later than
the others.
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
"""Seconds to wait for the others. Once one worker has given up, later ones give up immediately."""
WAITS_S = 2.5 * SLOWNESS
"""Seconds to wait for a failed rank, as in a collective."""
LAST_S = 0.5 * SLOWNESS
"""Seconds that the last rank works longer than the others."""


def main() -> None:
    missing = [name for name in NAMES if name not in os.environ]
    note("started", {name: os.environ.get(name) for name in NAMES})
    if missing:
        sys.exit(f"worker: {', '.join(missing)} not in the environment")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        lines = listen(address, world_size) if rank == 0 else [connect(address, rank)]
        names = meet(lines, rank)
    except OSError as error:
        note("alone" if isinstance(error, TimeoutError | ConnectionRefusedError) else "refused", str(error))
        sys.exit(f"rank {rank} of {world_size}: the ranks did not all connect at {address[0]}:{address[1]}: {error}")
    note("met", names)
    print(f"rank {rank} of {world_size} met {names}", flush=True)
    if (failing := os.environ.get("FAIL_RANK")) is not None:
        if int(failing) == rank:
            note("failed", rank)
            sys.exit(7)
        time.sleep(WAITS_S)
        note("waited", rank)
    if os.environ.get("LAST_RANK") == str(rank):
        time.sleep(LAST_S)
    note("ended", rank)


def listen(address: tuple[str, int], world_size: int) -> list[socket.socket]:
    """Return a connection from each of the other ranks."""
    server = socket.create_server(address)
    server.settimeout(0.1)
    deadline, lines = time.monotonic() + PATIENCE_S, []
    while len(lines) < world_size - 1:
        try:
            lines.append(server.accept()[0])
        except TimeoutError:
            if is_over(deadline):
                raise TimeoutError(f"{len(lines) + 1} of {world_size} joined") from None
    return lines


def connect(address: tuple[str, int], rank: int) -> socket.socket:
    """Return a connection to rank 0, however late rank 0 starts to listen."""
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
    """Return True if it is time to give up, for this worker or because another has given up."""
    return time.monotonic() > deadline or any(word in notes() for word in ('"alone"', '"refused"'))


def meet(lines: list[socket.socket], rank: int) -> list[int]:
    """Return the ranks that have joined: rank 0 collects them and sends the list to all."""
    for line in lines:
        line.settimeout(PATIENCE_S)
    if rank != 0:
        if not (said := lines[0].makefile().readline()):
            raise ConnectionError("rank 0 closed the connection")
        return json.loads(said)
    names = sorted([0, *(int(line.makefile().readline()) for line in lines)])
    for line in lines:
        line.sendall(f"{json.dumps(names)}\n".encode())
    return names


def note(what: str, value: object) -> None:
    """Record this worker's progress for the check, in order of time."""
    if path := os.environ.get("WORKER_NOTES"):
        line = json.dumps([time.monotonic_ns(), os.getpid(), what, value])
        with open(path, "a") as file:
            file.write(line + "\n")


def notes() -> str:
    """Return the records of all workers."""
    path = os.environ.get("WORKER_NOTES")
    return Path(path).read_text() if path and os.path.exists(path) else ""


if __name__ == "__main__":
    main()
