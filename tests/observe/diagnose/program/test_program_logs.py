"""Text that launchers, schedulers and debuggers leave, and what the diagnosis makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frog.core.errors import RunError
from frog.observe.diagnose.program.gather import gather
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/job/train.py", line 41, in <module>
    main()
  File "/home/ada/job/data.py", line 7, in load
    raise KeyError(name)
KeyError: 'shard-12'"""
LOST = """Traceback (most recent call last):
  File "/home/ada/job/train.py", line 41, in <module>
    dist.barrier()
torch.distributed.DistBackendError: NCCL error in: x.cpp:3, remote process exited or there was a network error
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."""
WATCHDOG = (
    "[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
    "operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for "
    "600060 milliseconds before timing out."
)
LAST = (
    "[rank{rank}]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Exception "
    "(either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {last}, last completed "
    "NCCL work: {done}."
)
ELASTIC = """  File "/opt/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED"""
CHILD_FAILED = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_03:04:06
  host      : node2
  rank      : 5 (local_rank: 1)
  exitcode  : -15 (pid: 41)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 41
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : node2
  rank      : 4 (local_rank: 0)
  exitcode  : -9 (pid: 40)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 40
============================================================"""
STACKS = """Process 4711: python train.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 4711 ({state}): "MainThread"
    wait (threading.py:320)
    barrier (torch/distributed/distributed_c10d.py:4159)
    {function} (train.py:{line})
    <module> (train.py:99)
Thread 4712 (idle): "Thread-1"
    run (other.py:5)
