"""Ranks that wait in `send` or `recv` for another rank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from seen import at, changed, evidence, failed, rank

from frog.core.files import write_json
from frog.core.runs.observed import CodeLine, Message, Messages, Transfer
from frog.observe.diagnose.program.evidence import RankEvidence
from frog.observe.diagnose.program.gather import gather
from frog.observe.diagnose.program.peer_errors import add_awaited_messages, mark_failed_calls
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.diagnose.program.transfer_rules import deviation

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
    assert found.finding.endswith(": all of them receive first, so that none can begin: at least one must send first")


@pytest.mark.parametrize("flipped", [False, True])
def test_rank_that_meets_no_partner_in_a_ring_whose_others_do_is_odd(flipped: bool) -> None:
    """Rank 0 sends to 1 and then to 2, which receives from it; rank 1 receives from rank 2 instead."""
    send, receive = ("recv", "send") if flipped else ("send", "recv")
    ring = [waits(0, send, 1, 20, world=3), waits(1, receive, 2, 21, world=3), waits(2, receive, 0, 22, world=3)]
    found = diagnose_program(evidence(*ring))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        "message",
        1,
        "train.py:21 (main)",
        "train.py:20 (main)",
    )
    does = "which sends to rank 2 instead" if flipped else "which receives from rank 2 instead"
    assert does in found.finding
    assert "the order or the plan of rank 1 is probably another one" in found.finding


@pytest.mark.parametrize("blocking", [False, True])
def test_message_in_two_groups_names_both(blocking: bool) -> None:
    """A blocking call is recorded with its group among the messages that the rank has begun."""
    ranks = []
    for number, op, group in ((0, "isend", "1"), (1, "irecv", "2")):
        fields = {"op": op, "peer": 1 - number, "number": 1, "group": group, "size": [8], "dtype": "float32"}
        message = msgspec.convert(fields, Message)
        one = waits(number, op.removeprefix("i"), 1 - number, 20 + number, messages=Messages(last=[message]))
        one.groups = dict.fromkeys(("0", "1", "2"), (0, 1))
        one.transfer = one.transfer if blocking else message
        ranks.append(one)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("message", False)
    assert found.finding.endswith(
        ": their groups differ: rank 0 sends in all ranks (group 1), and rank 1 receives in all ranks (group 2)"
    )


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


SEND, RECEIVE = ("isend", 1, 0, 11), ("irecv", 1, 4, 12)


def recorded(*messages: tuple[str, int, int, int], size: int = 8) -> Messages:
    """Return messages, oldest first: operation, peer, tag and line. All but the last are done."""
    numbers: Counter[tuple[str, int, int]] = Counter()
    last = []
    for op, peer, tag, line in messages:
        numbers[op, peer, tag] += 1
        fields = {"op": op, "peer": peer, "tag": tag, "number": numbers[op, peer, tag], "line": at(line)}
        same = {"group": "0", "size": [size], "dtype": "float32", "done": len(last) < len(messages) - 1}
        last.append(msgspec.convert({**fields, **same}, Message, from_attributes=True))
    return Messages(whole=True, counts=[(*channel, "0", number) for channel, number in numbers.items()], last=last)


LOOP = (("irecv", 2, 0, 10), ("isend", 0, 3, 11), ("isend", 0, 4, 12))
IN_ORDER, SKIPS = recorded(*LOOP * 4), recorded(*LOOP * 3, *LOOP[::2])


@pytest.mark.parametrize(("ordered", "odd"), [(SKIPS, 0), (IN_ORDER, 1)])
def test_rank_that_left_the_order_of_its_messages_is_odd(ordered: Messages, odd: int) -> None:
    """If both did, it may be any of them."""
    one = waits(0, "recv", 1, 25, tag=3, world=3, messages=ordered)
    other = waits(1, "send", 0, 12, tag=4, world=3, messages=SKIPS)
    found = diagnose_program(evidence(one, other, rank(2, STEP, state="running")))
    assert (found.fault, found.rank, found.certain) == ("message", odd, False)
    assert "their tags differ" in found.finding
    text = (
        "; rank 1 left its order: after a message from rank 2, it began one to rank 0 with tag 4 at train.py:12 (main)"
        ", but each time before, one to rank 0 with tag 3 at train.py:11 (main)"
    )
    assert found.finding.endswith(text) is (odd == 1)
    assert ("find out why rank 1 left its order" in found.advice) is (odd == 1)
    assert ("use the same tag on both ranks" in found.advice) is (odd == 0)


def test_evidence_has_all_ranks_of_a_circle_and_its_odd_one_first() -> None:
    """Rank 2 received from rank 0, not from rank 1 as before."""
    loop = (("irecv", 1, 0, 10), ("isend", 1, 0, 11))
    wrong = recorded(*loop * 3, ("irecv", 0, 0, 10))
    ring = [waits(0, "send", 1, 20, world=3), waits(1, "send", 2, 21, world=3)]
    found = diagnose_program(evidence(*ring, waits(2, "recv", 0, 10, world=3, messages=wrong)))
    assert (found.rank, found.line, found.peer_line) == (2, "train.py:10 (main)", "train.py:21 (main)")
    assert found.finding.endswith(
        "it began one from rank 0 at train.py:10 (main), but each time before, one from rank 1"
    )
    assert [line.split("rank ")[1][0] for line in found.evidence] == ["2", "1", "0"]


def test_message_out_of_order_that_others_have_received_long_ago_is_no_cause() -> None:
    """Rank 1 skipped a message 36 messages ago."""
    messages = recorded(*LOOP * 3, *LOOP[::2], *LOOP * 12)
    one = waits(0, "recv", 1, 25, world=3)
    found = diagnose_program(evidence(one, waits(1, "recv", 0, 10, world=3, messages=messages), rank(2, STEP)))
    assert (found.rank, "left its order" in found.finding) == (0, False)


@pytest.mark.parametrize(
    ("sender", "receiver", "odd", "why"),
    [
        (recorded(*LOOP * 4), None, 1, "rank 1 probably skipped that collective"),
        (recorded(*LOOP * 3, *LOOP[:2]), None, 0, "called at train.py:30 (main)"),  # it never sent the last one
        (recorded(*LOOP * 4), recorded(*LOOP * 3, *LOOP[:2], *LOOP[:1]), 1, "one to rank 0 with tag 4 at train.py:12"),
        (SKIPS, None, 0, "rank 0 left its order"),
    ],
)
def test_rank_in_a_collective_is_not_odd_if_it_has_sent_all_messages(
    sender: Messages, receiver: Messages | None, odd: int, why: str
) -> None:
    calls = (("all_reduce", 4, 30),) * 4
    inside = [rank(n, *calls, world=4, pending=1, state="running", line=at(30), messages=sender) for n in (0, 2, 3)]
    late = waits(1, "recv", 0, 10, world=4, num_messages=9, messages=receiver)
    late.calls = inside[0].calls[:3]
    found = diagnose_program(evidence(late, *inside))
    assert (found.fault, found.rank, found.certain) == ("message", odd, False)
    assert why in found.finding


def test_error_in_a_line_without_a_collective_is_one_of_a_message() -> None:
    """The rank that received it crashed, so its record is lost."""
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 15)
    one = rank(0, STEP, state="failed", error=lost, messages=recorded(SEND, RECEIVE, SEND))
    crashed = RankEvidence(1, crash="Fatal Python error: Aborted", exit_code=-6)
    seen = evidence(one, crashed, hung=False)
    add_awaited_messages(seen)
    assert one.transfer is not None
    assert (one.transfer.op, one.transfer.peer) == ("isend", 1)
    one.transfer = None
    mark_failed_calls(seen)
    assert one.calls[0].done
    one.messages = None
    mark_failed_calls(seen)
    assert not one.calls[0].done


LONGER = ("op.preamble.length <= op.nbytes. 36 vs 32. Received data size doesn't match expected size", "train.log")
IN_RECV = [CodeLine(file="torch/distributed/distributed_c10d.py", line=2, function="recv"), at(25)]
IN_REDUCE = [CodeLine(file="torch/distributed/distributed_c10d.py", line=2, function="all_reduce"), at(25)]


@pytest.mark.parametrize(
    ("stack", "sizes", "odd", "text"),
    [
        (IN_RECV, (8, 9), 0, "rank 0 sent it one of 9 float32 at train.py:11 (main), but of 8 before"),
        ([at(25)], (8, 9), 0, "rank 0 sent it one of 9 float32 at train.py:11 (main), but of 8 before"),
        (IN_RECV, (9, 9), 1, "rank 0 sent it one of 9 float32 at train.py:11 (main)"),
        (IN_RECV, (9,), 1, "rank 0 sent it one of 9 float32 at train.py:11 (main)"),
        (IN_REDUCE, (8, 9), 1, "another size than its collective at train.py:25 (main)"),
    ],
)
def test_message_longer_than_its_receiver_expects_names_both_lines(
    stack: list[CodeLine], sizes: tuple[int, ...], odd: int, text: str
) -> None:
    """A rank that still waits for the message is its sender, although another one had sent one, too."""
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 15)
    messages = recorded(*[SEND] * len(sizes))
    messages = Messages(
        last=[msgspec.structs.replace(one, size=[size]) for one, size in zip(messages.last, sizes, strict=True)]
    )
    sender = waits(0, "isend", 1, 15, world=3, error=lost, messages=messages)
    other = rank(2, STEP, world=3, state="failed", error=lost, messages=recorded(("isend", 1, 7, 40)))
    crashed = RankEvidence(1, line=at(25), exit_code=-6, state="running", mismatch=LONGER, stack=stack)
    crashed.sources = ["train.log"]
    found = diagnose_program(evidence(other, crashed, sender, hung=False))
    assert (found.fault, found.rank, found.certain) == ("shape", odd, False)
    assert text in found.finding
    if stack is not IN_REDUCE:
        lines = ["train.py:11 (main)", "train.py:25 (main)"]
        assert [found.line, found.peer_line] == (lines if odd == 0 else lines[::-1])


def test_rank_that_skipped_messages_sent_a_later_one_in_place_of_a_shorter() -> None:
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 12)
    sender = waits(1, "isend", 0, 12, tag=4, world=2, error=lost, messages=SKIPS)
    crashed = RankEvidence(0, line=at(25), exit_code=-6, state="running", mismatch=LONGER, stack=IN_RECV)
    found = diagnose_program(evidence(crashed, sender, hung=False))
    assert (found.fault, found.rank, found.line, found.peer_line, found.certain) == (
        "message",
        1,
        "train.py:12 (main)",
        "train.py:25 (main)",
        False,
    )
    assert "at train.py:12 (main); rank 1 left its order: after a message from rank 2" in found.finding
    assert found.advice.startswith("find out why rank 1 left its order")


@pytest.mark.parametrize(
    ("messages", "state", "fault", "odd", "why"),
    [
        (SKIPS, "running", "message", 2, "; rank 2 left its order"),
        (IN_ORDER, "running", "message", 0, ", and no rank sends one"),
        (IN_ORDER, "ended", "ended", 2, "; rank 2 ended without an error"),
    ],
)
def test_message_from_any_rank_that_none_sends_names_the_rank_that_left_its_order(
    messages: Messages, state: str, fault: str, odd: int, why: str
) -> None:
    server, client = waits(0, "recv", None, 20, world=3), waits(1, "recv", 0, 25, world=3)
    other = rank(2, STEP, world=3, state=state, line=at(12), messages=messages)
    found = diagnose_program(evidence(client, server, other))
    assert (found.fault, found.rank, found.certain) == (fault, odd, False)
    assert "but rank 0 waits in recv of 8 float32 from any rank at train.py:20 (main), and no" in found.finding
    assert why in found.finding


def test_rank_that_receives_from_any_rank_has_no_order() -> None:
    """Its next message depends on which rank came first."""
    any_rank = [msgspec.structs.replace(one, peer=None if one.op == "irecv" else one.peer) for one in SKIPS.last]
    assert deviation(SKIPS.last) is not None
    assert deviation(any_rank) is None


def test_end_of_an_inner_loop_is_part_of_the_order() -> None:
    step = (*(RECEIVE, SEND) * 3, ("isend", 2, 0, 13))
    assert deviation(recorded(*step * 2).last) is None
    left = deviation(recorded(*step * 2, RECEIVE, ("isend", 2, 0, 13)).last)
    assert left is not None
    assert (left.after.op, left.usual.peer, left.message.peer) == ("irecv", 1, 2)


@pytest.mark.parametrize(("others", "odd"), [((2, 3, 3), 1), ((3, 3, 3), 0), ((2, 2, 3), 0)])
def test_rank_that_sent_the_fewest_messages_to_one_that_waits_for_any_is_odd(others: tuple[int, ...], odd: int) -> None:
    server, client = waits(0, "recv", None, 20, world=5), waits(4, "recv", 0, 25, world=5)
    client.messages = recorded(*[("isend", 0, 0, 11)] * 9)
    sent = {
        number: rank(number, STEP, state="running", line=at(12), messages=recorded(*[("isend", 0, 0, 11)] * count))
        for number, count in enumerate(others, 1)
    }
    found = diagnose_program(evidence(client, server, *sent.values()))
    assert (found.fault, found.rank, found.certain) == ("message", odd, False)
    assert ("rank 1 has sent it fewer than any other rank" in found.finding) is (odd == 1)


SCHEDULE = """\
def schedule(stage):
    if stage == 0:
        dist.send(hidden, dst=1)
    else:
        dist.recv(hidden, src=0)
