"""How nodes find each other ("rendezvous"), in plain sockets: node 0 listens at a known place, the others knock there.

fake_multi_node_launcher.py uses it. torchrun meets at the same place right after, by a protocol of its own; alone, it
would wait in silence, and would not notice that two nodes call themselves by the same number.
"""

import contextlib
import errno
import json
import socket
import time

from frog.core.errors import LaunchError, UsageError


def rendezvous(node, timeout_s, say):
    """Wait at MASTER_ADDR:MASTER_PORT until all nodes are there. Node 0 listens; the others bring it a card.

    Raises:  LaunchError if they do not come in time, or do not agree on the world.
    """
    deadline = time.monotonic() + timeout_s
    card = {"nnodes": node.nnodes, "nproc_per_node": node.nproc_per_node, "node_rank": node.node_rank}
    if node.nnodes > 1 and node.node_rank == 0:
        say(f"waiting for {node.nnodes - 1} more at {node.rendezvous_point}, at most {timeout_s} s")
        collect_cards(node, card, deadline, say)
    elif node.nnodes > 1:
        say(f"waiting for node 0 at {node.rendezvous_point}, at most {timeout_s} s")
        bring_card(node, card, deadline)
    say(f"all {node.nnodes} nodes are here")


def collect_cards(node, card, deadline, say):
    """Node 0: let in one node of each number, refuse those of another world, then tell all that it is complete."""
    guests, reply = {}, {"refused": "node 0 was stopped"}
    try:
        with listen(node) as door:
            while len(guests) < node.nnodes - 1:
                door.settimeout(max(0.001, deadline - time.monotonic()))
                guest, address = door.accept()
                if (theirs := read_line(guest, 5)) is None:
                    continue  # somebody else who knocked at this port
                if problem := contradiction(card, theirs, guests):
                    say(f"refused a node: {problem}")
                    send_line(guest, {"refused": problem})
                    continue
                guests[theirs["node_rank"]] = guest
                say(f"node{theirs['node_rank']} has come, from {address[0]}")
        reply = {"complete": True}  # sent after the door is shut, so that torchrun finds the port free
    except TimeoutError:
        missing = " and ".join(f"NODE_RANK={number}" for number in range(1, node.nnodes) if number not in guests)
        reply = {"refused": f"node 0 gave up waiting for {missing}"}
        what = f"node 0 waited at {node.rendezvous_point}, but {missing} did not come in time"
        raise LaunchError(what, "start every node, or wait longer: --timeout-s") from None
    finally:
        for guest in guests.values():
            send_line(guest, reply)


def bring_card(node, card, deadline):
    """Every other node: knock until node 0 opens, bring the card, wait until the world is complete."""
    while (door := knock(node)) is None:
        if time.monotonic() > deadline:
            what = f"node {node.node_rank} knocked at {node.rendezvous_point}, but node 0 did not come in time"
            raise LaunchError(what, "start NODE_RANK=0, with the same MASTER_ADDR and MASTER_PORT")
        time.sleep(0.2)
    send_line(door, card)
    reply = read_line(door, max(1, deadline - time.monotonic()) + 5)
    if reply is None:
        raise LaunchError(f"node 0 left {node.rendezvous_point} before all nodes were there", "start all nodes again")
    if "refused" in reply:
        raise LaunchError(
            f"node {node.node_rank} was refused: {reply['refused']}", "start all nodes, with equal numbers"
        )


def contradiction(mine, theirs, guests):
    """Why a node cannot be part of this world, or None."""
    for name in ("nnodes", "nproc_per_node"):
        if mine[name] != theirs.get(name):
            return f"{name} is {theirs.get(name)} there and {mine[name]} at node 0"
    if theirs.get("node_rank") in guests:
        return f"NODE_RANK={theirs['node_rank']} is here already: every node needs a number of its own"
    return None if theirs.get("node_rank") in range(1, mine["nnodes"]) else "its NODE_RANK is not one of this world"


def listen(node):
    try:
        return socket.create_server((node.master_addr, node.master_port), backlog=node.nnodes)
    except OSError as error:
        hint = "is another node 0 there already? Else choose another MASTER_PORT; MASTER_ADDR is node 0's own address"
        raise LaunchError(f"node 0 cannot listen at {node.rendezvous_point}: {error.strerror or error}", hint) from None


def knock(node):
    """A connection to node 0, or None while nobody listens there."""
    for source in ((node.address, 0), None):
        try:
            return socket.create_connection((node.master_addr, node.master_port), 5, source)
        except socket.gaierror as error:
            raise UsageError(f"MASTER_ADDR={node.master_addr}: {error.strerror}", "127.0.0.1 is this machine") from None
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EINVAL):
                return None
    return None  # neither from an address of its own nor from any


def send_line(connection, value):
    with contextlib.suppress(OSError):  # it has left; whoever waits for it will say so
        connection.sendall(json.dumps(value).encode() + b"\n")


def read_line(connection, timeout_s):
    """One JSON object, or None if something else came, or nothing."""
    connection.settimeout(timeout_s)
    try:
        value = json.loads(connection.makefile().readline(10_000))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
