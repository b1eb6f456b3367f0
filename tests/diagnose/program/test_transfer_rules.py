"""Ranks that wait in `send` or `recv` for another rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from seen import at, evidence, failed, rank

from frog.core.files import write_json
from frog.diagnose.program.evidence import RankEvidence
from frog.diagnose.program.gather import gather
from frog.diagnose.program.messages import add_awaited_messages
from frog.diagnose.program.rules import diagnose_program
from frog.runs.observed import Message, Messages, Transfer

STEP = ("all_reduce", 64, 10)


def waits(
    number: int, op: str, peer: int | None, line: int, world: int = 2, tag: int = 0, **fields: Any
) -> RankEvidence:
    """Return a rank that waits for a message."""
    transfer = Transfer(op=op, peer=peer, tag=tag, size=[8], dtype="float32")  # type: ignore[arg-type]
    return rank(number, STEP, world=world, state="running", line=at(line), transfer=transfer, **fields)


def test_ranks_that_both_send_first_wait_for_each_other() -> None:
    found = diagnose_program(evidence(waits(0, "send", 1, 20), waits(1, "send", 0, 25)))
    assert (found.fault, found.rank, found.line, found.peer_line, found.certain) == (
        "message",
        0,
        "train.py:20 (main)",
        "train.py:25 (main)",
        False,
    )
    assert found.finding == (
        "ranks 0 and 1 wait for each other: rank 0 waits in send of 8 float32 to rank 1 at train.py:20 (main); "
        "rank 1 waits in send of 8 float32 to rank 0 at train.py:25 (main)"
    )


@pytest.mark.parametrize(("tag", "fault", "why"), [(0, "network", "does not arrive"), (3, "message", "tags differ")])
def test_send_and_recv_of_one_pair_differ_in_their_tag_or_do_not_arrive(tag: int, fault: str, why: str) -> None:
    found = diagnose_program(evidence(waits(0, "send", 1, 20), waits(1, "recv", 0, 25, tag=tag)))
    assert (found.fault, found.certain) == (fault, False)
    assert why in found.finding


def test_ring_in_which_all_receive_first_is_found_from_a_rank_outside_it() -> None:
    ring = [waits(number, "recv", (number + 2) % 3, 20, world=4) for number in range(3)]
    found = diagnose_program(evidence(waits(3, "recv", 2, 21, world=4), *ring))
    assert (found.fault, found.rank) == ("message", 0)
    assert found.finding.startswith("ranks 0, 1 and 2 wait for each other")


@pytest.mark.parametrize(
    ("world", "messages", "odd"),
    [(2, 0, 0), (2, 5, 0), (4, 0, 1), (4, 5, 0)],  # most ranks came to the collective: the receiver is odd
)
def test_rank_that_receives_what_another_in_a_collective_never_sent(world: int, messages: int, odd: int) -> None:
    calls = (STEP, ("barrier", 1, 30))
    others = [rank(n, *calls, world=world, pending=1, state="running", line=at(30)) for n in range(world) if n != 1]
    found = diagnose_program(evidence(waits(1, "recv", 0, 20, world, num_messages=messages), *others))
    assert (found.fault, found.rank, found.certain) == ("message", odd, False)
    assert {found.line, found.peer_line} == {"train.py:20 (main)", "train.py:30 (main)"}
    assert "but rank 0 waits in barrier" in found.finding


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"state": "ended"}, "ended"),
        ({"state": "running", "stopped": True}, "stop"),
        ({"state": "running", "cpu_busy": True}, "busy"),
        ({"state": "running"}, "blocked"),
    ],
)
def test_rank_at_the_end_of_a_chain_of_messages_is_named(fields: dict[str, Any], fault: str) -> None:
    """Rank 3 has ended, and no rank waits for it: it is not the cause."""
    chain = [waits(1, "recv", 0, 20, world=4), waits(2, "recv", 1, 21, world=4)]
    found = diagnose_program(evidence(rank(0, STEP, world=4, line=at(7), **fields), *chain, rank(3, state="ended")))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        fault,
        0,
        "train.py:7 (main)",
        "train.py:20 (main)",
    )


def test_rank_that_waits_for_a_message_is_not_blamed_for_a_collective() -> None:
    calls = (STEP, ("barrier", 1, 30))
    inside = [rank(n, *calls, world=4, pending=1, state="running", line=at(30)) for n in (0, 3)]
    late = rank(2, STEP, world=4, state="running", line=at(7))
    found = diagnose_program(evidence(waits(1, "recv", 0, 20, world=4), late, *inside))
    assert (found.fault, found.rank) == ("blocked", 2)


def test_time_out_in_a_message_tells_its_peer() -> None:
    slow = failed("RuntimeError", "Timed out waiting 10000ms for send operation to complete", 20)
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 25)
    ranks = [waits(0, "send", 1, 20, error=slow), waits(1, "send", 0, 25, error=lost)]
    for one in ranks:
        one.state = "failed"
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.line, found.peer_line) == ("message", "train.py:20 (main)", "train.py:25 (main)")


@pytest.mark.parametrize(("state", "fault"), [("ended", "ended"), ("running", "kill")])
def test_rank_that_ended_before_it_sent_is_told_from_one_that_was_killed(state: str, fault: str) -> None:
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 25)
    found = diagnose_program(evidence(rank(0, STEP, state=state), waits(1, "recv", 0, 25, error=lost), hung=False))
    assert (found.fault, found.rank) == (fault, 0)


@pytest.mark.parametrize("peer", [None, 5])
def test_message_from_any_rank_or_one_without_evidence_names_none(peer: int | None) -> None:
    assert diagnose_program(evidence(waits(0, "recv", peer, 20), waits(1, "recv", peer, 20))).fault == "unknown"


def begun(*messages: tuple[str, int, int], whole: bool = True, done: int = 0) -> Messages:
    """Return messages: operation, peer, and line; each has another tag, and the first `done` were waited for."""
    same = {"group": "0", "number": 1, "size": [8], "dtype": "float32"}
    last = [
        msgspec.convert({**same, "op": op, "peer": peer, "tag": tag, "line": at(line), "done": tag < done}, Message)
        for tag, (op, peer, line) in enumerate(messages)
    ]
    counts = [(one.op, one.peer, one.tag, one.group, one.number) for one in last]
    return Messages(whole=whole, counts=counts, last=last)


PAIR = (("isend", 1, 11), ("irecv", 1, 12))


@pytest.mark.parametrize(
    ("others", "op"),
    [
        (begun(("irecv", 0, 13)), "irecv"),  # the other rank receives, but does not send
        (begun(), "isend"),
        (begun(("irecv", 0, 13), ("isend", 0, 14)), "isend"),  # it does both: the first that is not complete
        (begun(("irecv", 0, 13), whole=False), "isend"),
    ],
)
def test_rank_waits_for_the_first_message_that_the_other_has_not_begun(others: Messages, op: str) -> None:
    one = rank(0, STEP, state="running", line=at(15), messages=begun(*PAIR), in_message=True)
    seen = evidence(one, rank(1, STEP, state="running", line=at(7), messages=others))
    add_awaited_messages(seen)
    assert one.transfer is not None
    assert one.transfer.op == op
    sends, receives = ("isend of 8 float32 to rank 1", 11), ("irecv of 8 float32 from rank 1 with tag 1", 12)
    what, line = sends if op == "isend" else receives
    assert diagnose_program(seen).finding.startswith(
        f"rank 0 waits in {what} at train.py:15 (main) (begun at train.py:{line} (main)), but rank 1 was at train.py:7"
    )


def test_error_of_a_message_tells_the_one_that_the_other_never_began() -> None:
    """After an error, every message counts as done."""
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 15)
    one = rank(0, STEP, state="failed", error=lost, messages=begun(*PAIR, done=2))
    seen = evidence(one, rank(1, STEP, state="ended", messages=begun(("irecv", 0, 13))), hung=False)
    add_awaited_messages(seen)
    found = diagnose_program(seen)
    assert (found.fault, found.rank, found.certain) == ("ended", 1, True)
    assert "rank 0 waits in irecv" in found.finding


@pytest.mark.parametrize("fields", [{"in_message": False}, {"error": failed("ValueError", "bad", 3)}])
def test_rank_that_does_not_wait_for_its_messages_waits_for_none(fields: dict[str, Any]) -> None:
    one = rank(0, STEP, state="running", line=at(15), messages=begun(*PAIR), **fields)
    add_awaited_messages(evidence(one, rank(1, STEP, state="running")))
    assert one.transfer is None


@pytest.mark.parametrize(("backend", "counts"), [("gloo", (2, 1, 3)), ("nccl", (5, 4, 0))])
def test_messages_are_not_counted_as_collectives(tmp_path: Path, backend: str, counts: tuple[int, int, int]) -> None:
    """gloo counts both together: three messages and two collectives, of which the last waits."""
    call = {"group": "0", "op": "all_reduce", "backend": backend}
    collectives = {
        **dict.fromkeys(("rank", "pid", "unix_ns"), 0),
        "format": 1,
        "frames": False,
        "groups": {"0": {"ranks": [0, 1]}},
        "status": [{"group": "0", "enqueued": 5, "completed": 4}],
        "entries": [{**call, "seq": 1, "done": True}, {**call, "seq": 2, "done": False}],
    }
    write_json(tmp_path / "observed/attempt_0/rank_0/collectives.json", collectives)
    found = gather(tmp_path).ranks[0]
    assert (*found.enqueued.values(), *found.completed.values(), found.num_messages) == counts
