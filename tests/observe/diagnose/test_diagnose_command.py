"""`frog diagnose` reads files, folders and standard input, and gives one diagnosis of all of them."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.observe.diagnose.known_errors import read

ERROR = "RuntimeError: Address already in use\n"
OUT_OF_MEMORY = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 88, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.15 GiB
"""
OPTIONS = ([], ["--explain-log"])


def diagnosed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["diagnose", "--json", *words]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["diagnose", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("option", OPTIONS)
def test_files_are_explained_as_json(option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"a.log": "fine\n", "b.log": f"fine\n{ERROR}"}.items():
        (tmp_path / name).write_text(text)
    told = diagnosed(capsys, *option, str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert (told["cause"]["id"], told["cause"]["line"], told["cause"]["section"]) == ("port-in-use", 2, 18)
    assert told["cause"]["file"].endswith("b.log")
    assert (told["fault"], told["known_error"], told["certain"]) == ("port-in-use", "port-in-use", True)


@pytest.mark.parametrize("option", OPTIONS)
def test_standard_input_is_explained(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ERROR.encode() + b"\xff\x00\x1b[2J")))
    assert "port-in-use" in shown(capsys, *option, "-")


def test_option_and_file_give_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.log").write_text(OUT_OF_MEMORY)
    answer = shown(capsys, str(tmp_path / "job.log"))
    assert shown(capsys, "--explain-log", str(tmp_path / "job.log")) == answer
    assert "rank 1 ran out of GPU memory at train.py:88" in answer
    assert "Weights, gradients and optimizer state have a fixed size" in answer


@pytest.mark.parametrize("words", [["diagnose"], ["diagnose", "--explain-log", "missing.log"], ["diagnose", "-", "-"]])
def test_missing_log_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "try:" in capsys.readouterr().err


def test_only_the_ends_of_a_huge_log_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(read, "HEAD", 100)
    monkeypatch.setattr(read, "TAIL", 100)
    path = tmp_path / "huge.log"
    path.write_text("start\n" + "x" * 40 + "\n" + ERROR * 50 + "y\n" * 5000 + "KeyError: 7\n")
    told = diagnosed(capsys, str(path))
    assert told["cause"]["id"] == "port-in-use"
    assert told["lines"] < 100
    assert [other["exception"] for other in told["others"]] == ["KeyError"]


def write_dump(path: Path, *ops: str) -> None:
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": seq, "profiling_name": f"nccl:{op}",
         "input_sizes": [[64]], "input_dtypes": ["Float"], "state": "completed" if seq == 1 else "scheduled",
         "time_created_ns": seq * 10**9, "frames": []}
        for seq, op in enumerate(ops, 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": entries, "pg_config": config, "pg_status": {}}, 2))


def test_folder_with_dumps_and_a_log_give_one_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dumps show only who waits; the log of the other rank shows why."""
    folder, log = tmp_path / "dumps", tmp_path / "job.log"
    folder.mkdir()
    write_dump(folder / "nccl_trace_rank_0", "all_reduce", "broadcast")
    assert diagnosed(capsys, str(folder))["fault"] in ("gone", "network")
    log.write_text(OUT_OF_MEMORY)
    for paths in ((folder, log), (log, folder)):
        told = diagnosed(capsys, *map(str, paths))
        assert (told["fault"], told["rank"]) == ("memory", 1)
        assert told["collective"].startswith("broadcast of 64")
        assert told["known_error"] == "gpu-out-of-memory"


def test_logs_in_a_folder_are_read_for_known_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node0.out").write_text("2026-01-02 03:04:09 ERROR Connection closed by peer\n")
    (tmp_path / "node1.out").write_text(f"2026-01-02 03:04:05 {ERROR}")
    told = diagnosed(capsys, str(tmp_path))
    assert (told["fault"], told["cause"]["file"]) == ("port-in-use", "node1.out")


def test_earliest_error_of_several_files_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("2026-01-02 03:04:09 RuntimeError: CUDA error: device-side assert triggered\n")
    (tmp_path / "b.log").write_text(f"2026-01-02 03:04:05 {ERROR}")
    told = diagnosed(capsys, str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert told["cause"]["id"] == "port-in-use"


@pytest.mark.parametrize("text", ["fine\n", "loading\nstep 3/10 loss 2.1\n", ""])
def test_log_without_proof_of_success_is_not_called_healthy(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(text)
    told = diagnosed(capsys, str(tmp_path / "job.log"))
    assert (told["fault"], told["outcome"], told["certain"]) == ("unknown", "unknown", False)
    assert "nothing proves that the program succeeded" in told["finding"]
    answer = shown(capsys, str(tmp_path / "job.log"))
    assert "read: " in answer
    assert "looked for: " in answer
    assert "more evidence helps" in answer


@pytest.mark.parametrize(
    "text", ["step 9/10\nstep 10/10 loss 2.1\nsaved\n", "100%|###| 500/500 [01:02<00:00, 8it/s]\n"]
)
def test_last_step_of_a_log_is_proof_of_success(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.log").write_text(text)
    told = diagnosed(capsys, str(tmp_path / "job.log"))
    assert (told["fault"], told["outcome"]) == ("none", "completed")
    (tmp_path / "job.log").write_text(f"{text}Killed\n")
    assert diagnosed(capsys, str(tmp_path / "job.log"))["fault"] == "killed"


SUMMARY = """\
E0801 13:23:20.000000 974 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: 0
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2023-04-15_19:02:05
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 130182)
"""
FAILS = {
    "import": ('Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n    import flux\n'
               "ModuleNotFoundError: No module named 'flux'\n", 1, "module-not-found"),
    "arguments": ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr-rate\n", 2, "unknown-option"),
    "configuration": ('Traceback (most recent call last):\n  File "train.py", line 9, in main\n    read(path)\n'
                      "ConfigError: no key 'lr'\n", 1, "raise"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILS)
def test_torchrun_that_fails_before_a_rank_has_a_label_is_explained_by_its_traceback(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, code, fault = FAILS[case]
    (tmp_path / "job.log").write_text(text + SUMMARY.format(code=code))
    told = diagnosed(capsys, str(tmp_path / "job.log"))
    assert (told["fault"], told["rank"]) == (fault, 1)
    assert "without an exception" not in json.dumps(told)


def test_launchers_table_alone_does_not_show_that_there_was_no_exception(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(SUMMARY.format(code=1))
    told = diagnosed(capsys, str(tmp_path / "job.log"))
    assert (told["fault"], told["rank"], told["certain"]) == ("unknown", 1, False)
    assert "without an exception" not in json.dumps(told)
    assert "The launcher names rank 1 as the first that failed." in told["evidence"]


def test_rank_that_the_launcher_killed_later_is_not_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = "[{0}]:\n  time      : 2026-09-07_13:0{1}:00\n  host      : n1\n  rank      : {0} (local_rank: {0})\n"
    block += "  exitcode  : {2} (pid: 7)\n"
    blocks = block.format(1, 3, -9) + "Root Cause (first observed failure):\n" + block.format(0, 2, 1)
    (tmp_path / "job.log").write_text(f"torch.distributed.elastic: train.py FAILED\nFailures:\n{blocks}")
    told = diagnosed(capsys, str(tmp_path / "job.log"))
    assert (told["fault"], told["rank"], told["certain"]) == ("unknown", 0, False)
    (tmp_path / "job.log").write_text(
        f"torch.distributed.elastic: FAILED\nFailures:\n{blocks.replace(': 1 (', ': -6 (')}"
    )
    assert diagnosed(capsys, str(tmp_path / "job.log"))["rank"] == 0
