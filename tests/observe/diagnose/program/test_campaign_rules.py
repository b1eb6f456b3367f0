"""Rules that the campaign on a plain program corrected, on evidence as its runs left it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seen import at, changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.diagnose.program.program_logs import add_log, with_origin

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


def delayed(ranks: list[RankEvidence], number: int, every: int, by_s: float) -> None:
    """Let a rank call every Nth collective later."""
    ranks[number].calls = [
        changed(call, created_ns=(call.created_ns or 0) + round(by_s * 10**9) * (call.seq % every == 0))
        for call in ranks[number].calls
    ]


@pytest.mark.parametrize(("every", "by_s", "fault"), [(3, 0.9, "slow"), (3, 0.2, "none"), (10, 0.9, "none")])
def test_rank_that_makes_the_others_wait_is_slow_even_if_not_at_each_collective(
    every: int, by_s: float, fault: str
) -> None:
    ranks = [rank(number, *[("all_reduce", 5, 8)] * 40, state="ended") for number in (0, 1)]
    delayed(ranks, 1, every, by_s)
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank) == (fault, 1 if fault == "slow" else None)
    assert found.certain == (fault == "none")


@pytest.mark.parametrize(("every", "fault", "certain"), [(2, "slow", False), (9, "none", False), (12, "none", True)])
def test_rank_for_which_four_busy_ranks_wait_less_is_slow_if_it_is_late_too_often_for_chance(
    every: int, fault: str, certain: bool
) -> None:
    ranks = [rank(number, *[("all_reduce", 5, 8)] * 40, world=4, state="ended") for number in range(4)]
    delayed(ranks, 3, every, 0.2 * every)
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.certain) == (fault, 3 if fault == "slow" else None, certain)
    assert ("rank 3 came late to 4 of 39 collectives" in found.finding) == (fault == "none" and not certain)


def test_two_ranks_that_are_late_in_turn_are_not_slow() -> None:
    ranks = [rank(number, *[("all_reduce", 5, 8)] * 40, state="ended") for number in (0, 1)]
    delayed(ranks, 0, 2, 0.4)
    delayed(ranks, 1, 3, 0.9)
    assert diagnose_program(evidence(*ranks, hung=False)).fault == "none"


IN_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/train.py", line 33, in __getitem__
    raise ValueError("bad sample")
ValueError: bad sample
"""


def test_exception_of_a_loaders_worker_has_its_line_in_the_worker() -> None:
    error = with_origin(failed("ValueError", IN_WORKER, 67, 5))
    found = diagnose_program(evidence(rank(0, error=error, state="failed"), rank(1), hung=False))
    assert (found.fault, found.rank, found.line) == ("raise", 0, "train.py:33 (__getitem__)")
    assert found.finding.endswith(": bad sample (in DataLoader worker process 0)")


@pytest.mark.parametrize("message", ["bad", IN_WORKER.partition("\n")[0], IN_WORKER.replace("Caught", "Saw")])
def test_exception_without_an_origin_stays_as_it_is(message: str) -> None:
    error = failed("ValueError", message, 67)
    assert with_origin(error) is error


NAN = failed("FloatingPointError", "loss is nan in step 3", 71, 6)


@pytest.mark.parametrize(("counts", "first"), [((4, 3), 1), ((3, 3), None)])
def test_nan_that_stops_all_ranks_arose_where_the_log_shows_it_first(
    counts: tuple[int, int], first: int | None
) -> None:
    ranks = [
        rank(number, *STEP, error=NAN, state="failed", exit_code=1, nan_line="loss nan", num_losses=count)
        for number, count in enumerate(counts)
    ]
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.line, found.certain) == ("nan", first, "train.py:71 (main)", False)


def test_losses_before_the_first_nan_are_counted_per_rank() -> None:
    log = "".join(
        f"rank {number} | step {step} loss {'nan' if step >= 2 - number else 0.5}\n"
        for step in range(4)
        for number in (0, 1)
    )
    found = Evidence("here")
    assert add_log(found, log, "job.log", None)
    assert [found.of(number).num_losses for number in (0, 1)] == [2, 1]
    found.ended_code = 0
    explained = diagnose_program(found)
    assert (explained.fault, explained.rank) == ("nan", 1)
    assert "first on rank 1" in explained.finding