def evaluate(stage):
    schedule(stage)
    if collects and stage == last:
        schedule(stage)
evaluate(stage)
dist.barrier()
"""


@pytest.mark.parametrize("sends", [True, False], ids=["a schedule", "a receiver"])
def test_branch_by_which_one_rank_runs_a_schedule_of_messages_alone_is_named(tmp_path: Path, sends: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCHEDULE if sends else SCHEDULE.replace("dist.send", "print"))

    def here(line: int, function: str = "<module>") -> CodeLine:
        return CodeLine(file=str(script), line=line, function=function)

    receives = waits(1, "recv", 0, 5, stack=[here(5, "schedule"), here(9, "evaluate"), here(10)])
    receives.line = receives.stack[0]
    other = rank(0, STEP, ("barrier", 1, 11), pending=1, state="running", line=here(11))
    other.calls[-1] = changed(other.calls[-1], line=here(11), callers=(here(11),))
    found = diagnose_program(evidence(receives, other))
    assert (found.fault, found.line, found.certain) == ("message", "train.py:11", False)
    branch = ": rank 1 passed `if collects and stage == last:` in line 8, rank 0 did not"
    assert found.finding.endswith(branch) == sends


@pytest.mark.parametrize(("earlier", "peers"), [(0, "wrong peers"), (1, "")])
def test_first_messages_without_another_side_have_wrong_peers(earlier: int, peers: str) -> None:
    """Ranks 2 and 3 use their index in a pipeline as a rank; ranks 0 and 1 wait for them in a collective."""
    send = Messages(whole=True, counts=[("isend", 1, 0, "0", 1 + earlier)])
    receive = Messages(whole=True, counts=[("irecv", 0, 0, "0", 1 + earlier)])
    ranks = [rank(n, STEP, ("all_reduce", 8, 30), world=4, pending=1, state="running") for n in (0, 1)]
    ranks += [waits(2, "send", 1, 20, world=4, messages=send), waits(3, "recv", 0, 25, world=4, messages=receive)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("message", False)
    assert peers in found.finding
    if peers:
        assert (found.rank, found.line, found.peer_line) == (2, "train.py:20 (main)", "train.py:25 (main)")
        assert "rank 2 and rank 3 probably mean each other" in found.finding


AHEAD = """\
def forward(x):
    dist.isend(x, 1)
