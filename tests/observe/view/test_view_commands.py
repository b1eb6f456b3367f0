"""The view commands as a user types them, and the list of runs."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from core.runs.test_observed_files import STATUS, write
from harness import LIMIT_S
from run_files import beat
from synthetic_run import Synthetic, make_run

from frog.cli import main
from frog.core import files
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder, find_evidence
from frog.observe.view.runs import list_runs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with three runs, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "pond")
    make_run(tmp_path / "runs" / "lake", Synthetic(loss_noise=0.5, noise_from_step=11))
    make_run(tmp_path / "runs" / "killed", Synthetic(segments=[(2, 0, 17)], status=None))
    return tmp_path


def test_report_accepts_name_folder_and_output_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "pond"]) == 0
    assert "report: runs/pond/report.html" in capsys.readouterr().out
    assert main(["report", "runs/pond", "-o", "out/page.html"]) == 0
    written = (project / "runs/pond/report.html").read_bytes()
    assert written.startswith(b"<!doctype html>")
    assert (project / "out/page.html").read_bytes() == written


@pytest.mark.parametrize(
    "words",
    [
        "report pond -o runs",
        "report pond -o file/page.html",
        "report pond -o /dev/null/page.html",
        "tensorboard pond --to file",
        "export pond --to hf file",
        "export pond --to hf /dev/null",
        "export pond --to hf link",
    ],
)
def test_invalid_output_path_is_rejected(project: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    """An existing folder or file at the output path is reported, and stays unchanged."""
    (project / "file").write_text("kept")
    (project / "link").symlink_to("nowhere")
    before = sorted(project.rglob("*"))
    assert main(words.split()) in (1, 2)
    said = capsys.readouterr().err
    assert re.match(r"error: \S+: .+\n  try: (name|another) .+\n", said)
    assert re.search(r"runs|file|/dev/null|link", said)
    assert sorted(project.rglob("*")) == before
    assert (project / "file").read_text() == "kept"


def test_missing_run_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["report", "puddle"], ["compare", "pond", "puddle"], ["tensorboard", "puddle"]):
        assert main(command) == 2
        assert "puddle: no run folder here" in capsys.readouterr().err


def test_folder_that_only_an_observer_wrote_has_no_logs_and_no_checkpoints(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "runs/job/observed").mkdir(parents=True)
    for command in (["checkpoints", "job"], ["logs", "runs/job"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "runs/job: only an observer wrote here, so there are no logs and no checkpoints" in said
        assert "try: frog report runs/job, or frog diagnose runs/job" in said


def test_report_needs_a_rank_that_an_observer_has_seen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "runs/job/observed").mkdir(parents=True)
    assert main(["report", "job"]) == 2
    assert "runs/job" in capsys.readouterr().err


def observe(folder: Path, states: Sequence[str], unix_ns: int) -> None:
    """Write the statuses that the observers of ranks in these states left at a time."""
    for rank, state in enumerate(states):
        times = {"started_unix_ns": unix_ns, "unix_ns": unix_ns}
        own = {"rank": rank, "local_rank": rank, "world_size": len(states), "state": state}
        write(folder, "status.json", {**STATUS, **times, **own}, rank=rank)


@pytest.mark.parametrize(
    ("states", "age_s", "status"),
    [
        (["ended", "ended"], 60, "ended"),
        (["failed", "running"], 60, "failed"),
        (["running", "ended"], 60, "died"),
        (["running", "running"], 0, "running"),
    ],
)
def test_run_that_only_observers_wrote_is_listed_and_is_the_latest(
    project: Path, capsys: pytest.CaptureFixture[str], states: list[str], age_s: int, status: str
) -> None:
    (project / "runs/not-started/observed").mkdir(parents=True)
    observe(project / "runs/job", states, time.time_ns() - age_s * 10**9)
    assert main(["runs"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("job ")]
    assert row[1:3] == [status, "2"]
    assert find_evidence("latest").path == Path("runs/job")
    assert main(["logs", "latest"]) == 2
    assert "runs/job: only an observer wrote here" in capsys.readouterr().err
    assert main(["report", "latest"]) == 0
    html = (project / "runs/job/report.html").read_text()
    ends = {"ended": 2, "failed": 1, "died": 1, "running": 2}
    assert f'<span class="status status-{status}">{status}</span>' in html
    said = {
        "ended": "<td>reached the end of the program</td>",
        "failed": "<td>ended with an exception</td>",
        "died": "<td>gives no sign of life</td>",
        "running": "<td>is running</td>",
    }
    assert html.count(said[status]) == ends[status]
    make_run(project / "runs" / "later")
    os.utime(project / "runs" / "later" / "run.json", ns=(2**62, 2**62))
    assert find_evidence("latest").path == Path("runs/later")


def test_long_argument_is_shortened_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sample", "one", "--tokens", "3" + "x" * 100_000])
    said = capsys.readouterr().err
    assert "(100001 characters)" in said
    assert len(said) < 20_000


def test_non_utf8_prompt_is_rejected(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "one", "--prompt", "caf\udce9"]) == 2
    assert "--prompt: not UTF-8: 'caf\\udce9', character 3" in capsys.readouterr().err


def test_compare_prints_result_and_sets_exit_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "pond", "pond"]) == 0
    assert capsys.readouterr().out.strip().endswith("bitwise equal")
    assert main(["compare", "pond", "lake"]) == 1
    out = capsys.readouterr().out
    assert "diverges at step 11, rank 0" in out
    assert out.strip().endswith("different")
    assert main(["compare", "pond", "lake", "--rtol", "0.9"]) == 0
    assert main(["compare", "pond", "lake", "--rtol", "nan"]) == 2


def test_runs_command_lists_known_values(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "runs" / "broken").mkdir()
    (project / "runs" / "broken" / "run.json").write_text("{")
    (project / "runs" / "strange").mkdir()
    write_json(project / "runs" / "strange" / "run.json", {"config": 3, "segments": [{}]})
    (project / "runs" / "no-run").mkdir()
    rows = {row.name: row for row in list_runs(Path("runs"))}
    assert {name: row.status for name, row in rows.items()} == {
        "pond": "completed",
        "lake": "completed",
        "killed": "died",
        "broken": "unreadable",
        "strange": "unreadable",
    }
    assert (rows["killed"].step, rows["killed"].world_size) == (17, 2)
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "17/17" in out
    assert "60/60" in out
    assert "skipped runs/broken/run.json: not valid JSON" in out
    assert "skipped runs/strange" in out


def test_unreadable_heartbeat_is_reported_in_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(project / "runs" / "killed")
    write_json(folder.heartbeat(0), beat(unix_ns=1))
    assert main(["runs"]) == 0
    assert "skipped" not in capsys.readouterr().out
    for rank in (0, 1):
        folder.heartbeat(rank).write_text("{")
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.count("skipped runs/killed/heartbeats/rank_") == 1
    assert main(["diagnose", "killed"]) == 0
    assert capsys.readouterr().out.count("heartbeats/rank_0.json: not valid JSON") == 1


def test_runs_command_without_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "no runs under runs/" in capsys.readouterr().out


def test_run_of_another_machine_is_judged_by_last_heartbeat(project: Path) -> None:
    statuses = []
    for age_s in (1, 600):
        folder = RunFolder(project / "runs" / "killed")
        write_json(folder.heartbeat(0), beat(rank=0, host="elsewhere", unix_ns=time.time_ns() - int(age_s * 1e9)))
        statuses.append({row.name: row.status for row in list_runs(Path("runs"))}["killed"])
    assert statuses == ["running", "died"]


@pytest.mark.parametrize("command", ["report pond", "compare pond lake", "checkpoints pond", "tensorboard pond"])
def test_view_commands_do_not_import_torch(project: Path, command: str) -> None:
    code = "import sys\nfrom frog.cli import main\nmain(sys.argv[1:])\nsys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=project, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("words", [["runs"], ["report", "latest"], ["data", "list"]])
def test_unreadable_parent_folder_is_reported(
    words: list[str], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(files.os, "listdir", refuse)
    assert main(words) != 0
    assert f"error: {'data' if 'data' in words else 'runs'}: Permission denied" in capsys.readouterr().err
