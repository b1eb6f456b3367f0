"""What a log says about the ranks of a hang: who waited, who is behind, who is absent, who called something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.table.known import Level
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

PLACE = "[rank{rank}]:[E807 09:11:2{rank}.120055000 ProcessGroupNCCL.cpp:{line}] "
WORK = PLACE + (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
    "NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
)
AT_WORK = PLACE + (
    "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {last}, "
    "last completed NCCL work: {done}.\n"
)
SIGNAL = PLACE + (
    "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from rank {source} "
    "and we will try our best to dump the debug info. Last enqueued NCCL work: {last}, last completed NCCL work: "
    "{last}.\n"
)
ABORTED = "E0807 {time}.250000 4711 torch/distributed/elastic/api.py:869] failed (exitcode: -6) local_rank: 1\n"


def work(rank: int, seq: int = 19, numel: int = 64) -> str:
    return WORK.format(rank=rank, line=632, seq=seq, numel=numel)


def at_work(rank: int, seq: int = 19, last: int = 22) -> str:
    return AT_WORK.format(rank=rank, line=1803, seq=seq, last=last, done=seq - 1)


def signal(rank: int, last: int, source: int = 0) -> str:
    return SIGNAL.format(rank=rank, line=1682, source=source, last=last)


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


@pytest.mark.parametrize("report", [work, at_work])
def test_rank_without_a_time_out_is_named_while_the_others_report_one(report: type, tmp_path: Path) -> None:
    text = "".join(report(rank) for rank in (0, 1, 3))
    found = explain(text)
    assert (found.cause and found.cause.id, found.suspect) == ("collective-timeout", 2)
    assert "No time-out of rank 2 is in the log: look there first." in found.details
    (tmp_path / "job.err").write_text(text)
    assert diagnose_folder(tmp_path / "job.err").rank == 2


def test_last_rank_of_the_world_may_be_the_one_without_a_time_out() -> None:
    found = explain("n1:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0\n" + "".join(map(at_work, range(3))))
    assert found.suspect == 3


def test_rank_that_only_saw_the_dump_signal_and_called_less_is_behind(tmp_path: Path) -> None:
    text = "".join(at_work(rank, last=22) for rank in (0, 1, 2)) + signal(3, last=18)
    found = explain(text)
    assert found.suspect == 3
    assert (
        "Rank 3 called 18 collectives, the others up to 22, and timed out in none: look there first." in found.details
    )
    (tmp_path / "job.err").write_text(text.replace("Timeout at", "Timeout at"))
    assert diagnose_folder(tmp_path / "job.err").rank == 3


def test_rank_that_called_as_much_as_the_others_is_not_behind() -> None:
    assert "timed out in none" not in str(explain(at_work(0) + at_work(1) + signal(2, last=22)).details)


def test_same_number_with_other_sizes_is_a_mismatch(tmp_path: Path) -> None:
    text = "".join(work(rank, numel=50 if rank == 2 else 64) for rank in range(4))
    found = explain(text)
    assert found.suspect == 2
    assert (
        "The same number has other sizes: rank 2 differs, so the ranks called it with unequal tensors." in found.details
    )
    (tmp_path / "job.err").write_text(text)
    told = diagnose_folder(tmp_path / "job.err")
    assert (told.fault, told.rank) == ("shape", 2)


def test_time_out_that_another_rank_reports_names_that_rank(tmp_path: Path) -> None:
    text = signal(4, last=22, source=13)
    found = explain(text)
    assert (found.cause and found.cause.id, found.cause and found.cause.level) == ("collective-timeout", Level.SYMPTOM)
    assert found.details == [
        "Rank 13 timed out first, as other ranks report; its own log shows in which collective."
    ]  # fmt: skip
    (tmp_path / "job.err").write_text(text)
    told = diagnose_folder(tmp_path / "job.err")
    assert (told.fault, told.rank) == ("collective-timeout", 13)


def test_log_that_leaves_out_equal_lines_accuses_no_rank_without_one(tmp_path: Path) -> None:
    ray = "(Worker pid={}) "
    text = ray.format(4) + work(2).rstrip("\n") + " [repeated 2x across cluster]\n"
    failed = "[rank0]:[E816 01:09:38.2 ProcessGroupNCCL.cpp:621] [Rank 0] Some NCCL operations have failed.\n"
    (tmp_path / "job.err").write_text(ray.format(3) + failed + text)
    told = diagnose_folder(tmp_path / "job.err")
    assert (told.fault, told.rank) == ("collective-timeout", None)
    assert "RAY_DEDUP_LOGS=0" in told.meaning


def test_text_of_one_rank_alone_accuses_no_other(tmp_path: Path) -> None:
    (tmp_path / "job.err").write_text(work(3))
    told = diagnose_folder(tmp_path / "job.err")
    assert (told.fault, told.rank) == ("collective-timeout", None)


def test_two_spaces_before_the_rank_that_torch_writes_do_not_matter() -> None:
    found = explain(signal(4, last=22, source=13).replace("from rank", "from  rank"))
    assert (found.suspect, found.rank) == (13, None)


def test_rank_that_reports_its_own_time_out_is_the_first() -> None:
    own = signal(1, last=22).replace("from rank 0", "from this local rank")
    assert explain(own + signal(0, last=22, source=1)).suspect == 1


BAR = "  1%|▏  | {at}/59913 [{elapsed}<106:21:36,  6.42s/it]\n"


@pytest.mark.parametrize(("time", "is_time_out"), [("10:59:51", True), ("10:31:11", False)])
def test_silence_before_the_abort_is_a_time_out(time: str, is_time_out: bool) -> None:
    """The bar began at 10:00:00 and ended after 29:50."""
    text = (
        "[2025-08-07 10:00:00,000] starts\n" + BAR.format(at=1, elapsed="00:00") + BAR.format(at=280, elapsed="29:50")
    )
    found = explain(text + ABORTED.format(time=time))
    assert (found.cause is not None) == is_time_out
    if is_time_out:
        assert found.cause is not None
        assert (found.cause.id, found.certain) == ("collective-timeout", False)
        assert "30 minutes before the abort" in " ".join(found.details)


def test_steps_with_times_show_the_silence_too() -> None:
    steps = "".join(f"[2025-08-07 10:0{at}:00,000] step {at}/900 loss 2.1\n" for at in (1, 2, 3))
    found = explain(steps + ABORTED.format(time="10:33:05"))
    assert found.cause is not None
    assert "30 minutes" in " ".join(found.details)


def test_time_limit_of_less_than_a_minute_is_named_as_a_reason() -> None:
    short = work(3).replace("Timeout(ms)=600000", "Timeout(ms)=1500").replace("600061", "1502")
    assert any("time limit is only 1.5 s" in sentence for sentence in explain(short).details)
    assert not any("time limit" in sentence for sentence in explain(work(3)).details)


def test_rank_in_the_label_of_mpirun_with_names_is_read() -> None:
    lines = "".join(f"[1,mpirank:7,algo-1]<stderr>:{line}\n" for line in ("step 3", "KeyError: 'frob'"))
    assert explain(lines).rank == 7


def test_long_evaluation_before_a_time_out_is_named_with_the_ranks_of_the_pair() -> None:
    """The form of public issue 13435 of PaddlePaddle/PaddleOCR."""
    bar = "eval pond: 100%|██████████| 1061/1061 [{elapsed}<00:00,  2.29s/it]\n"
    end = (
        "  what():  [/src/gloo/transport/tcp/pair.cc:587] TIMEOUT self_rank = 0 pair_rank = 1 peer_str = [10.0.0.7]:3\n"
    )
    long = explain_log((bar.format(elapsed="40:30") + end).splitlines(keepends=True))
    assert long.cause is not None
    assert long.cause.id == "collective-timeout"
    assert [detail.partition(":")[0] for detail in long.details] == [
        "Rank 0 waited for rank 1 in a collective of gloo",
        "Before, `eval pond` ran for 40 minutes",
    ]
    short = explain_log((bar.format(elapsed="00:30") + end).splitlines(keepends=True))
    assert len(short.details) == 1