def test_losses_of_a_rank_without_a_nan_are_counted_too() -> None:
    log = "".join(
        f"rank {number} | step {step} loss {'nan' if step == number == 1 else 0.5}\n"
        for step in range(2)
        for number in (0, 1)
    )
    found = Evidence("here", ended_code=0)
    assert add_log(found, log, "job.log", None)
    assert [(found.of(number).num_losses, bool(found.of(number).nan_line)) for number in (0, 1)] == [
        (2, False),
        (1, True),
    ]
    assert diagnose_program(found).rank == 1


@pytest.mark.parametrize(
    ("norms", "fault"),
    [
        ("0.5 nan nan", "nan"),
        ("nan nan", "nan"),
        ("0.5 nan", "none"),  # perhaps an overflow
        ("nan nan 0.5", "none"),
        ("0.5 inf inf", "none"),
    ],
)
def test_gradient_norm_that_stays_nan_is_reported_without_a_rank(norms: str, fault: str) -> None:
    lines = [f"rank 0 | {{'loss': '0', 'grad_norm': '{norm}', 'max_grad_norm': 1}}\n" for norm in norms.split()]
    found = Evidence("here", ended_code=0)
    assert add_log(found, "".join(["rank 1 | started\n", *lines]), "job.log", None)
    explained = diagnose_program(found)
    assert (explained.fault, explained.rank) == (fault, None)
    assert ("the log of rank 0 shows a gradient norm that stays NaN" in explained.finding) == (fault == "nan")


STORE = CodeLine(file="/venv/torch/distributed/rendezvous.py", line=199, function="_create_c10d_store")


@pytest.mark.parametrize(
    ("fields", "fault", "certain"),
    [
        ({"state": "ended"}, "ended", True),
        ({"state": "running", "exit_code": 0}, "ended", True),
        ({"state": "running", "line": at(50), "stopped": True}, "stop", True),
        ({"state": "running", "line": at(50), "cpu_busy": True}, "busy", False),
        ({"state": "running", "line": at(50), "stack": [at(50)]}, "blocked", False),
    ],
)
def test_rank_that_never_joins_is_named_with_the_line_at_which_others_wait(
    fields: dict[str, Any], fault: str, certain: bool
) -> None:
    waits = rank(1, state="running", line=at(84, "run"), stack=[STORE, at(84, "run")])
    found = diagnose_program(evidence(rank(0, **fields), waits))
    assert (found.fault, found.rank, found.peer_line, found.certain) == (fault, 0, "train.py:84 (run)", certain)


def test_line_at_which_a_signal_tells_of_a_dead_worker_is_not_the_cause() -> None:
    handler = CodeLine(file="/venv/torch/utils/data/_utils/signal_handling.py", line=73, function="handler")
    error = failed("RuntimeError", "DataLoader worker (pid 31) is killed by signal: Killed. ", 70)
    for frames, line in (((at(70), handler), None), ((at(70),), "train.py:70 (main)")):
        found = diagnose_program(evidence(rank(0), rank(1, error=replace(error, frames=frames)), hung=False))
        assert (found.fault, found.rank, found.line) == ("loader", 1, line)
        assert "at train.py:70 (main)" in found.finding


MISMATCH = ("op.preamble.length <= op.nbytes. 2564 vs 4. Received data size doesn't match", "train.log")


def test_rank_that_left_its_own_order_skipped_the_collective_of_the_crashed_one() -> None:
    skips = rank(0, *STEP * 3, STEP[0], STEP[0], pending=1, exit_code=-15, state="failed", error=CLOSED)
    crashed = RankEvidence(1, line=at(72), exit_code=-6, state="running", mismatch=MISMATCH, sources=["train.log"])
    found = diagnose_program(evidence(skips, crashed, hung=False))
    assert (found.fault, found.rank, found.line, found.peer_line, found.certain) == (
        "skipped",
        0,
        "train.py:68 (main)",
        "train.py:72 (main)",
        False,
    )


