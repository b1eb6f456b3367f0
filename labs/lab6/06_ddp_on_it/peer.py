"""Your library as a peer of `frog collectives check --peer "python peer.py"`: docs/measure/collectives.md."""

import os
import socket
import sys
from pathlib import Path

import numpy as np
from library import Library, PeerLost

TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "<i8"}


def main() -> int:
    rank, timeout_s = int(os.environ["PEER_RANK"]), float(os.environ["PEER_TIMEOUT_S"])
    pairs = [address.rsplit(":", 1) for address in os.environ["PEER_ADDRESSES"].split(",")]
    addresses = [(host, int(port)) for host, port in pairs]
    listener = socket.create_server(addresses[rank])
    try:
        library = Library(rank, listener, addresses, timeout_s)
        for line in Path(os.environ["PEER_CALLS"]).read_text().splitlines():
            operation, root, source, target = line.split("\t")
            if not run(library, operation, int(root), Path(source), Path(target)):
                return 3
        library.close()
    except PeerLost as lost:
        print(f"lost {lost.rank}", flush=True)
        return 1
    return 0


def run(library: Library, operation: str, root: int, source: Path, target: Path) -> bool:
    """Run one call; return False if the library does not have the operation."""
    data = source.read_bytes()
    values = np.frombuffer(data[24:], TYPES[int.from_bytes(data[8:16], "little")]).copy()
    if operation == "all_reduce":
        library.all_reduce(values)
    elif operation == "broadcast":
        library.broadcast(values, root)
    else:
        return False
    part = target.with_suffix(".part")
    part.write_bytes(data[:24] + values.tobytes())
    part.rename(target)
    return True


if __name__ == "__main__":
    sys.exit(main())
