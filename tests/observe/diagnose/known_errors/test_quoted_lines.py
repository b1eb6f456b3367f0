"""A line that only quotes a known message, or warns of it, is not the cause; two causes are not one certain cause.

The lines have the form of the programs that print them; names, numbers and paths are invented.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.log_answer import log_text
from frog.observe.diagnose.known_errors.questions import asked
from frog.observe.diagnose.known_errors.table.known import Level
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

FAILED = "srun: error: n1: task 0: Exited with exit code 1\n"
STEPS = "step 10/100 loss 2.0\nstep 20/100 loss 1.9\n"


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


def answer(text: str) -> str | None:
    cause = explain(text).cause
    return cause.id if cause else None


@pytest.mark.parametrize(
    "line",
    [
        "export HCCL_CONNECT_TIMEOUT=1800",
        "+ export HCCL_EXEC_TIMEOUT=3600",
        "HCCL_EXEC_TIMEOUT=3600 \\",
        'raise RuntimeError("CUDA out of memory. Use a smaller batch")',
        'if "CUDA out of memory" in text:',
        'logger.warning("found NaN in local gradients")',
        'print("No space left on device")',
    ],
)
def test_line_of_a_script_or_of_code_is_no_cause(line: str) -> None:
    assert answer(f"  {line}\n") is None
    assert answer(f"{line}\n{FAILED}") is None


@pytest.mark.parametrize(
    "start",
    [
        "WARNING:root:",
        "2026-03-04 10:00:00,123 WARNING cache: ",
        "W0304 10:00:00.123000 17 cache.py:3] ",
        'time="10:00" level=warning msg=',
    ],
)
def test_warning_is_a_hint_and_only_if_the_job_failed(start: str) -> None:
    line = f"{start}No space left on device\n"
    assert answer(line + STEPS) is None
    found = explain(line + "Sending process 7 closing signal SIGTERM\n")
    assert found.cause is not None
    assert (found.cause.id, found.cause.level, found.certain) == ("disk-full", Level.HINT, False)
    later = "RuntimeError: Address already in use\n"
    assert answer(line + later) == "port-in-use"


def test_warning_that_another_process_died_stays_a_symptom() -> None:
    found = explain(
        "2026-03-04 10:00:00,1\tWARNING worker.py:1 -- A worker died or was killed while executing a task\n"
    )
    assert found.cause is not None
    assert (found.cause.id, found.cause.level) == ("ray-worker-died", Level.SYMPTOM)


def test_line_of_nccl_is_an_error_though_it_says_warn() -> None:
    found = explain("n1:7:8 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9)\n")
    assert found.cause is not None
    assert found.cause.level is Level.CAUSE


@pytest.mark.parametrize(
    "line",
    [
        "[NeMo I 2026-03-04 10:00:00 log:3] These keys are not in the checkpoint: ['layers.0.qkv._extra_state']",
        'time="10:00" level=info msg="retry after: No space left on device"',
        '{"levelname": "INFO", "message": "CUDA out of memory was handled"}',
        "INFO: Disk quota exceeded on another volume, which is not used",
    ],
)
def test_line_for_information_is_no_cause(line: str) -> None:
    assert answer(f"{line}\n") is None


MEMORY = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB\n"
DISK = "[rank0]: OSError: [Errno 28] No space left on device: '/scratch/step_9.pt'\n"


def test_two_causes_of_two_ranks_are_both_possible() -> None:
    found = explain(MEMORY + DISK)
    assert found.cause is not None
    assert (found.cause.id, found.certain) == ("gpu-out-of-memory", False)
    assert "Two causes are possible: this one, and disk-full in line 2." in log_text("log", found)


def test_cause_with_an_earlier_time_needs_no_second_one() -> None:
    found = explain(f"2026-03-04 10:00:00 {MEMORY}2026-03-04 10:00:09 {DISK}")
    assert found.rival is None
    assert found.certain


def test_second_cause_of_the_same_rank_follows_from_the_first() -> None:
    assert explain(MEMORY + DISK.replace("rank0", "rank1")).certain


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("NET/OFI No eligible providers were found\nNET/OFI Selected provider is cxi (found 4 nics)\n", None),
        ("NET/OFI No eligible providers were found\nRuntimeError: NCCL error in: a.cpp:1, unhandled system error\n",
         "libfabric-without-provider"),
        ('error: Warning: SPANK plugin "pyxis" option "container-image" not found\n', "pyxis-container"),
        ("error: spank: required plugin spank_pyxis.so: init_post_opt() failed with rc=-1\n", "pyxis-container"),
        ("srun: error: task 3 launch failed: Unspecified error\n", "slurm-launch-failed"),
        ("nv-fabricmanager[15]: fabric manager interface version 5.1 don't match with driver 5.2\n", "fabric-manager"),
        ("libtpu.so already in use by another process. Not attempting to load libtpu.so in this process.\n",
         "tpu-library-not-loaded"),
    ],
)  # fmt: skip
def test_line_of_a_cluster_leads_to_its_entry(text: str, id: str | None) -> None:
    assert answer(text) == id


TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
[1]:
  time      : 2026-03-04_10:00:00
  host      : n1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 17)
  error_file: <N/A>
"""


