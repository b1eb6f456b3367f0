"""The explanation of a log distinguishes the first cause from its consequences."""

from __future__ import annotations

import random
import string

import pytest

from frog.observe.diagnose.known_errors.explain import Explanation, explain_lines, explain_log
from frog.observe.diagnose.known_errors.lines import clean_lines
from frog.observe.diagnose.known_errors.log_answer import log_text
from frog.observe.diagnose.known_errors.table.known import Level
from frog.observe.diagnose.known_errors.tracebacks import TracebackReader

OUT_OF_MEMORY = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 88, in <module>
[rank1]:     main()
[rank1]:   File "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py", line 1518, in _call_impl
[rank1]:     return forward_call(*args, **kwargs)
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.15 GiB
"""
TIMEOUT = """\
[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=5449, NumelOut=5449, Timeout(ms)=600000) ran for 600061 \
milliseconds before timing out.
"""
TORCHRUN = """\
W0801 13:23:17.366000 32974 torch/distributed/elastic/multiprocessing/api.py:9] Sending process 3 closing signal SIGTERM
E0801 13:23:20.000000 32974 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/opt/conda/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2023-04-15_19:02:05
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 130182)
============================================================
"""
KEY_ERROR = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
    batch["labels"]
KeyError: 'labels'
"""


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


def test_exception_wins_over_its_consequences() -> None:
    found = explain(TIMEOUT.format(rank=0, seq=7) + OUT_OF_MEMORY + TORCHRUN)
    assert found.cause is not None
    assert found.cause.id == "gpu-out-of-memory"
    assert (found.rank, found.cause.line.number) == (1, 7)
    assert str(found.cause.frame) == "/home/u/train.py:88 in <module>"
    assert found.certain
    assert [other.id for other in found.others] == ["collective-timeout"]
    assert found.consequences == {"ended-by-launcher": 1, "launcher-summary": 4}


def test_unknown_exception_is_named_with_the_rank_that_the_launcher_reports() -> None:
    found = explain(KEY_ERROR + TORCHRUN)
    assert found.cause is not None
    assert (found.cause.id, found.cause.exception, found.rank) == ("exception", "KeyError", 1)
    assert "KeyError: 'labels'" in log_text("log", found)
    assert "/home/u/train.py:12 in main" in log_text("log", found)


def test_time_out_names_waiting_and_absent_ranks_and_is_not_certain() -> None:
    found = explain("".join(TIMEOUT.format(rank=rank, seq=7) for rank in (0, 1, 3)) + TORCHRUN)
    assert found.cause is not None
    assert found.cause.level is Level.SYMPTOM
    assert not found.certain
    assert found.details[0] == "Ranks 0, 1 and 3 waited in ALLREDUCE number 7 of 5449 elements."
    assert "rank 2" in found.details[-1]
    assert found.rank is None
    assert "several ranks" in log_text("log", found)


def test_task_of_srun_is_the_rank() -> None:
    assert explain("srun: error: node4: task 7: Out Of Memory\n").rank == 7


