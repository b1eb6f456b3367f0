"""How nodes find each other (rendezvous), with plain sockets: node 0 listens at a known address, the others connect.

fake_multi_node_launcher.py uses it. torchrun then uses the same address with its own protocol. By itself, torchrun
would wait silently, and would not detect two nodes with the same number.
"""

import contextlib
import errno
import json
import socket
import time

from frog.core.errors import LaunchError, UsageError


def rendezvous(node, timeout_s, say):
    """Wait at MASTER_ADDR:MASTER_PORT until all nodes have connected. Node 0 listens; the others send their settings.

    Raises:  LaunchError if they do not connect in time, or do not agree on the world.
    """
    deadline = time.monotonic() + timeout_s
    card = {"nnodes": node.nnodes, "nproc_per_node": node.nproc_per_node, "node_rank": node.node_rank}
    if node.nnodes > 1 and node.node_rank == 0:
        say(f"waiting for {node.nnodes - 1} more at {node.rendezvous_point}, at most {timeout_s} s")
        accept_nodes(node, card, deadline, say)
    elif node.nnodes > 1:
        say(f"waiting for node 0 at {node.rendezvous_point}, at most {timeout_s} s")
        connect_to_node_0(node, card, deadline)
    say(f"all {node.nnodes} nodes are connected")


def accept_nodes(node, card, deadline, say):
    """On node 0: accept one node of each number, refuse nodes of another world, then confirm to all nodes."""
    accepted, reply = {}, {"refused": "node 0 was stopped"}
    try:
        with listen(node) as server:
            while len(accepted) < node.nnodes - 1:
                server.settimeout(max(0.001, deadline - time.monotonic()))
                guest, address = server.accept()
                if (theirs := read_line(guest, 5)) is None:
                    continue  # another program connected to this port
                if problem := contradiction(card, theirs, accepted):
                    say(f"refused a node: {problem}")
                    send_line(guest, {"refused": problem})
                    continue
                accepted[theirs["node_rank"]] = guest
                say(f"node{theirs['node_rank']} connected from {address[0]}")
        reply = {"complete": True}  # sent after the socket is closed, so that the port is free for torchrun
    except TimeoutError:
        missing = " and ".join(f"NODE_RANK={number}" for number in range(1, node.nnodes) if number not in accepted)
        reply = {"refused": f"node 0 gave up waiting for {missing}"}
        what = f"node 0 waited at {node.rendezvous_point}, but {missing} did not connect in time"
        raise LaunchError(what, "start every node, or wait longer: --timeout-s") from None
    finally:
        for guest in accepted.values():
            send_line(guest, reply)


def connect_to_node_0(node, card, deadline):
    """On every other node: connect to node 0, send the settings, wait until the world is complete."""
    while (connection := connect(node)) is None:
        if time.monotonic() > deadline:
            what = f"node {node.node_rank} could not reach node 0 at {node.rendezvous_point} in time"
            raise LaunchError(what, "start NODE_RANK=0, with the same MASTER_ADDR and MASTER_PORT")
        time.sleep(0.2)
    send_line(connection, card)
    reply = read_line(connection, max(1, deadline - time.monotonic()) + 5)
    if reply is None:
        raise LaunchError(f"node 0 left {node.rendezvous_point} before all nodes connected", "start all nodes again")
    if "refused" in reply:
        raise LaunchError(
            f"node {node.node_rank} was refused: {reply['refused']}", "start all nodes with the same settings"
        )


def contradiction(mine, theirs, accepted):
    """Return the reason why a node cannot be part of this world, or None."""
    for name in ("nnodes", "nproc_per_node"):
        if mine[name] != theirs.get(name):
            return f"{name} is {theirs.get(name)} on that node, but {mine[name]} on node 0"
    if theirs.get("node_rank") in accepted:
        return f"NODE_RANK={theirs['node_rank']} is already in use: every node needs a different number"
    return None if theirs.get("node_rank") in range(1, mine["nnodes"]) else "its NODE_RANK is not in this world"


def listen(node):
    try:
        return socket.create_server((node.master_addr, node.master_port), backlog=node.nnodes)
    except OSError as error:
        hint = "stop the other node 0, or choose another MASTER_PORT; MASTER_ADDR must be an address of node 0"
        raise LaunchError(f"node 0 cannot listen at {node.rendezvous_point}: {error.strerror or error}", hint) from None


def connect(node):
    """Connect to node 0; return None if it is not listening yet."""
    for source in ((node.address, 0), None):
        try:
            return socket.create_connection((node.master_addr, node.master_port), 5, source)
        except socket.gaierror as error:
            raise UsageError(f"MASTER_ADDR={node.master_addr}: {error.strerror}", "127.0.0.1 is this machine") from None
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EINVAL):
                return None
    return None  # neither from this node's address nor from any other


def send_line(connection, value):
    with contextlib.suppress(OSError):  # the peer has left; the node that waits for it reports that
        connection.sendall(json.dumps(value).encode() + b"\n")


def read_line(connection, timeout_s):
    """Read one JSON object; return None for any other data, or none in time."""
    connection.settimeout(timeout_s)
    try:
        value = json.loads(connection.makefile().readline(10_000))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
