"""Rules that the campaign on a plain program corrected, on evidence as its runs left it."""

from __future__ import annotations

from seen import at, evidence, failed, rank

from frog.diagnose.program.rules import diagnose_program

STEP = [("all_reduce", 2561, 68), ("all_reduce", 1, 72)]
CLOSED = failed("RuntimeError", "[gloo/pair.cc:537] Read error [127.0.0.1]:8077: Connection reset by peer", 68, 9)
TIMED_OUT = failed("RuntimeError", "[gloo/unbound_buffer.cc:81] Timed out waiting 15000ms for recv operation", 68, 30)


def test_rank_that_ended_without_a_word_is_not_computing() -> None:
    waits = rank(0, *STEP, STEP[0], pending=1, error=CLOSED, state="failed", exit_code=1)
    gone = rank(1, *STEP, state="running", line=at(70), cpu_busy=True)
    found = diagnose_program(evidence(waits, gone, hung=False))
    assert (found.fault, found.rank, found.certain) == ("kill", 1, False)


def test_rank_that_others_waited_for_until_a_time_out_still_computes() -> None:
    waits = rank(0, *STEP, STEP[0], pending=1, error=TIMED_OUT, state="failed", exit_code=1)
    late = rank(1, *STEP, state="running", line=at(70), cpu_busy=True)
    found = diagnose_program(evidence(waits, late, hung=False))
    assert (found.fault, found.rank, found.line) == ("busy", 1, "train.py:70 (main)")


def test_rank_of_a_lost_node_is_named_with_its_node() -> None:
    waits = rank(0, *STEP, STEP[0], pending=1, error=CLOSED, state="failed", exit_code=1)
    gone = rank(1, *STEP, state="running", line=at(70), cpu_busy=True, node_rank=1, node_lost_ns=10**9)
    found = diagnose_program(evidence(waits, gone, hung=False))
    assert (found.fault, found.rank, found.node_rank) == ("node", 1, 1)


def test_collective_that_only_some_completed_was_not_delivered() -> None:
    ahead = rank(0, *STEP, *STEP, pending=1, state="running")
    behind = rank(1, *STEP, STEP[0], pending=1, state="running", line=at(68))
    found = diagnose_program(evidence(ahead, behind))
    assert (found.fault, found.rank, found.certain) == ("network", 1, False)
    assert "which rank 0 completed" in found.finding
