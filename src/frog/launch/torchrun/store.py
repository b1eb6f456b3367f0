"""The rendezvous of a world's nodes: torch's TCP store in a process of its own.

    python -m frog.launch.torchrun.store DESCRIPTOR        use this listening socket, whose port is known
        python -m frog.launch.torchrun.store 10.77.0.1:29400   listen at this address

It serves until its parent ends, so no node has to outlive the others.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from torch._C._distributed_c10d import TCPStore

from frog.core.processes import leave_with_parent


def main(where: str) -> None:
    """Serve until the parent ends."""
    leave_with_parent()
    host, colon, port = where.rpartition(":")
    if colon:
        store = TCPStore(host, int(port), is_master=True, wait_for_workers=False, multi_tenant=True)
    else:
        with socket.socket(fileno=os.dup(int(where))) as listening:
            host, number = listening.getsockname()[:2]
        store = TCPStore(
            host, number, is_master=True, wait_for_workers=False, master_listen_fd=int(where), multi_tenant=True
        )
    while store is not None:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