OUT_OF_MEMORY_ON_HOST = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=55.0. Some of the step tasks have been OOM Killed.
srun: error: n1: task 5: Out Of Memory
srun: error: n0: tasks 0-3: Terminated
"""


def test_rank_is_the_task_that_srun_names_after_slurmstepd() -> None:
    found = explain(OUT_OF_MEMORY_ON_HOST)
    assert found.cause is not None
    assert (found.cause.line.number, found.rank) == (1, 5)


def test_rank_is_unknown_if_srun_names_several_tasks() -> None:
    assert explain(OUT_OF_MEMORY_ON_HOST + "srun: error: n2: task 9: Out Of Memory\n").rank is None


def test_task_of_srun_is_not_a_rank_if_torchrun_started_the_ranks() -> None:
    agent = "W0801 13:23:17.366000 32974 torch/distributed/elastic/agent/server/api.py:9] Received 15 death signal\n"
    assert explain(agent + OUT_OF_MEMORY_ON_HOST).rank is None
    assert explain(agent + "srun: error: node4: task 7: Out Of Memory\n").rank is None


def test_time_out_names_the_rank_that_is_behind() -> None:
    found = explain(TIMEOUT.format(rank=0, seq=9) + TIMEOUT.format(rank=1, seq=7))
    assert "lowest number is that of rank 1" in " ".join(found.details)


def test_consequences_alone_give_no_answer() -> None:
    found = explain(TORCHRUN)
    assert found.cause is None
    assert "no cause in this log" in log_text("log", found)
    assert "names rank 1" in log_text("log", found)


def test_unmatched_log_shows_the_last_lines_that_look_like_errors() -> None:
    found = explain("all fine\nfoo: the flux failed: 7\nbye\n")
    assert found.cause is None
    assert "line 2: foo: the flux failed: 7" in log_text("log", found)
    assert "no known error matches" in log_text("log", found)


def test_traceback_without_its_exception_gives_no_answer() -> None:
    found = explain(KEY_ERROR.rpartition("KeyError")[0])
    assert found.cause is None
    assert "before its exception" in log_text("log", found)


@pytest.mark.parametrize(
    "form",
    [
        "{}", "[default1]:{}", "[1,1]<stderr>:{}", "> {}", "\x1b[31m{}\x1b[0m", "2024-05-01T10:00:00.123Z stderr F {}",
        "[2024-05-01 10:00:00,123] {}", "(RayTrainWorker pid=81, ip=10.0.0.7) {}", "trainer-worker-0 | {}",
        "[pod/train-abc/main] {}", "x1000c0: {}", "stderr: {}",
        "(Worker pid=9) ERROR 04-17 09:00:33 ray_utils.py:44] {}",
        "[2024-02-27T21:35:34.295662Z] fa88a9df || {}", " 1: {}",
        "[36m(TaskRunner pid=3)[0m {}", "1: 2024-05-01 10:00:00 {}",
    ],
)  # fmt: skip
def test_prefixes_do_not_hide_a_traceback(form: str) -> None:
    lines = [form.format(line) for line in KEY_ERROR.splitlines()]
    found = explain_log(lines)
    assert found.cause is not None
    assert found.cause.exception == "KeyError"
    assert found.rank == (1 if form.strip().startswith("1:") or "default1" in form or "1,1" in form else None)
    assert str(found.cause.frame) == "/home/u/train.py:12 in main"


@pytest.mark.parametrize("prefix", ["E   ", "torch.run: [ERROR] ", "E0207 07:54:31.862000 47 torch/x/api.py:939] "])
def test_prefixes_of_a_traceback_without_its_first_line_are_known(prefix: str) -> None:
    found = explain_log([prefix + line for line in KEY_ERROR.splitlines()[1:]])
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("KeyError", "/home/u/train.py:12 in main")


def test_alternating_lines_of_two_ranks_are_two_tracebacks() -> None:
    one = [f"[rank0]: {line}" for line in KEY_ERROR.splitlines()]
    other = OUT_OF_MEMORY.splitlines()
    mixed = [line for pair in zip(one, other, strict=False) for line in pair] + other[len(one) :]
    found = explain_log(mixed)
    assert found.cause is not None
    assert (found.cause.exception, found.rank) == ("KeyError", 0)
    assert [other.id for other in found.others] == ["gpu-out-of-memory"]


def test_exception_inside_a_loader_worker_is_the_cause() -> None:
    lines = [
        "Traceback (most recent call last):\n",
        '  File "train.py", line 3, in <module>\n',
        "RuntimeError: Caught ValueError in DataLoader worker process 0.\n",
        "Original Traceback (most recent call last):\n",
        '  File "data.py", line 7, in __getitem__\n',
        "ValueError: bad sample\n",
    ]
    whole, cut = explain_log(lines), explain_log(lines[:-1])
    assert whole.cause is not None
    assert (whole.cause.exception, str(whole.cause.frame)) == ("ValueError", "data.py:7 in __getitem__")
    assert cut.cause is not None
    assert (cut.cause.exception, cut.certain) == ("RuntimeError", False)
    says_nothing = explain_log([line.replace("ValueError", "RuntimeError") for line in lines[:-1]])
    assert (says_nothing.cause, says_nothing.cut) == (None, True)


def test_warning_about_a_barrier_is_shown_only_with_an_answer() -> None:
    """torch writes it in most programs that call a barrier, and they continue."""
    warning = "[rank0]:[W501 21:01:27.1 ProcessGroupNCCL.cpp:4561] using GPU 0 to perform barrier as devices used by"
    warning += " this process are currently unknown. This can potentially cause a hang"
    assert explain(warning).cause is None
    found = explain(f"{warning}\n{KEY_ERROR}")
    assert found.cause is not None
    assert [other.id for other in found.others] == ["barrier-without-device"]


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("The above exception was the direct cause of the following exception:", "KeyError"),
        ("During handling of the above exception, another exception occurred:", "ValueError"),
    ],
)
def test_cause_of_a_chain_is_its_direct_cause_else_its_last_exception(link: str, named: str) -> None:
    found = explain(f"{KEY_ERROR}\n{link}\n\n{KEY_ERROR.replace('KeyError', 'ValueError')}")
    assert found.cause is not None
    assert found.cause.exception == named


def test_code_of_a_long_chain_has_each_traceback_once() -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    reader = TracebackReader()
    for line in clean_lines(during.join([KEY_ERROR] * 12).splitlines(), "log"):
        reader.read(line)
    [last] = reader.rest()
    assert last.code.splitlines() == ["/home/u/train.py in main", 'batch["labels"]'] * 9


def test_traceback_in_a_spawned_process_is_the_cause_with_its_process_as_rank() -> None:
    found = explain(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 9, in <module>\n'
        "    mp.spawn(main, nprocs=2)\n"
        "Exception: \n\n-- Process 1 terminated with the following error:\n" + KEY_ERROR
    )
    assert found.cause is not None
    assert (found.cause.exception, found.rank) == ("KeyError", 1)


@pytest.mark.parametrize(
    "text",
    [
        KEY_ERROR.partition("\n")[2],
        KEY_ERROR.splitlines()[-1],
        KEY_ERROR.replace("\n", " "),
        "```\n" + KEY_ERROR + "```",
        "\n".join(f"> {line}" for line in KEY_ERROR.splitlines()),
        KEY_ERROR.replace("KeyError", "frog.errors.KeyError").replace("\n", "\r\n"),
    ],
    ids=["without its first line", "only its last line", "in one line", "in a code block", "quoted", "from Windows"],
)
def test_pasted_traceback_is_recognized(text: str) -> None:
    found = explain(text)
    assert found.cause is not None
    assert found.cause.exception == "KeyError"


@pytest.mark.parametrize("words", ["Exception ignored in: <function f at 0x7f>", "--- Logging error ---"])
def test_exception_that_does_not_end_the_process_is_ignored(words: str) -> None:
    assert explain(f"{words}\n{KEY_ERROR}").cause is None
    found = explain(f"{words}\n{KEY_ERROR}\nlater\n" + KEY_ERROR.replace("KeyError", "ValueError"))
    assert found.cause is not None
    assert found.cause.exception == "ValueError"


def test_traceback_of_a_ray_task_is_the_exception_inside() -> None:
    found = explain(
        "ray.exceptions.RayTaskError(KeyError): ray::Worker.run() (pid=7, ip=10.0.0.7)\n"
        '  File "/home/u/train.py", line 12, in main\n'
        "    batch['labels']\n"
        "KeyError: 'labels'\n"
    )
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("KeyError", "/home/u/train.py:12 in main")


def test_frames_in_a_box_are_read() -> None:
    found = explain(
        "╭───────────────── Traceback (most recent call last) ─────────────────╮\n"
        "│ /home/u/train.py:12 in main                                         │\n"
        "│                                                                     │\n"
        "│   12     batch['labels']                                            │\n"
        "╰─────────────────────────────────────────────────────────────────────╯\n"
        "KeyError: 'labels'\n"
    )
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("KeyError", "/home/u/train.py:12 in main")


def test_line_of_another_process_inside_a_traceback_is_read() -> None:
    lines = KEY_ERROR.splitlines()
    lines.insert(
        2, "node1:17:99 [0] init.cc:4 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
    )
    found = explain_log(lines)
    assert found.cause is not None
    assert found.cause.id == "duplicate-gpu"
    assert [other.exception for other in found.others] == ["KeyError"]


@pytest.mark.parametrize(
    "remark",
    [
        "node1:7:8 [5] NCCL INFO TUNER/Plugin: Plugin load returned 2 : No space left on device",
        "[2024-06-26 11:41:45,126] [INFO] [launch.py:9:f] retry: Address already in use",
    ],
)
def test_remark_of_a_library_is_not_a_cause(remark: str) -> None:
    found = explain(remark + "\n" + KEY_ERROR)
    assert found.cause is not None
    assert found.cause.exception == "KeyError"
    alone, of_a_failed_job = explain(remark), explain(remark + "\n" + TORCHRUN)
    assert alone.cause is None
    assert len(alone.others) == 1
    assert of_a_failed_job.cause is not None
    assert not of_a_failed_job.certain
    assert "only this warning can explain it" in log_text("log", of_a_failed_job)


def test_warning_that_explains_the_error_is_the_cause() -> None:
    found = explain(
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
        "RuntimeError: No CUDA GPUs are available\n"
    )
    assert found.cause is not None
    assert found.cause.id == "driver-too-old"
    compiler = "cpp_extension.py:383: UserWarning: Error checking compiler version for cl: [WinError 2]\n"
    raised = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
    error = f"{raised}ImportError: cannot import name 'frob' from 'frobs' (frobs/__init__.py)\n"
    assert [cause and cause.id for cause in (explain(text).cause for text in (compiler, compiler + error))] == [
        None, "compiler-missing",
    ]  # fmt: skip


def test_line_before_a_traceback_that_is_cut_is_not_certain() -> None:
    line = "/etc/slurm/prolog.d/frob.sh: line 5: /run/frob: Permission denied\n"
    cut = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
    assert explain(line).certain
    assert not explain(line + cut).certain
    assert "whose exception is cut off" in log_text("log", explain(line + cut))


def test_message_of_several_lines_decides() -> None:
    found = explain(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-Ab12 (size 9637888)\n"
    )
    assert found.cause is not None
    assert found.cause.id == "shared-memory-too-small"


@pytest.mark.parametrize("begin", ["ERROR:torch.distributed.elastic.multiprocessing.api:", "Training (2 / 9):  33%|██"])
def test_lines_after_an_exception_do_not_belong_to_its_message(begin: str) -> None:
    found = explain(f"{KEY_ERROR}{begin}failed (exitcode: -9) local_rank\n")
    assert found.cause is not None
    assert found.cause.exception == "KeyError"
    assert found.cause.known is None


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("Killed", "killed"),
        ("/bin/bash: line 1: 12345 Killed                  python train.py", "killed"),
        ("Terminated", "terminated"),
    ],
)
@pytest.mark.parametrize("bar", ["449/1000 [12:00<14:33,  1.58s/it]", "9/10 [1:02:00<14:33,  1.58s/it, loss=2.1]"])
def test_shells_word_right_behind_a_progress_bar_is_read(bar: str, end: str, cause: str) -> None:
    first = f"Training:   0%|          | 0/1000 [00:00<?, ?it/s]\rTraining:  45%|####5     | {bar}"
    explanation = explain_log([f"{first}{end}\n"])
    assert explanation.cause is not None
    assert explanation.cause.id == cause
    assert explanation.last_step == ""


def test_first_failure_of_several_logs_is_chosen_by_time() -> None:
    late = clean_lines(f"2024-05-01 10:00:09 x\n{KEY_ERROR}".splitlines(), "a")
    soon = clean_lines(f"2024-05-01 10:00:03 x\n{KEY_ERROR.replace('KeyError', 'ValueError')}".splitlines(), "b")
    found = explain_lines([*late, *soon])
    assert found.cause is not None
    assert (found.cause.line.file, found.cause.exception) == ("b", "ValueError")


def test_warning_in_a_line_counts_only_if_nothing_else_does() -> None:
    warning = "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.\n"
    alone, both = explain(warning), explain(warning + KEY_ERROR)
    assert alone.cause is not None
    assert both.cause is not None
    assert (alone.cause.id, alone.certain) == ("tokenizers-fork", False)
    assert both.cause.exception == "KeyError"


def test_spliced_and_damaged_logs_are_explained_without_an_error() -> None:
    chance = random.Random(7)
    whole = OUT_OF_MEMORY + TIMEOUT.format(rank=3, seq=8) + KEY_ERROR + TORCHRUN
    for _ in range(300):
        text = list(whole)
        for _ in range(chance.randrange(40)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(60)] = chance.choices(
                string.printable + "…│\x1b\x00\ud800", k=chance.randrange(9)
            )
        found = explain("".join(text))
        assert len(log_text("log", found)) < 20_000
        found.as_json()


def test_long_log_is_explained_in_bounded_memory() -> None:
    found = explain_log(line for _ in range(3000) for line in KEY_ERROR.splitlines())
    assert found.lines == 12_000
    assert len(found.others) <= 8
