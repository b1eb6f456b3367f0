"""The error message and the exit code of a failed world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frog.core.errors import CommError, ConfigError, DataError, NonFiniteError, report_error
from frog.core.runs.folder import RunFolder
from frog.core.runs.outcome import (
    Blame,
    Failure,
    explain,
    final_failures,
    first_failure,
    last_failures,
    name_ranks,
    world_error,
)

LEFT = CommError("all_reduce of 8 bytes failed: connection closed by peer")


def failure(rank: int, code: int = 1, error: Exception | None = None, time_s: float = 100.0, **more: object) -> Failure:
    reported = {"attempt": 0, "rank": rank, "pid": 1000 + rank, "code": code, "time_s": time_s}
    return {**reported, "error": report_error(error) if error else None, "traceback": None, **more}


def test_first_failure_is_not_a_rank_that_lost_its_peers() -> None:
    cause = failure(2, error=NonFiniteError("the loss is nan"), time_s=100.5)
    assert first_failure([failure(0, error=LEFT), cause, failure(1, code=-15)]) is cause


def test_much_later_failure_is_not_the_cause() -> None:
    early = failure(0, error=LEFT)
    assert first_failure([early, failure(1, code=-9, time_s=140.0)]) is early


def test_survived_loss_is_not_a_final_failure() -> None:
    survived = failure(1, code=-9, time_s=100.0)
    cause = failure(2, error=DataError("shard 3 is torn"), time_s=4000.0)
    left = [failure(0, error=LEFT, time_s=4001.0), failure(3, code=-15, time_s=4031.0)]
    assert final_failures([survived, left[0], cause, left[1]]) == [left[0], cause, left[1]]
    assert final_failures([survived, left[0]]) == [survived, left[0]], "the last failure that is not a consequence"


def test_killed_rank_has_the_shells_exit_code() -> None:
    error = explain([failure(1, code=-9)])
    assert (error.what, error.exit_code) == ("rank 1 (pid 1001) was killed by SIGKILL", 137)


def test_crash_of_native_code_leads_to_the_diagnosis() -> None:
    assert explain([failure(1, code=-6)], RunFolder(Path("runs/pond"))).hint == "frog diagnose runs/pond"
    assert explain([failure(1, code=-9)], RunFolder(Path("runs/pond"))).hint is None


def test_world_error_has_the_ranks_message_and_log() -> None:
    failures = [failure(0, error=LEFT), failure(1, error=DataError("shard 3 is torn"))]
    error = world_error(failures, {}, [1], RunFolder(Path("runs/pond")))
    assert error.what == "rank 1 (pid 1001) ended with exit code 1 (1 other rank failed too)\nshard 3 is torn"
    assert error.hint == "see its log: runs/pond/logs/rank_1/train.log"
    assert error.exit_code == 1
    assert world_error(failures, {}, [1]).hint is None


def test_usage_error_is_reported_without_the_rank() -> None:
    error = world_error([failure(0, code=2, error=ConfigError("train.steps=0"))], {}, [1])
    assert (str(error), error.exit_code) == ("train.steps=0", 2)


def test_lost_node_is_reported_before_its_consequences() -> None:
    error = world_error([failure(0, error=LEFT)], {"node1": 9}, [1, -9])
    first, second, *_ = error.what.splitlines()
    assert first == "node1 was killed by SIGKILL with all its ranks"
    assert second == "rank 0 (pid 1000) ended with exit code 1"
    assert error.exit_code == 1


def test_independent_rank_failure_is_reported_before_a_lost_node() -> None:
    error = world_error([failure(0, error=NonFiniteError("the loss is nan"))], {"node1": 9}, [1, -9])
    assert error.what.startswith("rank 0 (pid 1000) ended")


def test_lost_node_without_rank_failures_is_reported() -> None:
    error = world_error([], {"node0": 9}, [-9])
    assert (error.what, error.exit_code) == ("node0 was killed by SIGKILL with all its ranks", 137)


def test_lost_node_and_stopped_nodes_are_both_named() -> None:
    error = world_error([], {"node1": 9}, [-9, 143], unaware=["node0"])
    assert error.what.splitlines() == [
        "node1 was killed by SIGKILL with all its ranks",
        "the ranks of node0 did not notice, so the launcher stopped them",
    ]


def test_agent_failure_without_rank_failures_is_reported() -> None:
    error = world_error([], {}, [0, 3])
    assert (error.exit_code, "exit code 3, but no rank failed" in error.what) == (3, True)
    assert world_error([], {}, [-11]).exit_code == 139
    assert world_error([], {}, []).exit_code == 1


def test_rank_that_waited_names_the_ranks_that_had_left_and_a_cause_does_not() -> None:
    """Only a failure that is no cause itself may come from ranks that ended without an error."""
    seen = {"left": [2, 3], "ended": False, "traceback": "RuntimeError: timed out"}
    said = {blame: explain([failure(1, blame=blame, **seen)]).what for blame in Blame}
    named = {blame for blame, text in said.items() if "had ended without an error" in text}
    assert named == {Blame.WAITED, Blame.LOST_PEER, Blame.STOPPED}
    assert "had ended" not in explain([failure(1, blame=Blame.WAITED, **{**seen, "left": []})]).what


def test_kinds_of_blame_are_all_different_and_a_stopped_rank_is_the_least_likely_cause() -> None:
    order = [Blame.CAUSE, Blame.TEARDOWN, Blame.WAITED, Blame.LOST_PEER, Blame.STOPPED]
    assert sorted(set(order)) == order
    assert [Blame(int(blame)).name for blame in order] == ["CAUSE", "TEARDOWN", "WAITED", "LOST_PEER", "STOPPED"]


def test_failures_are_those_of_the_last_attempt(tmp_path: Path) -> None:
    events = [("exit", 0, 1), ("exit", 1, 2), ("world", 1, 3), ("exit", 1, 4)]
    lines = [json.dumps({"event": event, "attempt": attempt, "rank": rank}) for event, attempt, rank in events]
    (tmp_path / "events").write_text("\n".join(lines))
    assert [failure["rank"] for failure in last_failures(tmp_path / "events")] == [2, 4]
    assert last_failures(tmp_path / "absent") == []


@pytest.mark.parametrize(("later_s", "first"), [(9.5, 1), (10, 1), (10.5, 0)])
def test_failures_within_10_seconds_belong_together(later_s: float, first: int) -> None:
    failures = [failure(0, error=LEFT, time_s=100), failure(1, code=-9, time_s=100 + later_s)]
    assert first_failure(failures)["rank"] == first


@pytest.mark.parametrize(("earlier_s", "ranks"), [(9.5, [0, 1, 2]), (10, [0, 1, 2]), (10.5, [1, 2])])
def test_final_failures_are_at_most_10_seconds_older_than_the_cause(earlier_s: float, ranks: list[int]) -> None:
    failures = [
        failure(0, code=-15, time_s=5000 - earlier_s),
        failure(1, code=-9, time_s=5000),
        failure(2, error=LEFT, time_s=5001),
    ]
    assert [each["rank"] for each in final_failures(failures)] == ranks
    assert final_failures([]) == []


def test_of_equal_failures_the_lowest_rank_is_first() -> None:
    assert first_failure([failure(2), failure(1)])["rank"] == 1
    assert first_failure([failure(1, time_s=100.5), failure(2, time_s=100)])["rank"] == 2


def test_ranks_are_named_up_to_eight() -> None:
    assert [name_ranks(list(range(number))) for number in (1, 2, 8, 9)] == [
        "rank 0",
        "ranks 0, 1",
        "ranks 0, 1, 2, 3, 4, 5, 6, 7",
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more",
    ]


def blamed(rank: int, blame: Blame, error: Exception | None = None, **more: Any) -> Failure:
    return failure(rank, error=error, **{"blame": blame, "left": [], "ended": False, **more})


SAME = ValueError("shape 3")


@pytest.mark.parametrize(
    ("failures", "lines"),
    [
        ([blamed(0, Blame.CAUSE, SAME)], ["rank 0 (pid 1000) ended with exit code 1", "shape 3"]),
        (
            [blamed(0, Blame.CAUSE, SAME, traceback="Traceback: x\n"), blamed(1, Blame.CAUSE, SAME)],
            ["rank 0 (pid 1000) ended with exit code 1", "Traceback: x", "1 other rank failed with the same error"],
        ),
        (
            [
                *[blamed(rank, Blame.CAUSE, SAME) for rank in range(3)],
                *[blamed(3, Blame.WAITED), blamed(4, Blame.STOPPED), blamed(5, Blame.CAUSE, ValueError("other"))],
            ],
            [
                *("rank 0 (pid 1000) ended with exit code 1", "shape 3", "2 other ranks failed with the same error"),
                *("2 other ranks failed because of it", "1 other rank failed too"),
            ],
        ),
        (
            [blamed(0, Blame.TEARDOWN, ended=True), blamed(1, Blame.WAITED)],
            [
                "rank 0 (pid 1000) ended with exit code 1, after its program",
                "its program had ended: the process failed while it shut down. A thread of a process group was still "
                "running; call torch.distributed.destroy_process_group() at the end of the program",
                "1 other rank failed because of it",
            ],
        ),
        (
            [blamed(0, Blame.WAITED, SAME, left=[2]), blamed(1, Blame.WAITED, SAME)],
            [
                *("rank 0 (pid 1000) ended with exit code 1", "shape 3"),
                "rank 2 had ended without an error while this rank still waited for others",
                "1 other rank failed too",
            ],
        ),
        ([blamed(0, Blame.CAUSE, left=[2])], ["rank 0 (pid 1000) ended with exit code 1"]),
        ([failure(0), failure(1), failure(2)], ["rank 0 (pid 1000) ended with exit code 1 (2 other ranks failed too)"]),
    ],
)
def test_error_of_a_world_says_what_became_of_every_rank(failures: list[Failure], lines: list[str]) -> None:
    assert explain(failures).what.splitlines() == lines


def test_program_that_failed_while_it_shut_down_has_probably_ended() -> None:
    assert "its program had probably ended:" in explain([blamed(0, Blame.TEARDOWN)]).what


def test_error_of_another_program_leads_to_the_diagnosis_and_its_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    failures = [blamed(1, Blame.CAUSE, SAME)]
    assert explain(failures, folder).hint == f"frog diagnose {tmp_path}"
    folder.rank_log(1).parent.mkdir(parents=True)
    folder.rank_log(1).touch()
    assert explain(failures, folder).hint == f"frog diagnose {tmp_path}, or its log: {folder.rank_log(1)}"


@pytest.mark.parametrize(
    ("code", "hint"),
    [(-6, True), (-7, True), (-8, True), (-4, True), (-11, True), (-9, False), (-15, False), (1, False), (6, False)],
)
def test_only_a_crash_without_an_error_needs_the_diagnosis(code: int, hint: bool) -> None:
    assert (explain([failure(1, code=code)], RunFolder(Path("runs/pond"))).hint is not None) == hint


def test_error_of_another_class_is_shown_with_its_traceback() -> None:
    shown = failure(0, error=KeyError("x"), traceback="Traceback (most recent call last): ...")
    assert "Traceback" in explain([shown]).what
    assert "Traceback" not in explain([failure(0, error=DataError("x"), traceback="Traceback")]).what
    assert explain([failure(0, code=2, error=KeyError("x"))]).what.startswith("rank 0 (pid 1000)")