def test_rank_that_aborted_in_torchruns_table_alone_is_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(TABLE.format(rank=1, code=-6))
    assert diagnose_folder(log).fault == "unknown"
    log.write_text(TABLE.format(rank=1, code=-11))
    assert diagnose_folder(log).fault == "crash"


def test_tasks_that_srun_terminated_did_not_lose_the_task_without_a_line(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "error: *** STEP 17.0 ON n1 CANCELLED AT 2026-03-04T10:00:00 DUE TO TASK FAILURE ***\n"
        "srun: error: n1: tasks 0-2,4-7: Terminated\n"
    )
    found = diagnose_folder(log)
    assert found.fault == "unknown"
    assert "killed (SIGKILL)" not in found.finding


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-04 10:00:00 INFO the first step will compile kernels, this takes some minutes",
        "num_epochs: 10\nstandard_deviation: 0.02\nuse_amp: true",
        "NAME   RESTARTS   COMPLETED   SUSPENDED   AGE\nmy-job                          false     4s",
        "[trainer] waiting for all workers before each epoch",
        "It uses the standard settings for all epochs",
    ],
)
def test_what_a_program_prints_asks_no_question(text: str) -> None:
    assert asked(text) is None


def test_question_is_found_among_settings() -> None:
    question = asked("num_workers: 8\n\nThe CPU memory of the node grows with each epoch.\n\n[trainer] step 3 done")
    assert question is not None
    assert question.id == "host-memory-grows"


def test_unknown_exception_that_a_sentence_quotes_is_named_but_not_certain() -> None:
    found = explain("Since the update I get `ValueError: 'tpu9' is not a valid kind`, on each of my machines\n")
    assert found.cause is not None
    assert (found.cause.id, found.cause.exception, found.certain) == ("exception", "ValueError", False)
    assert found.cause.text == "ValueError: 'tpu9' is not a valid kind"


@pytest.mark.parametrize(
    "text",
    [
        "the following error occurs, `RuntimeError: Caught RuntimeError in replica 0 on device 0.`\n",
        "it says `ProcessRaisedException: process 3 failed`\n",
        'raise ValueError("TypeError: the name is wrong")\n',
        "the error `ValueError: a name` was\nSending process 7 closing signal SIGTERM\n",
    ],
)
def test_quoted_wrapper_of_another_error_is_no_answer(text: str) -> None:
    assert answer(text) is None


RAISED = (
    'Traceback (most recent call last):\n  File "/opt/env/lib/python3.11/site-packages/{}", line 9, in {}\n    {}\n{}\n'
)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (RAISED.format("torch/utils/data/_utils/signal_handling.py", "handler", "_error_if_any_worker_fails()",
            "RuntimeError: DataLoader wor"), "dataloader-worker-lost"),
        (RAISED.format("torch/utils/data/_utils/signal_handling.py", "handler", "_error_if_any_worker_fails()",
            "RuntimeError: DataLoader worker (pid 7) exited unexpectedly"), "dataloader-worker-died"),
        (RAISED.format("sagemaker/session.py", "wait", "raise error",
            "sagemaker.exceptions.UnexpectedStatusException: Failed. Reason: ExecuteUserScriptError:"), None),
        ("sbatch: error: --gpus-per-task or --tres-per-task used without either --gpus or -n/--ntasks is not allowed.\n"
            "sbatch: error: Invalid generic resource (gres) specification\n", "slurm-tasks-missing"),
        ("sbatch: error: Batch job submission failed: Invalid Trackable RESource (TRES) specification\n", "slurm-gres"),
        ("=>> PBS: job killed: walltime 3607 exceeded limit 3600\n", "slurm-time-limit"),
        ("=>> PBS: job killed: mem 9000kb exceeded limit 8000kb\n", "host-out-of-memory"),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "slurm-time-limit"),
        ("job preempted (node failure)\n", "slurm-node-failed"),
        ("Warning  FailedScheduling  Insufficient alpha.kubernetes.io/nvidia-gpu (3).\n", "kubernetes-no-gpu"),
        ("n1:7:8 [0] init.cc:255 NCCL WARN Cuda failure 'CUDA driver is a stub library'\n", "nccl-cuda-error"),
        ("n1:7:8 [0] init.cc:255 NCCL WARN Cuda failure 'out of memory'\n", "gpu-out-of-memory"),
        ("step 3\n已杀死\n", "killed"),
        ("step 3\n段错误 (核心已转储)\n", "segmentation-fault"),
    ],
)  # fmt: skip
def test_message_leads_to_its_entry(text: str, id: str | None) -> None:
    assert answer(text) == id


def test_exception_without_message_may_end_with_another_sign() -> None:
    found = explain(RAISED.format("a.py", "main", "assert n < 3", "AssertionError\uff0c"))
    assert found.cause is not None
    assert found.cause.exception == "AssertionError"
