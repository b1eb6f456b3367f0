"""A run folder of a program that is not Frog's, and a folder with what other tools leave of one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from frog.core.files import write_json

_SECOND = 10**9
_NOW = 1_700_000_000 * _SECOND
_LINE = {"file": "/home/ada/train.py", "line": 31, "function": "train"}
_TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 31, in train
    dist.barrier()
RuntimeError: [/pytorch/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4530
"""
_STACKS = """Process 4711: python train.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4159)
    train (train.py:31)
"""
_SLURM = """step 3: loss nan
[rank1]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600060 milliseconds.
[rank1]:[E321 02:07:08.5 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception detected by \
watchdog at work: 4, last enqueued NCCL work: 5, last completed NCCL work: 3.
slurmstepd: error: Detected 1 oom_kill event in StepId=17.0.
srun: error: n1: tasks 0,2-3: Exited with exit code 1
srun: error: n1: task 1: Killed
slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***
Root Cause (first observed failure):
  host      : node2
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 40)
"""
_SACCT = "JobID           JobName      State ExitCode\n------------ ---------- ---------- --------\n17 train "
"OUT_OF_ME+ 0:125\n"


def write_evidence(folder: Path) -> None:
    """Write `evidence/` and `runs/program/`."""
    _write_foreign(folder / "evidence")
    _write_run(folder / "runs/program")


def _write_foreign(folder: Path) -> None:
    folder.mkdir()
    for rank in range(3):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_dump(rank), 2 + rank))
    (folder / "fr_rank_3.json").write_text(json.dumps(_dump(3)))
    (folder / "slurm-17.out").write_text(_SLURM)
    (folder / "sacct.txt").write_text(_SACCT)
    (folder / "py-spy_rank_1.txt").write_text(_STACKS)
    (folder / "rank_2.err").write_text(_TRACEBACK)
    content = {"message": {"message": "KeyError: 1", "extraInfo": {"py_callstack": _TRACEBACK, "timestamp": "17"}}}
    write_json(folder / "attempt_0/1/error.json", content)


def _dump(rank: int) -> dict[str, Any]:
    entries = [
        {
            "record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce", "time_created_ns": _NOW + number * _SECOND, "is_p2p": False,
            "input_sizes": ((64 + (rank == 2 and number == 4),),), "output_sizes": ((64,),), "retired": number < 4,
            "input_dtypes": ["Float"], "state": "completed" if number < 4 else "started",
            "frames": [{"name": "train", "filename": "/home/ada/train.py", "line": 31}],
        }
        for number in range(1, 5)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {
        "version": "2.10",
        "pg_config": config,
        "pg_status": {"0": {"last_enqueued_collective": 4}},
        "entries": entries,
    }


def _write_run(folder: Path) -> None:
    program = {"command": ["train.py"], "kind": "script", "cwd": "/home/ada", "environment": {}}
    run = {
        "format": 2, "name": "program", "created": "2026-01-01T00:00:00+00:00", "argv": [], "config": {},
        "num_parameters": 0, "data": None, "versions": {}, "segments": [], "program": program,
    }  # fmt: skip
    write_json(folder / "run.json", run)
    for rank in range(2):
        _write_observed(folder / f"observed/attempt_0/rank_{rank}", rank)
        (folder / f"logs/rank_{rank}").mkdir(parents=True)
        (folder / f"logs/rank_{rank}/train.log").write_text(
            "".join(f"2026-01-01 10:51:38.123 rank {rank} | {line}\n" for line in _TRACEBACK.splitlines())
        )
    end = {"event": "exit", "attempt": 0, "node": 0, "node_rank": 0, "unix_ns": _NOW, "error": None, "traceback": None}
    lines = [json.dumps({**end, "rank": rank, "pid": 7 + rank, "code": -15 * rank or 1}) for rank in range(2)]
    (folder / "events").mkdir()
    (folder / "events/launcher.jsonl").write_text("\n".join(lines) + "\n")


def _write_observed(folder: Path, rank: int) -> None:
    about = {"format": 1, "rank": rank, "pid": 7 + rank, "unix_ns": _NOW}
    counts = [{"group": "0", "enqueued": 4 - rank, "completed": 3}]
    place = {"local_rank": rank, "node_rank": 0, "world_size": 2, "attempt": 0, "host": "n1"}
    samples = {"taken": 9, "in_collective": 3, "waiting": 4, "lines": [["train.py:31", 5]]}
    status = {
        **about, **place, "started_unix_ns": _NOW, "mono_ns": 5, "state": "running", "cpu_s": 1.5, "rss_bytes": 1 << 20,
        "groups": counts, "line": _LINE, "in": _LINE, "samples": samples, "in_message": rank == 1,
        "no_sync": {"entered": 9, "without_effect": 3, "line": _LINE},
    }  # fmt: skip
    write_json(folder / "status.json", status)
    entries = [
        {
            "group": "0", "seq": seq, "op": "all_reduce", "backend": "gloo", "sizes": [[64]], "dtypes": ["Float"],
            "created_unix_ns": _NOW + seq * _SECOND, "done": seq < 4, "line": _LINE, "stack": [_LINE],
        }
        for seq in range(1, 5 - rank)
    ]  # fmt: skip
    groups = {"0": {"description": "default_pg", "ranks": [0, 1]}}
    transfer = {"op": "recv", "peer": 1 - rank, "tag": 0, "size": [64], "dtype": "float32"}
    message = {**transfer, "op": "irecv", "group": "0", "number": 2, "line": _LINE, "done": rank == 0}
    messages = {"whole": True, "counts": [["irecv", 1 - rank, 0, "0", 2]], "last": [message]}
    collectives = {"frames": True, "groups": groups, "status": counts, "entries": entries, "messages": messages}
    write_json(folder / "collectives.json", {**about, **collectives})
    threads = [{"name": "MainThread", "main": True, "frames": [_LINE]}]
    write_json(folder / "stacks.json", {**about, "transfer": transfer, "threads": threads})
    if rank == 0:
        error = {"type": "RuntimeError", "message": "Connection closed by peer", "traceback": _TRACEBACK, "line": _LINE}
        write_json(folder / "error.json", {**about, **error, "frames": [_LINE]})
    (folder / "crash.txt").write_text("Fatal Python error: Aborted\n\nThread 0x0000 (most recent call first):\n")
