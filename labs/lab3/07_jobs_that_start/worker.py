"""Simulates a training program in a Slurm job: joins the other ranks, and ends. Do not change it.

Reads RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT. Rank 0 listens at that address and port; the
others try to connect until it does. The simulated nodes are called node1, node2 (SLURMD_NODENAME); a host's own name
and localhost refer, on each node, to that node itself, as on a cluster. Events are written to notes/JOB.jsonl.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
PATIENCE_S = 3.0 * float(os.environ.get("SLOWNESS", "1"))  # more on a slow machine
OWN = ("localhost", "127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", socket.gethostname())
NODE = os.environ["SLURMD_NODENAME"]
NOTES = Path("notes") / f"{os.environ['SLURM_JOB_ID']}.jsonl"


def main() -> None:
    variables = {name: os.environ.get(name) for name in NAMES}
    note("started", {**variables, "node": NODE})
    if missing := [name for name, value in variables.items() if value is None]:
        sys.exit(f"worker: {', '.join(missing)} not in the environment")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = NODE if os.environ["MASTER_ADDR"] in OWN else os.environ["MASTER_ADDR"]
    endpoint = Path("notes") / f"{os.environ['SLURM_JOB_ID']}-{host.replace('/', '_')}-{os.environ['MASTER_PORT']}"
    try:
        if rank == 0 and host != NODE:
            raise PermissionError(f"rank 0 is on {NODE} and cannot listen at {host}")
        names = meet(listen(endpoint, world_size) if rank == 0 else [connect(endpoint, rank)], rank)
    except OSError as error:
        note("alone", str(error))
        sys.exit(f"rank {rank} of {world_size} on {NODE}: {error}")
    note("met", names)
    print(f"rank {rank} of {world_size} on {NODE} met {names}", flush=True)


def listen(endpoint: Path, world_size: int) -> list[socket.socket]:
    """Return a connection from each of the others. The file `endpoint` contains the real port, and exists only once."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)
    draft = endpoint.with_name(f"{endpoint.name}.{os.getpid()}")
    draft.write_text(str(server.getsockname()[1]))
    try:
        os.link(draft, endpoint)
    except FileExistsError:
        raise OSError(f"address already in use: {endpoint.name}") from None
    deadline, lines = time.monotonic() + PATIENCE_S, []
    while len(lines) < world_size - 1:
        try:
            lines.append(server.accept()[0])
        except TimeoutError:
            if is_over(deadline):
                raise TimeoutError(f"{len(lines) + 1} of {world_size} ranks joined") from None
    return lines


def connect(endpoint: Path, rank: int) -> socket.socket:
    """Return a connection to rank 0, however late rank 0 starts to listen."""
    deadline = time.monotonic() + PATIENCE_S
    while not endpoint.exists():
        if is_over(deadline):
            raise TimeoutError(f"nothing listens at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
        time.sleep(0.02)
    line = socket.create_connection(("127.0.0.1", int(endpoint.read_text())), timeout=PATIENCE_S)
    line.sendall(f"{rank}\n".encode())
    return line


def is_over(deadline: float) -> bool:
    """Return True if it is time to give up, for this worker or because another has given up."""
    return time.monotonic() > deadline or '"alone"' in NOTES.read_text()


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
    NOTES.parent.mkdir(exist_ok=True)
    with open(NOTES, "a") as file:
        file.write(json.dumps([time.monotonic_ns(), os.getpid(), what, value]) + "\n")


if __name__ == "__main__":
    main()