def schedule(warmup):
    for number in range(warmup):
        forward(x)
    works[-1].wait()
"""


@pytest.mark.parametrize(("sent", "odd"), [(3, 0), (2, 1)])
def test_rank_that_sends_more_messages_than_it_takes_back_is_odd(tmp_path: Path, sent: int, odd: int) -> None:
    """The loop that begins them lies around the calls of the function that sends."""
    script = tmp_path / "train.py"
    script.write_text(AHEAD)
    message = {"op": "isend", "peer": 1, "number": 3, "group": "0", "size": [8], "dtype": "float32"}
    line = CodeLine(file=str(script), line=2, function="forward")
    own = Messages(whole=True, counts=[("isend", 1, 0, "0", sent), ("irecv", 1, 0, "0", 2)])
    others = Messages(whole=True, counts=[("irecv", 0, 0, "0", 2), ("isend", 0, 0, "0", 2)])
    waiting = waits(0, "send", 1, 6, messages=own)
    waiting.transfer = msgspec.convert({**message, "line": line}, Message, from_attributes=True)
    other = rank(1, STEP, ("barrier", 1, 30), pending=1, state="running", line=at(30), messages=others)
    found = diagnose_program(evidence(waiting, other))
    assert (found.fault, found.rank, found.certain) == ("message", odd, False)
    words = "probably sends too many, in `for number in range(warmup):` in line 4"
    assert found.finding.endswith(words) is (odd == 0)


def test_stage_that_waits_for_the_messages_of_one_batch_more_is_named(tmp_path: Path) -> None:
    script = tmp_path / "stages.py"
    script.write_text("for _ in range(batches):\n    dist.recv(x, src=0)\n    dist.send(y, dst=0)\ndist.barrier()\n")
    ends = rank(0, ("barrier", 1, 4), pending=1, state="running", line=at(4), messages=begun(*[("isend", 1, 8)] * 5))
    more = rank(1, state="running", line=CodeLine(file=str(script), line=2, function="<module>"))
    more.transfer = Transfer(op="recv", peer=0, tag=0, size=[8], dtype="float32")
    more.messages, more.num_messages = begun(*[("irecv", 0, 2)] * 6), 6
    found = diagnose_program(evidence(ends, more))
    assert found.fault == "message"
    assert found.finding.endswith(
        "; rank 0 has sent 5 of its messages, and rank 1 waits for number 6, in `for _ in range(batches):` in line 1: "
        "the number of rounds probably differs between the ranks"
    )