"""


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("form", ["[rank{}]: ", "{}: ", "[1,{}]<stderr>:", "[default{}]:", "rank {} | "])
def test_prefixes_tell_the_ranks_of_a_common_log(tmp_path: Path, form: str) -> None:
    text = prefixed(form.format(0), f"step 1\nstep 2\n{LOST}") + prefixed(form.format(2), f"step 1\n{TRACEBACK}")
    (tmp_path / "slurm-4711.out").write_text(text)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.line) == ("raise", 2, "data.py:7 (load)")
    assert "KeyError" in found.finding


@pytest.mark.parametrize(
    "names",
    [("rank_0.log", "rank_1.log"), ("out.0.txt", "out.1.txt"), ("attempt_0/0/stderr.log", "attempt_0/1/stderr.log")],
)
def test_names_of_files_tell_the_ranks_of_separate_logs(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, text in zip(names, (LOST, TRACEBACK), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"step 1\n{text}\n")
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.line) == ("raise", 1, "data.py:7 (load)")


@pytest.mark.parametrize(
    ("names", "num_local"),
    [(("job-node0.out", "job-node1.out"), 1), (("node_0.log", "node_1.log"), 2), (("0.log", "1.log"), 2)],
)
def test_output_of_a_nodes_launcher_is_not_that_of_a_rank(
    tmp_path: Path, names: tuple[str, str], num_local: int
) -> None:
    """With --tee, torchrun names the ranks; its own lines have no name."""
    for node, name in enumerate(names):
        ranks = range(node * num_local, (node + 1) * num_local)
        texts = [prefixed(f"[rank{rank}]: [rank{rank}]: ", TRACEBACK if rank == 0 else LOST) for rank in ranks]
        (tmp_path / name).write_text("".join(texts) + f"Traceback (most recent call last):\n{ELASTIC}\n")
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.line) == ("raise", 0, "data.py:7 (load)")


def test_watchdog_lines_show_the_rank_that_is_behind(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(rank=rank, seq=1580, op="ALLREDUCE", numel=4096) for rank in (0, 1, 3)]
    lines += [LAST.format(rank=rank, seq=1580, last=1582, done=1579) for rank in (0, 1, 3)]
    lines += [WATCHDOG.format(rank=2, seq=1579, op="BROADCAST", numel=1)]
    lines += [LAST.format(rank=2, seq=1579, last=1579, done=1578)]
    (tmp_path / "job.err").write_text("\n".join(lines))
    found = diagnose_folder(tmp_path)
    assert found.rank == 2
    assert found.collective is not None
    assert "1580" in found.finding or "1579" in found.finding


def test_watchdog_lines_of_one_number_and_two_sizes_are_a_mismatch(tmp_path: Path) -> None:
    lines = [
        WATCHDOG.format(rank=rank, seq=7, op="_ALLGATHER_BASE", numel=50 if rank == 3 else 64) for rank in range(4)
    ]
    (tmp_path / "job.err").write_text("\n".join(lines))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == ("shape", 3)
    assert "64 elements" in found.finding


def test_watchdog_line_that_a_rank_lacks_is_evidence(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(rank=rank, seq=7, op="ALLREDUCE", numel=64) for rank in (0, 1, 3)]
    (tmp_path / "job.err").write_text("\n".join(lines))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.certain) == ("gone", 2, False)


def test_torchruns_table_tells_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(CHILD_FAILED)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == ("kill", 4)


def test_torchruns_error_file_tells_the_line(tmp_path: Path) -> None:
    content = {
        "message": {
            "message": "KeyError: 'shard-12'",
            "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1700000000"},
        }
    }
    path = tmp_path / "none_x/attempt_0/3/error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.line) == ("raise", 3, "data.py:7 (load)")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
            "memory",
        ),
        ("slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***", "time_limit"),
        ("slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***", "preempted"),
        (
            "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE, SEE LOGS ***",
            "node",
        ),
        ("slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***", "interrupted"),
    ],
)
def test_slurms_lines_tell_how_a_job_ended(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "slurm-17.out").write_text(f"epoch 1\n{line}\n")
    assert diagnose_folder(tmp_path).fault == fault


def test_sruns_lines_tell_the_exit_codes_of_ranks(tmp_path: Path) -> None:
    text = "srun: error: n1: tasks 0,2-3: Exited with exit code 1\nsrun: error: n1: task 1: Killed\n"
    (tmp_path / "slurm-17.err").write_text(text)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == ("kill", 1)


@pytest.mark.parametrize(
    "text",
    [
        "JobID|JobName|State|ExitCode|MaxRSS\n17|train|OUT_OF_MEMORY|0:125|\n17.0|python|OUT_OF_MEMORY|0:125|64G\n",
        "JobID           JobName      State ExitCode\n------------ ---------- ---------- --------\n"
        "17                train OUT_OF_ME+    0:125\n",
    ],
)
def test_sacct_tells_the_state_of_a_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "sacct.txt").write_text(text)
    assert diagnose_folder(tmp_path).fault == "memory"


def test_stacks_and_watchdog_lines_name_the_line_of_the_absent_rank(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(rank=rank, seq=7, op="ALLREDUCE", numel=64) for rank in (0, 2)]
    (tmp_path / "job.err").write_text("\n".join(lines))
    for rank in range(3):
        text = STACKS.format(state="active" if rank == 1 else "idle", function="evaluate", line=50 + rank)
        (tmp_path / f"py-spy_rank_{rank}.txt").write_text(text)
    found = diagnose_folder(tmp_path)
    assert (found.rank, found.line) == (1, "train.py:51 (evaluate)")


@pytest.mark.parametrize("group", ["[PG ID 1 PG GUID 1(mesh_tp) Rank {}]", "[PG 1 Rank {}]"])
def test_watchdog_lines_of_two_groups_are_not_compared_by_number(tmp_path: Path, group: str) -> None:
    lines = [WATCHDOG.format(rank=rank, seq=7, op="ALLREDUCE", numel=64) for rank in (0, 1)]
    lines += [
        LAST.format(rank=rank, seq=7, last=7, done=6).replace(
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]", group.format(rank)
        )
        for rank in (0, 1)
    ]
    lines += [WATCHDOG.format(rank=rank, seq=7, op="_ALLGATHER_BASE", numel=4096) for rank in (2, 3)]
    lines += [LAST.format(rank=rank, seq=7, last=7, done=6) for rank in (2, 3)]
    (tmp_path / "job.err").write_text("\n".join(lines))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.certain) == ("order", False)
    assert "ranks 2 and 3 wait in _all_gather_base of 4096 elements (collective 7 of all ranks)" in found.finding
    assert "ranks 0 and 1 wait in all_reduce of 64 elements (collective 7 of group 1) instead" in found.finding


@pytest.mark.parametrize("with_counts", [True, False])
def test_watchdog_lines_of_two_numbers_and_kinds_name_the_side_with_fewer_ranks(
    tmp_path: Path, with_counts: bool
) -> None:
    lines = [WATCHDOG.format(rank=rank, seq=1207, op="ALLREDUCE", numel=64) for rank in (0, 1, 3)]
    lines += [WATCHDOG.format(rank=2, seq=1208, op="BROADCAST", numel=1)]
    if with_counts:
        lines += [LAST.format(rank=rank, seq=1207, last=1209, done=1206) for rank in (0, 1, 3)]
        lines += [LAST.format(rank=2, seq=1208, last=1208, done=1207)]
    (tmp_path / "job.err").write_text("\n".join(lines))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.certain) == ("order", 2, False)
    assert found.finding.startswith("ranks 0, 1 and 3 wait in all_reduce of 64 elements (collective 1207 of all ranks)")
    assert "rank 2 waits in broadcast of 1 elements (collective 1208 of all ranks)" in found.finding


FAULT = """step 1
Fatal Python error: Segmentation fault

