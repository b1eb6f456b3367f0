"""An explanation prefers what failed first to what failed because of it, and the program's errors to its remarks."""

from __future__ import annotations

import pytest

from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.log_answer import log_text
from frog.observe.diagnose.known_errors.table.known import Level

TIME_OUT = (
    "[E ProcessGroupNCCL.cpp:475] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800762 milliseconds before timing out.\n"
)
UNKNOWN = 'Traceback (most recent call last):\n  File "train.py", line 26, in step\n    run()\nPeerGone: no answer\n'
UNKNOWN = UNKNOWN.replace("PeerGone", "PeerGoneError")
REACHED_LIMIT = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
NOT_CONNECTED = (
    "n2:31:40 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.1.2.3<4321> failed : refused\n"
)
OUT_OF_MEMORY = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LAUNCHER = "E0801 13:23:20.000000 32974 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)\n"


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


def answer(text: str) -> str | None:
    cause = explain(text).cause
    return cause.id if cause else None


def ranked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}" for line in text.splitlines(keepends=True))


def test_unknown_exception_after_a_time_out_leaves_the_cause_open() -> None:
    found = explain(TIME_OUT + UNKNOWN)
    assert found.cause is not None
    assert (found.cause.id, found.cause.level) == ("collective-timeout", Level.SYMPTOM)
    assert not found.certain
    assert [other.exception for other in found.others] == ["PeerGoneError"]


def test_unknown_exception_before_a_time_out_is_the_cause() -> None:
    assert answer(UNKNOWN + TIME_OUT) == "exception"


@pytest.mark.parametrize(("rank", "id"), [(0, "collective-timeout"), (1, "exception")])
def test_unknown_exception_of_a_rank_that_did_not_time_out_is_the_cause(rank: int, id: str) -> None:
    assert answer(TIME_OUT + ranked(rank, UNKNOWN)) == id


def test_time_limit_after_a_hang_is_not_the_cause() -> None:
    assert answer(TIME_OUT + REACHED_LIMIT) == "collective-timeout"
    assert answer(REACHED_LIMIT) == "slurm-time-limit"


def test_exception_that_a_signal_handler_raises_only_follows() -> None:
    assert answer(UNKNOWN.replace("in step", "in _sigterm_handler")) is None


def test_unknown_time_out_is_a_symptom() -> None:
    timed_out = UNKNOWN.replace("PeerGoneError", "GetTimeoutError")
    assert "it is a time-out" in log_text("log", explain(timed_out))
    assert answer(timed_out + OUT_OF_MEMORY) == "gpu-out-of-memory"


def test_line_of_another_program_before_a_traceback_is_read() -> None:
    assert answer(TIME_OUT.rstrip() + UNKNOWN) == "collective-timeout"


def test_lost_connection_yields_to_the_death_of_the_rank_behind_it() -> None:
    assert answer(NOT_CONNECTED + OUT_OF_MEMORY) == "gpu-out-of-memory"
    assert answer(NOT_CONNECTED + REACHED_LIMIT) == "nccl-cannot-connect"
    assert answer(NOT_CONNECTED + UNKNOWN) == "nccl-cannot-connect"


def test_error_of_nccl_without_its_reason_is_a_symptom() -> None:
    found = explain(
        UNKNOWN.replace("PeerGoneError: no answer", "RuntimeError: NCCL error in: /pytorch/torch/csrc/dist")
    )
    assert found.cause is not None
    assert (found.cause.id, found.certain) == ("nccl-error", False)


def test_shutdown_of_horovod_is_a_consequence() -> None:
    text = UNKNOWN.replace("PeerGoneError: no answer", "AbortedError: Horovod has been shut down. See the log")
    assert explain(text).cause is None
    assert explain(text).consequences == {"horovod-shut-down": 1}


@pytest.mark.parametrize(
    "announcement", ["Error in atexit._run_exitfuncs:\n", "Error in sys.excepthook:\n", "Exception ignored in: <f>\n"]
)
def test_exception_of_a_hook_is_not_the_cause(announcement: str) -> None:
    assert answer(announcement + UNKNOWN + LAUNCHER) is None
    assert answer(announcement + UNKNOWN + "Original exception was:\n" + UNKNOWN + LAUNCHER) == "exception"


def test_missing_package_without_which_the_program_goes_on_is_not_the_cause() -> None:
    missing = UNKNOWN.replace("PeerGoneError: no answer", "ModuleNotFoundError: No module named 'speedup'")
    remark = "speedup is missing, some optimizations will not be enabled.\n" + missing
    assert answer(remark) is None
    assert answer(remark + UNKNOWN) == "exception"
    assert answer(remark + TIME_OUT) == "collective-timeout"
    assert answer(remark + LAUNCHER) == "module-not-found"
    assert answer(missing + UNKNOWN) == "module-not-found"


def test_size_mismatch_that_the_loader_only_reports_is_a_remark() -> None:
    mismatch = "size mismatch for head.weight: copying a param with shape torch.Size([9]) from checkpoint\n"
    assert answer("The model and loaded state dict do not match exactly\n" + mismatch) is None
    assert answer(mismatch + UNKNOWN) == "exception"
    assert answer(f"RuntimeError: Error(s) in loading state_dict for Net:\n\t{mismatch}") == "checkpoint-size-mismatch"