def test_rank_that_kept_its_own_order_is_not_blamed_for_the_crash_of_another() -> None:
    keeps = rank(0, *STEP * 3, STEP[0], pending=1, exit_code=-15, state="failed", error=CLOSED)
    crashed = RankEvidence(1, line=at(72), exit_code=-6, state="running", mismatch=MISMATCH, sources=["train.log"])
    found = diagnose_program(evidence(keeps, crashed, hung=False))
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert found.finding.endswith("in its usual order: rank 1 probably left out that one")


SIZES = [("all_reduce", 12, 73), ("all_reduce", 3, 73), ("all_reduce", 1, 77)]


@pytest.mark.parametrize(
    ("steps", "last", "fault", "odd"),
    [
        (SIZES * 2, SIZES[1], "order", 0),  # the second size where the first has always been
        (SIZES * 2, SIZES[0], "order", 1),
        ([SIZES[0], SIZES[2]] * 2, SIZES[1], "shape", 0),
        ([SIZES[0], SIZES[2]] * 2, SIZES[0], "shape", 1),
    ],
)
def test_history_tells_which_of_two_ranks_called_another_size(
    steps: list[tuple[str, int, int]], last: tuple[str, int, int], fault: str, odd: int
) -> None:
    stays = rank(0, *steps, last, pending=1, exit_code=-15, state="failed", error=CLOSED)
    crashed = RankEvidence(1, line=at(73), exit_code=-6, state="running", mismatch=MISMATCH, sources=["train.log"])
    found = diagnose_program(evidence(stays, crashed, hung=False))
    assert (found.fault, found.rank, found.line, found.certain) == (fault, odd, "train.py:73 (main)", False)


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_recorded_ranks_the_one_that_did_something_new_is_odd(odd: int) -> None:
    ranks = [
        rank(number, *[SIZES[0], SIZES[2]] * 2, SIZES[1] if number == odd else SIZES[0], pending=1) for number in (0, 1)
    ]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("shape", odd, False)


def test_dead_thread_for_which_a_rank_waits_is_told_with_its_line() -> None:
    error = replace(failed("ZeroDivisionError", "division by zero", 70), fatal=False)
    late = rank(1, *STEP, state="running", line=at(71), stack=[at(71)], cpu_busy=False, thread_error=error)
    found = diagnose_program(evidence(rank(0, *STEP, STEP[0], pending=1, state="running"), late))
    assert (found.fault, found.rank, found.line, found.certain) == ("blocked", 1, "train.py:71 (main)", False)
    assert "a thread of it had ended with ZeroDivisionError at train.py:70 (main): division by zero" in found.finding


def test_rank_that_jumps_to_an_earlier_call_skipped_one() -> None:
    start = [*STEP, ("broadcast", 5, 66), STEP[0]]  # DDP broadcasts its buckets in the second step
    ranks = [rank(number, *start, STEP[number != 1], world=3, pending=1) for number in range(3)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.peer_line, found.certain) == (
        "skipped",
        1,
        "train.py:68 (main)",
        "train.py:72 (main)",
        True,
    )


def test_size_that_its_line_has_called_before_is_probably_another_order() -> None:
    ranks = [rank(number, *SIZES, SIZES[number == 2], world=3, pending=1) for number in range(3)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("order", 2, False)


def test_other_size_without_later_calls_is_not_certain_since_the_order_may_differ() -> None:
    ranks = [
        rank(number, SIZES[0], SIZES[2], ("all_reduce", 12 + (number == 2), 73), world=3, pending=1)
        for number in range(3)
    ]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("shape", 2, False)


def test_rank_that_alone_fails_a_test_of_the_rank_is_named_with_the_branch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for step in steps:\n    train(step)\n    if rank != 2:\n        dist.barrier()\n")
    ranks = [rank(n, *STEP, ("barrier", 1, 4) if n != 2 else STEP[0], world=3, pending=1) for n in range(3)]
    for one in ranks:
        calls = [changed(call, line=replace_file(call.line, script)) for call in one.calls]
        one.calls[:] = calls
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line) == ("branch", 2, "train.py:4 (main)")
    assert "`if rank != 2:` in line 3" in found.finding


def replace_file(line: CodeLine | None, script: Path) -> CodeLine:
    return CodeLine(file=str(script), line=line.line if line else 0, function="main")