Current thread 0x00007f0a1c2b3d40 (most recent call first):
  File "/home/ada/job/ops.py", line 31 in fused
  File "/home/ada/job/train.py", line 12 in main"""


def test_crash_explains_the_time_outs_of_the_other_ranks(tmp_path: Path) -> None:
    waits = "\n".join(WATCHDOG.format(rank=rank, seq=7, op="ALLREDUCE", numel=64) for rank in (0, 1))
    end = "srun: error: n2: task 2: Segmentation fault (core dumped)"
    (tmp_path / "slurm-17.out").write_text(f"{prefixed('2: ', FAULT)}{end}\n{waits}\n")
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.line) == ("crash", 2, "ops.py:31 (fused)")
    assert any('File "/home/ada/job/ops.py", line 31' in line for line in found.evidence)


@pytest.mark.parametrize(("others", "fault"), [("", "kill"), ("srun: error: n1: tasks 0-1: Killed", "gone")])
def test_kill_explains_the_time_outs_only_of_ranks_that_were_not_killed_too(
    tmp_path: Path, others: str, fault: str
) -> None:
    waits = "\n".join(WATCHDOG.format(rank=rank, seq=7, op="ALLREDUCE", numel=64) for rank in (0, 1))
    (tmp_path / "slurm-17.out").write_text(f"srun: error: n2: task 2: Killed\n{waits}\n{others}\n")
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == (fault, 2)


FRAMES = {
    "all_reduce": "all_reduce (torch/distributed/distributed_c10d.py:2806)\n    wrap (torch/c10d_log.py:8)",
    "broadcast": "broadcast (torch/distributed/distributed_c10d.py:2206)",
    "read": "read (ssl.py:1166)",
}


@pytest.mark.parametrize(
    ("inside", "fault", "rank", "finding"),
    [
        (["all_reduce", "all_reduce", "read"], "blocked", 2, "rank 2 is at train.py:52 (step2) (in read of "
            "ssl.py:1166), outside torch.distributed: the others probably wait for it"),
        (["broadcast", "all_reduce", "all_reduce"], "order", 0, "ranks 1 and 2 wait in all_reduce at train.py:40 "
            "(step); rank 0 waits in broadcast at train.py:50 (step0)"),
        (["all_reduce"] * 3, "stuck", None, "all 3 ranks with a stack wait in all_reduce at train.py:40 (step): a rank "
            "without a stack here, the network or a device keeps them waiting"),
        (["", "", "read"], "blocked", 2, "ranks 0 and 1 are at train.py:40 (step); rank 2 is at"),
        (["read"] * 3, "unknown", None, "the evidence shows neither a failure nor its absence"),
    ],
)  # fmt: skip
def test_stacks_alone_tell_which_rank_is_elsewhere(
    tmp_path: Path, inside: list[str], fault: str, rank: int | None, finding: str
) -> None:
    for number, op in enumerate(inside):
        own = "step (train.py:40)" if op in ("all_reduce", "") else f"step{number} (train.py:{50 + number})"
        frames = f"    {FRAMES[op]}\n" if op else ""
        text = (
            f'Process {number + 9}: python t.py\nPython v3.11.4\n\nThread 9 (active): "MainThread"\n{frames}    {own}\n'
        )
        (tmp_path / f"py-spy_rank_{number}.txt").write_text(text)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.certain) == (fault, rank, False)
    assert finding in found.finding
    assert all(f"[py-spy_rank_{number}.txt]" in "\n".join(found.evidence) for number in range(3))


def test_failed_job_without_output_shows_what_sacct_says(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text("JobID|JobName|State|ExitCode\n17|train|FAILED|1:0\n")
    found = diagnose_folder(tmp_path)
    assert found.fault == "unknown"
    assert any("17|train|FAILED|1:0" in line for line in found.evidence)


def test_folder_without_evidence_is_an_error_that_lists_the_kinds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f'"""{TRACEBACK}"""')
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(RunError, match="no evidence") as caught:
        gather(tmp_path)
    assert "flight-recorder dumps" in str(caught.value)
    assert "sacct" in str(caught.value)


@pytest.mark.parametrize("how", ["Aborted", "Aborted (core dumped)", "Floating point exception", "Illegal instruction"])
def test_task_that_srun_saw_crash_is_the_rank(tmp_path: Path, how: str) -> None:
    (tmp_path / "slurm-17.out").write_text(
        f"step 1\nsrun: error: n2: task 5: {how}\nsrun: error: n1: tasks 0-4: Killed\n"
    )
    for path in (tmp_path, tmp_path / "slurm-17.out"):
        found = diagnose_folder(path)
        assert (found.fault, found.rank) == ("crash", 5)