@pytest.mark.parametrize(
    "words",
    [
        "A faster kernel is missing. Error caught was: No module named 'speedup'",
        "W tensorflow/dso_loader.cc:64] Could not load library 'libx.so.7': libx.so.7: cannot open shared object file",
        "rm: cannot remove 'old.log': No such file or directory",
        "wandb: WARNING Permission denied: ~/.config/wandb, using /tmp",
    ],
)
def test_words_of_many_harmless_lines_are_shown_beside_the_answer(words: str) -> None:
    for rest, cause in (("", None), (LAUNCHER, None), (UNKNOWN, "exception"), (TIME_OUT, "collective-timeout")):
        found = explain(f"{words}\n{rest}")
        assert (found.cause and found.cause.id) == cause
        assert found.others[-1].level is Level.ASIDE or cause is not None
        assert words[:40] in log_text("log", found)


def test_quoted_exception_is_an_answer() -> None:
    found = explain("`[rank1]: PermissionError: [Errno 13] Permission denied: '/.cache'`\n")
    assert found.cause is not None
    assert (found.cause.id, found.rank, found.certain) == ("permission-denied", 1, True)


@pytest.mark.parametrize("label", ["[default1]:", "[rank7]:", " 7: ", ""])
def test_own_prefix_of_torch_counts_behind_a_label_of_the_launcher(label: str) -> None:
    found = explain("".join(f"{label}[rank7]: {line}" for line in UNKNOWN.splitlines(keepends=True)))
    assert found.cause is not None
    assert (found.cause.exception, found.rank) == ("PeerGoneError", 7)


def test_line_numbers_and_half_colours_before_the_prefix_of_ray_are_no_text() -> None:
    lines = UNKNOWN.splitlines(keepends=True)
    found = explain("".join(f"{100 + n}[2m[36m(Trainer pid=3, ip=10.0.0.1)[0m {line}" for n, line in enumerate(lines)))
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("PeerGoneError", "train.py:26 in step")


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("n1:3:4 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'", "gpu-out-of-memory"),
        ("n1:3:4 [3] alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", "gpu-out-of-memory"),
        ("init.cc:12 NCCL WARN Mismatched collective detected, please check your calls", "collective-mismatch"),
        ("srun: error: Task launch for 3.0 failed on node n1: Job credential expired", "slurm-credentials"),
        ("NET/IB : Got async event : port active", "infiniband-event"),
        ("slurmstepd: error: couldn't chdir to `/home/u/run': No such file or directory", "slurm-working-folder"),
        ('srun: error: Munge encode failed: Failed to access "m": No such file or directory', "slurm-credentials"),
        ("ValueError: Size mismatch between saved torch.Size([8]) and current: torch.Size", "checkpoint-size-mismatch"),
        ("RuntimeError: all tensors must be on devices[0]", "ddp-device-ids"),
        ("ValueError: `FlatParameter` requires uniform dtype but got torch.int8 and torch.int", "fsdp-uniform-dtype"),
        ("The node 'n1_7' has failed to send a keep-alive heartbeat due to RendezvousConnectionError.", None),
        ("/var/spool/slurm_script: line 7: ./run.sh: Permission denied", "program-not-executable"),
        ("slurm_script: line 3: /opt/x/bin/activate: No such file or directory", "program-not-found"),
        ("include/socket.h:360 WARN Call to connect failed : Connection timed out", "nccl-cannot-connect"),
        ("  DiskPressure     False   Mon, 02 Jan 2023   KubeletHasNoDiskPressure", None),
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -9.", "killed"),
        ("*** An error occurred in MPI_Init_thread", "mpi-not-started"),
        ("docker.errors.NotFound: /data/a.bin: No such file or directory", "file-not-found"),
        ("Process 0 exited with error code 10 and exception:", None),
    ],
)  # fmt: skip
def test_line_leads_to_its_entry(line: str, id: str | None) -> None:
    assert answer(line) == id


def test_answer_about_an_exception_after_a_time_out_says_that_it_is_a_symptom() -> None:
    assert "it is a symptom" in log_text("log", explain(TIME_OUT + UNKNOWN))


def test_wrapper_of_ray_tune_is_not_a_cause() -> None:
    log = """Traceback (most recent call last):
  File "tune.py", line 8, in <module>
    raise TuneError("Trials did not complete", failed)
ray.tune.error.TuneError: ('Trials did not complete', [a:1])
slurmstepd: error: Detected 2 oom-kill event(s) in step 7.batch cgroup.
"""
    found = explain_log(log.splitlines())
    assert found.cause is not None
    assert found.cause.id == "host-out-of-memory"


def test_crash_of_a_process_precedes_the_words_that_a_worker_died() -> None:
    died = "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly\n"
    assert answer(died + "Process finished with exit code -1073741795 (0xC000001D)\n") == "illegal-instruction"
    assert answer(died + "ERROR:torch.x: failed (exitcode: -11) local_rank: 0 (pid: 7) of binary: python\n") == (
        "segmentation-fault"
    )
    assert answer(died + "\nKilled\n") == "dataloader-worker-died"


def test_socket_of_a_process_that_is_gone_is_no_missing_file() -> None:
    frames = '  File "/opt/python3.12/multiprocessing/connection.py", line 620, in SocketClient\n    s.connect(a)\n'
    text = f"Traceback (most recent call last):\n{frames}FileNotFoundError: [Errno 2] No such file or directory\n"
    found = explain(text)
    assert found.cause is not None
    assert (found.cause.id, found.certain) == ("helper-process-gone", False)


def test_actor_that_is_unavailable_is_a_worker_that_died() -> None:
    text = '[2026-01-02 03:04:05,462 W 17 38] task_manager.cc:1132: "The actor is temporarily unavailable: closed\n'
    assert answer(text) == "ray-worker-died"
