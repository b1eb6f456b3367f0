"""What the rules make of hand-written evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from seen import at, changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine, NoSync
from frog.observe.diagnose.program.evidence import Evidence, Group, JobState, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

STEP = [("all_reduce", 64, 10), ("all_reduce", 64, 10)]


# ---- calls that do not match -----------------------------------------------------------------------------------------


def test_call_under_a_test_of_the_rank_is_a_branch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("if rank == 0:\n    dist.barrier()\ndist.all_reduce(x)\n")
    ranks = [rank(0, *STEP, ("barrier", 1, 2), pending=1), rank(1, *STEP, ("all_reduce", 3, 3), pending=1)]
    for one in ranks:
        for number, call in enumerate(one.calls):
            line = CodeLine(file=str(script), line=call.line.line if call.line else 0, function="main")
            one.calls[number] = changed(call, line=line)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        "branch",
        0,
        "train.py:2 (main)",
        "train.py:3 (main)",
    )
    assert "`if rank == 0:` in line 1" in found.finding
    assert found.certain


@pytest.mark.parametrize(
    ("test", "frames", "fault"),
    [
        ("rank == 0", False, "branch"),
        ("is_main_process()", False, "branch"),
        ("local_rank != -1", False, "ended"),  # perhaps true of all ranks
        ("local_rank != -1", True, "branch"),
    ],
)
def test_test_of_the_rank_around_a_caller_is_a_branch(tmp_path: Path, test: str, frames: bool, fault: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"step()\nif {test}:\n    save()\n")
    ranks = [rank(0, *STEP, ("all_gather", 32, 12), pending=1), rank(1, *STEP, state="ended", exit_code=0)]
    for one in ranks:
        for number, call in enumerate(one.calls):
            outer = CodeLine(file=str(script), line=3 if call.op == "all_gather" else 1, function="<module>")
            inner = (call.line,) if call.line else ()
            one.calls[number] = changed(call, callers=(*inner, outer) if frames or one.rank == 0 else ())
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank) == (fault, 0 if fault == "branch" else 1)
    if fault == "branch":
        assert found.finding.endswith(f"only some ranks pass `if {test}:` in line 2 of train.py")


def test_call_skipped_for_that_of_another_group_is_found_by_the_ranks_own_order() -> None:
    clip, mean = ("all_reduce", 125, 112), ("all_reduce", 1, 109)
    kept, skips = rank(0, *[mean, clip] * 3, mean, pending=1), rank(1, *[mean, clip] * 3, clip, pending=1)
    for one in (kept, skips):
        seen: dict[int | None, int] = {}
        for number, call in enumerate(one.calls):
            seen[call.elements] = seen.get(call.elements, 0) + 1
            group = Group((0, 1), "1" if call.elements == 125 else "0")
            one.calls[number] = changed(call, group=group, seq=seen[call.elements])
    found = diagnose_program(evidence(kept, skips))
    assert (found.fault, found.rank, found.line, found.peer_line, found.certain) == (
        "skipped",
        1,
        "train.py:112 (main)",
        "train.py:109 (main)",
        False,
    )


def test_error_inside_a_collective_that_did_not_match_is_not_the_cause() -> None:
    inside = CodeLine(file="/x/torch/distributed/distributed_c10d.py", line=3634, function="gather_object")
    garbled = failed("RuntimeError", "can't allocate memory: you tried to allocate 71125933540526 bytes", 5, 9)
    sizes = rank(0, *STEP, ("all_gather", 1, 5), pending=1, error=replace(garbled, frames=(at(5), inside)))
    found = diagnose_program(evidence(sizes, rank(1, *STEP, STEP[0], pending=1), hung=False))
    assert found.fault == "branch"
    assert {found.line, found.peer_line} == {"train.py:5 (main)", "train.py:10 (main)"}


def test_error_inside_a_collective_under_a_test_of_the_rank_is_a_branch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("step()\nif is_process_zero():\n    save()\n")
    inside = CodeLine(file="/x/torch/distributed/distributed_c10d.py", line=3634, function="gather_object")
    garbled = failed("RuntimeError", "can't allocate memory: you tried to allocate 71125933540526 bytes", 3, 9)
    line = CodeLine(file=str(script), line=3, function="main")
    saves = rank(0, *STEP, ("all_gather", 1, 3), error=replace(garbled, line=line, frames=(line, inside)))
    saves.calls[-1] = changed(saves.calls[-1], line=line)
    crashed = RankEvidence(1, line=at(10), exit_code=-6, mismatch=("op.preamble.length <= op.nbytes", "train.log"))
    found = diagnose_program(evidence(saves, crashed, hung=False))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        "branch",
        0,
        "train.py:3 (main)",
        "train.py:10 (main)",
    )


def test_same_sizes_in_another_order_are_named_as_such() -> None:
    ahead, back = [("all_reduce", size, 20) for size in (12, 3, 7)], [("all_reduce", size, 20) for size in (7, 3, 12)]
    found = diagnose_program(
        evidence(*(rank(n, *ahead, world=3, pending=3) for n in (0, 1)), rank(2, *back, world=3, pending=3))
    )
    assert (found.fault, found.rank, found.line) == ("order", 2, "train.py:20 (main)")
    assert "the same 3 collectives in another order" in found.finding


def test_other_first_dimension_is_uneven_data() -> None:
    ranks = [rank(n, ("all_gather", 32, 9), world=3, pending=1) for n in range(3)]
    for one, rows in zip(ranks, (4, 4, 3), strict=True):
        one.calls = [changed(one.calls[0], sizes=((rows, 8),))]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank) == ("shape", 2)
    assert found.collective == "all_gather of 4x8 float (collective 1 of all ranks), called at train.py:9 (main)"
    assert "first dimension (3 and 4)" in found.finding


def test_line_of_a_call_without_a_stack_is_that_of_its_error() -> None:
    lost = "Read error: Connection reset by peer"
    waits = rank(0, ("all_gather", 16912, 0), pending=1, error=failed("RuntimeError", lost, 104))
    ended = RankEvidence(1, exit_code=-6, line=at(149), mismatch=("op.preamble.length <= op.nbytes", "train.log"))
    found = diagnose_program(evidence(waits, ended, hung=False))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        "order",
        1,
        "train.py:149 (main)",
        "train.py:104 (main)",
    )
    assert found.finding.endswith("called at train.py:104 (main)")


def test_rank_that_completed_the_receivers_call_just_before_sent_another_size() -> None:
    sent = rank(0, *STEP, ("all_gather", 32, 12), *STEP[:1], pending=1)
    received = RankEvidence(1, exit_code=-6, line=at(12), mismatch=("op.preamble.length <= op.nbytes", "train.log"))
    found = diagnose_program(evidence(sent, received, hung=False))
    assert (found.fault, found.line, found.certain) == ("shape", "train.py:12 (main)", False)


def test_line_of_the_rank_that_sent_another_size_is_named_without_a_record_of_it() -> None:
    """A message that is too long ends its receiver at once, and the launcher ends the sender."""
    received = RankEvidence(1, exit_code=-6, line=at(12), mismatch=("op.preamble.length <= op.nbytes", "train.log"))
    found = diagnose_program(evidence(RankEvidence(0, exit_code=-15, line=at(7)), received, hung=False))
    assert (found.rank, found.line, found.peer_line, found.certain) == (
        1,
        "train.py:12 (main)",
        "train.py:7 (main)",
        False,
    )
    assert found.finding.endswith("; rank 0 was at train.py:7 (main)")


def test_skipped_call_is_found_by_the_next_one() -> None:
    pair = [("all_reduce", 5, 10), ("barrier", 1, 12)]
    whole, part = rank(0, *pair, *pair, *pair, pending=2), rank(1, *pair, ("barrier", 1, 12), pending=1)
    part.trouble.append("skipping a batch: file 3 is damaged")
    found = diagnose_program(evidence(whole, part))
    assert (found.fault, found.rank, found.peer_line) == ("skipped", 1, "train.py:10 (main)")
    assert "file 3 is damaged" in found.finding


def test_loop_that_one_rank_left_has_fewer_batches() -> None:
    loop = [("all_reduce", 5, 10)] * 4
    ranks = [rank(0, *loop, ("all_reduce", 5, 10), pending=1), rank(1, *loop, ("barrier", 1, 15), pending=1)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("batches", 1, False)


def test_equal_calls_of_unequal_shape_are_no_difference() -> None:
    first, second = rank(0, ("all_reduce", 12, 5), pending=1), rank(1, ("all_reduce", 12, 5), pending=1)
    call = second.calls[0]
    second.calls[0] = changed(call, sizes=((3, 4),))
    assert diagnose_program(evidence(first, second)).fault == "network"


# ---- calls that some never made --------------------------------------------------------------------------------------


def test_absent_rank_that_computes_is_busy() -> None:
    late = rank(1, *STEP, state="running", line=at(33, "evaluate"), cpu_busy=True)
    found = diagnose_program(evidence(rank(0, *STEP, ("barrier", 1, 20), pending=1), late))
    assert (found.fault, found.rank, found.line, found.peer_line) == (
        "busy",
        1,
        "train.py:33 (evaluate)",
        "train.py:20 (main)",
    )


def test_absent_rank_that_was_stopped_is_named() -> None:
    late = rank(1, *STEP, state="running", line=at(10), stopped=True)
    found = diagnose_program(evidence(rank(0, *STEP, ("barrier", 1, 20), pending=1), late))
    assert (found.fault, found.rank, found.certain) == ("stop", 1, True)


def test_rank_without_a_record_is_suspected_before_the_network() -> None:
    """Rank 0 waits for a broadcast that the others have completed: rank 2, which wrote nothing, may be the cause."""
    ahead = [rank(n, *STEP, ("barrier", 1, 20), world=4, pending=1) for n in (1, 3)]
    behind = rank(0, *STEP, world=4, pending=1)
    found = diagnose_program(evidence(behind, *ahead))
    assert (found.fault, found.rank, found.certain) == ("gone", 2, False)
    found = diagnose_program(evidence(behind, *ahead, rank(2, world=4, state="running", line=at(10), stopped=True)))
    assert (found.fault, found.rank, found.certain) == ("stop", 2, True)


def test_absent_rank_that_ended_left_early_or_had_fewer_batches() -> None:
    waits = rank(0, *STEP, ("all_reduce", 64, 10), pending=1)
    found = diagnose_program(evidence(waits, rank(1, *STEP, state="ended")))
    assert (found.fault, found.rank) == ("batches", 1)
    waits = rank(0, *STEP, ("barrier", 1, 20), pending=1)
    found = diagnose_program(evidence(waits, rank(1, *STEP, state="ended")))
    assert (found.fault, found.rank) == ("ended", 1)


def test_rank_that_ended_after_a_round_of_the_loop_had_fewer_batches(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for x in loader:\n    loss = model(x)\n    loss.backward()\n")
    ranks = [
        rank(0, ("all_reduce", 64, 3), ("broadcast", 5, 2), pending=1),
        rank(1, ("all_reduce", 64, 3), state="ended"),
    ]
    for one in ranks:
        one.calls = [changed(c, line=at(c.line.line if c.line else 0, file=str(script))) for c in one.calls]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("batches", 1, False)
    assert "rank 1 left the loop around train.py:2 (main) after 1 round" in found.finding


def test_rank_without_any_record_is_suspected_but_not_certain() -> None:
    ranks = [rank(n, *STEP, ("barrier", 1, 20), world=4, pending=1) for n in range(3)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("gone", 3, False)


def test_groups_called_in_opposite_order_wait_for_each_other() -> None:
    ranks = [rank(0, ("barrier", 1, 4), pending=1), rank(1, ("barrier", 1, 5), pending=1)]
    call = ranks[1].calls[0]
    ranks[1].calls[0] = changed(call, group=Group((0, 1), "1"))
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("order", False)
    assert "instead" in found.finding


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("late", [0, 5])
def test_rank_that_calls_two_groups_in_another_order_than_the_rest_is_named(odd: int, late: int) -> None:
    ranks = [rank(n, ("barrier", 1, 4 + (n == odd)), world=4, pending=1) for n in range(4)]
    for one in ranks:
        group = Group((0, 1, 2, 3), "2" if one.rank == odd else "1")
        called_ns = 10**9 * (late if one.rank == odd else 1)
        one.calls[0] = changed(one.calls[0], group=group, created_ns=called_ns)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("order", odd, True)
    assert (found.line, found.peer_line) == ("train.py:5 (main)", "train.py:4 (main)")


def test_short_wait_of_a_running_program_is_no_fault() -> None:
    waits, late = rank(0, *STEP, ("barrier", 1, 20), pending=1), rank(1, *STEP)
    for one in (waits, late):
        one.state, one.dumped_ns = "running", 4 * 10**9
    running = evidence(waits, late, hung=False)
    running.active = True
    assert diagnose_program(running).fault == "running"


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_first_exception_wins_and_victims_are_counted() -> None:
    lost = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4", 10, second=6)
    ranks = [rank(n, *STEP, world=5, error=lost, state="failed") for n in (0, 2, 3, 4)]
    cause = rank(1, *STEP, world=5, error=failed("ValueError", "bad sample 7", 31, second=5), state="failed")
    found = diagnose_program(evidence(*ranks, cause, hung=False))
    assert (found.fault, found.rank, found.line, found.certain) == ("raise", 1, "train.py:31 (main)", True)
    assert "other 4 ranks" in found.advice
    assert any("4 more ranks only lost their connection" in line for line in found.evidence)
    found = diagnose_program(evidence(ranks[0], cause, hung=False))
    assert "the error of the other rank follows from it" in found.advice


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", "memory"),
        ("RuntimeError", "DataLoader worker (pid 31) is killed by signal: Killed. ", "loader"),
        ("RuntimeError", "DataLoader worker (pid(s) 31, 32) exited unexpectedly", "loader"),
        ("FloatingPointError", "loss is nan in step 3", "nan"),
        ("RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.", "nan"),
        ("OSError", "[Errno 28] No space left on device: 'x.pt'", "disk"),
        ("OSError", "[Errno 27] File too large", "disk"),
        ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 1152 vs 1046", "disk"),
        ("KeyError", "'nanotechnology'", "raise"),
    ],
)
def test_exceptions_are_sorted_by_what_they_mean(kind: str, message: str, fault: str) -> None:
    found = diagnose_program(evidence(rank(0), rank(1, error=failed(kind, message, 7)), hung=False))
    assert (found.fault, found.rank, found.line) == (fault, 1, "train.py:7 (main)")


def test_sigkill_is_memory_only_if_the_scheduler_says_so() -> None:
    ranks = evidence(rank(0, exit_code=-15), rank(1, exit_code=-9), hung=False)
    assert (diagnose_program(ranks).fault, diagnose_program(ranks).rank) == ("kill", 1)
    ranks.jobs.append(JobState("OUT_OF_MEMORY", "job.err", "Detected 1 oom_kill event"))
    assert (diagnose_program(ranks).fault, diagnose_program(ranks).rank) == ("memory", 1)


def test_abort_after_the_end_of_the_program_is_teardown() -> None:
    found = diagnose_program(evidence(rank(0, state="ended"), rank(1, state="ended", exit_code=-6), hung=False))
    assert (found.fault, found.outcome) == ("teardown", "completed")


def test_time_limit_is_named_if_nothing_else_is_known() -> None:
    ranks = Evidence("here", {0: RankEvidence(0, sources=["job.out"])}, jobs=[JobState("TIMEOUT", "job.out")])
    assert diagnose_program(ranks).fault == "time_limit"


def test_rank_that_comes_last_each_time_is_slow() -> None:
    ranks = [rank(n, *[("all_reduce", 5, 8)] * 20, state="ended") for n in (0, 1)]
    late = [changed(call, created_ns=(call.created_ns or 0) + 3 * 10**8) for call in ranks[1].calls]
    ranks[1].calls = late
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.outcome) == ("slow", 1, "completed")


def shifted(number: int, late_ms: list[int], apart_ms: int) -> RankEvidence:
    """Return a rank that ended, with a collective every `apart_ms`, some of them late."""
    one = rank(number, *[("all_reduce", 5, 8)] * len(late_ms), state="ended")
    one.calls = [
        changed(call, created_ns=(call.seq * apart_ms + ms) * 10**6)
        for call, ms in zip(one.calls, late_ms, strict=True)
    ]
    return one


def test_rank_that_is_late_to_one_collective_of_each_step_is_slow() -> None:
    ranks = [shifted(0, [0] * 32, 500), shifted(1, [700, 0, 0, 0] * 8, 500)]
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.certain) == ("slow", 1, False)


@pytest.mark.parametrize(("times", "fault"), [(2, "none"), (4, "slow")])
def test_rank_that_is_very_late_to_few_of_many_collectives_is_at_least_in_doubt(times: int, fault: str) -> None:
    late = ([0] * 14 + [800]) * times + [0] * 15 * (4 - times)
    found = diagnose_program(evidence(shifted(0, [0] * 60, 30), shifted(1, late, 30), hung=False))
    assert (found.fault, found.certain) == (fault, False)
    assert "rank 1" in found.finding


def test_ranks_that_wait_for_each_other_on_busy_cores_are_not_slow() -> None:
    late = [-220, -4, 80, 7, 10, -9, 6, 21, 72, 40, 7, -11, 79, 29, 22, 2]  # of rank 0, as seen on two busy cores
    ranks = [shifted(0, late, 90), shifted(1, [0] * len(late), 90)]
    assert diagnose_program(evidence(*ranks, hung=False)).fault == "none"


def test_nan_in_the_log_of_the_only_rank_that_logs_names_no_rank() -> None:
    logs = rank(0, *STEP, state="ended", exit_code=0, nan_line="iter 5: loss nan", num_losses=5)
    found = diagnose_program(evidence(logs, rank(1, *STEP, state="ended", exit_code=0), hung=False))
    assert (found.fault, found.rank) == ("nan", None)


@pytest.mark.parametrize(("without_effect", "fault"), [(0, "none"), (36, "no_sync")])
def test_no_sync_without_effect_is_reported_of_a_program_that_completed(without_effect: int, fault: str) -> None:
    seen = NoSync(entered=36, without_effect=without_effect, line=at(71))
    found = diagnose_program(evidence(*(rank(n, *STEP, state="ended", no_sync=seen) for n in (0, 1)), hung=False))
    assert (found.fault, found.line) == (fault, "train.py:71 (main)" if without_effect else None)
    assert ("in 36 of 36 micro-batches of ranks 0 and 1" in found.finding) == bool(without_effect)


def test_healthy_program_is_healthy() -> None:
    found = diagnose_program(evidence(rank(0, *STEP, state="ended"), rank(1, *STEP, state="ended"), hung=False))
    assert (found.fault, found.outcome) == ("none", "completed")


def test_cause_of_a_wait_that_a_user_ended_is_uncertain() -> None:
    """The collective might have completed later."""
    calls = (*STEP, ("barrier", 1, 30))
    seen = evidence(
        rank(0, *calls, pending=1, state="running", line=at(30)), rank(1, *STEP, state="ended", line=at(40))
    )
    assert diagnose_program(seen).certain
    seen.stopped_by_user, seen.deadline_s, seen.ended_code = True, 7.2, 130
    found = diagnose_program(seen)
    assert (found.fault, found.rank, found.certain, found.outcome) == ("ended", 1, False, "interrupted")
    assert found.finding.endswith("; a user stopped the program after 7 s without a finished collective")
    found = diagnose_program(replace(seen, ranks={}, world_size=None))
    assert (found.fault, found.outcome) == ("unknown", "interrupted")
    assert found.finding == "a user stopped the program after 7 s without a finished collective"
    assert diagnose_program(replace(seen, hung=False)).fault == "interrupted"


@pytest.mark.parametrize(("crash", "fault"), [("Fatal Python error: Aborted\n\nThread 0x1", "crash"), ("", "kill")])
def test_crash_that_the_fault_handler_wrote_down_outweighs_a_guess(crash: str, fault: str) -> None:
    lost = failed("RuntimeError", "Connection closed by peer [10.0.0.2]:31000", 9, 9)
    crashed = rank(1, state="running", crash=crash, line=at(31))
    found = diagnose_program(evidence(rank(0, error=lost), crashed, hung=False))
    assert (found.fault, found.rank, found.line) == (fault, 1, "train.py:31 (main)")
    assert ("Aborted" in found.finding) == bool(crash)
