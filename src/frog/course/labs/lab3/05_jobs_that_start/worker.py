"""Stands in for a training program in a Slurm job: meet the other ranks, and end. Do not change it.

Reads RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT. Rank 0 listens at that address and port, the
others knock there until it opens. The pretended nodes are called node1, node2 (SLURMD_NODENAME); a host's own name, and
localhost, mean on each node that node itself, as on a cluster. What happens is noted in notes/JOB.jsonl.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
PATIENCE_S = 3.0 * float(os.environ.get("SLOWNESS", "1"))  # more where the machine is slow
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
    door = Path("notes") / f"{os.environ['SLURM_JOB_ID']}-{host.replace('/', '_')}-{os.environ['MASTER_PORT']}"
    try:
        if rank == 0 and host != NODE:
            raise PermissionError(f"rank 0 is on {NODE} and cannot listen at {host}")
        names = meet(listen(door, world_size) if rank == 0 else [knock(door, rank)], rank)
    except OSError as error:
        note("alone", str(error))
        sys.exit(f"rank {rank} of {world_size} on {NODE}: {error}")
    note("met", names)
    print(f"rank {rank} of {world_size} on {NODE} met {names}", flush=True)


def listen(door: Path, world_size: int) -> list[socket.socket]:
    """A connection from each of the others. A file says at which real port they find us: nothing is taken twice."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)
    draft = door.with_name(f"{door.name}.{os.getpid()}")
    draft.write_text(str(server.getsockname()[1]))
    try:
        os.link(draft, door)
    except FileExistsError:
        raise OSError(f"address already in use: {door.name}") from None
    deadline, lines = time.monotonic() + PATIENCE_S, []
    while len(lines) < world_size - 1:
        try:
            lines.append(server.accept()[0])
        except TimeoutError:
            if is_over(deadline):
                raise TimeoutError(f"{len(lines) + 1} of {world_size} ranks came") from None
    return lines


def knock(door: Path, rank: int) -> socket.socket:
    """A connection to rank 0, however late it comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not door.exists():
        if is_over(deadline):
            raise TimeoutError(f"nobody listens at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
        time.sleep(0.02)
    line = socket.create_connection(("127.0.0.1", int(door.read_text())), timeout=PATIENCE_S)
    line.sendall(f"{rank}\n".encode())
    return line


def is_over(deadline: float) -> bool:
    """Whether it is time to give up, for this worker or because another has."""
    return time.monotonic() > deadline or '"alone"' in NOTES.read_text()


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
    NOTES.parent.mkdir(exist_ok=True)
    with open(NOTES, "a") as file:
        file.write(json.dumps([time.monotonic_ns(), os.getpid(), what, value]) + "\n")


if __name__ == "__main__":
    main()
