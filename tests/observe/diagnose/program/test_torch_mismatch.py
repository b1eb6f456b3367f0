"""Programs that run with TORCH_DISTRIBUTED_DEBUG=DETAIL, with which torch compares the calls of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from observe.diagnose.program.seen import evidence, failed, rank

from frog.observe.diagnose.program.evidence import Group, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder, diagnose_program

DIFFERS = (
    "Detected mismatch between collectives on ranks. Rank {a} is running collective: CollectiveFingerPrint("
    "SequenceNumber={i}, OpType={x}, TensorShape=[{n}], TensorDtypes={t}, TensorDeviceTypes=cpu)), but Rank {b} is "
    "running collective: CollectiveFingerPrint(SequenceNumber={j}, OpType={y}, TensorShape=[{m}], "
    "TensorDtypes={u}, TensorDeviceTypes=cpu))."
)
SAME = {"a": 0, "b": 1, "i": 3, "j": 3, "x": "ALLREDUCE", "y": "ALLREDUCE", "n": 4, "m": 4, "t": "Float", "u": "Float"}


def with_gaps(number: int) -> RankEvidence:
    """Return a rank of which torch's wrapper recorded two calls in each four numbers."""
    found = rank(number, *[("all_gather", 7, 5)] * 8)
    found.calls = [call for call in found.calls if call.seq % 4 > 1]
    return found


def test_numbers_with_gaps_of_torchs_wrapper_are_compared() -> None:
    ranks = [with_gaps(0), with_gaps(1)]
    for each in ranks:
        each.state, each.exit_code = "ended", 0
    found = diagnose_program(evidence(*ranks, hung=False))
    assert found.fault == "none"
    assert ranks[0].calls[0].group == Group((0, 1), "0")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"m": 6}, "shape"),
        ({"u": "Double"}, "dtype"),
        ({"y": "BROADCAST"}, "order"),
        ({"j": 4, "y": "BARRIER"}, "order"),
    ],
)
def test_sentence_of_torch_wins_over_the_records_of_its_wrapper(changes: dict[str, object], fault: str) -> None:
    words = DIFFERS.format(**SAME | changes)
    ranks = [with_gaps(0), with_gaps(1)]
    ranks[0].error, ranks[1].error = failed("RuntimeError", words, 8, 9), failed("RuntimeError", words, 12, 9)
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.certain) == (fault, 1, True)
    assert (found.line, found.peer_line) == ("train.py:12 (main)", "train.py:8 (main)")


def test_rank_that_two_others_contradict_is_the_odd_one() -> None:
    first, last = (DIFFERS.format(**SAME | {"n": 6, "a": 0, "b": other}) for other in (1, 2))
    ranks = [rank(number, error=failed("RuntimeError", first if number < 2 else last, 8)) for number in range(3)]
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank) == ("shape", 0)


def test_sentence_of_torch_in_a_log_names_both_calls(tmp_path: Path) -> None:
    text = DIFFERS.format(**SAME | {"m": 6})
    lines = ["Traceback (most recent call last):", '  File "/home/u/train.py", line 8, in <module>', "    reduce(x)"]
    lines.append(f"RuntimeError: {text}")
    (tmp_path / "job.log").write_text("".join(f"[rank1]: {line}\n" for line in lines))
    found = diagnose_folder(tmp_path / "job.log")
    assert (found.fault, found.rank) == ("shape", 1)
    assert "all_reduce of 6 float" in found.finding
