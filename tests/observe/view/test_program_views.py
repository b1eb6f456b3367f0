"""Views of a run folder of a program that is not Frog's: list, report, comparison."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from html import unescape
from pathlib import Path

import pytest
from core.runs.test_observed_files import STATUS, write
from observe.check.check_records import step, table
from observe.check.check_records import write as write_records
from synthetic_run import make_run

from frog.core.errors import FrogError, LaunchError, RunError
from frog.core.files import put_in_place, write_json
from frog.core.runs.folder import RunFolder
from frog.launch.launch_record import Journal, RecordedProgram
from frog.launch.program import parse_program
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.view.compare_runs import compare_runs
from frog.observe.view.report import render_report
from frog.observe.view.report_diagnosis import _places, source_of
from frog.observe.view.runs import list_runs, runs_table

SECRET = "hf_abcdef"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text("")
    return tmp_path


def recorded(*words: str) -> RecordedProgram:
    environment = {"NCCL_DEBUG": "INFO", "HF_TOKEN": SECRET, "SLURM_JOB_ID": "7", "HOME": "/root"}
    return RecordedProgram.create(parse_program(words or ("my.py", "--lr", "1 <&")), Path("runs"), environment)


def run_of_two_ranks(program: RecordedProgram, *, failed: bool) -> RunFolder:
    """Write what a launcher and two ranks leave."""
    folder = program.folder
    assert folder is not None
    journal = Journal(folder.path, folder)
    node = {"node": 0, "node_rank": 0, "attempt": 0}
    launch = {
        "pid": os.getpid(),
        "nodes": [],
        "ranks_per_node": 2,
        "program": ["my.py"],
        "restarts": 0,
        "network": None,
    }
    journal.record("launch", **launch)
    journal.record("world", **node, ranks=[0, 1], world_size=2, master_addr="", master_port=1, pids=[11, 12])
    for rank in range(2):
        folder.rank_log(rank).parent.mkdir(parents=True)
        folder.rank_log(rank).write_text(f"2026-11-26 10:00:00.000 rank {rank} | said <b>{rank}</b> \x1b[2J\n")
    if failed:
        journal.record("exit", **node, rank=1, pid=12, code=-9, error=None, traceback=None, left=[])
        error = {"type": "SIGKILL", "message": "", "rank": 1, "step": 0}
        record = {"format": 2, "status": "failed", "step": 0, "error": error, "ended": "", "wall_s": 3.25}
        folder.record_json.write_text(json.dumps(record))
    else:
        program.write_record(None, [], interrupted=False)
    return folder


def test_folder_has_command_versions_and_environment_without_secrets() -> None:
    folder = recorded().folder
    assert folder is not None
    run = folder.read_run_json()
    assert run.program is not None
    assert (run.program.command, run.program.cwd) == (["my.py", "--lr", "1 <&"], os.getcwd())
    assert run.program.environment == {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7"}
    assert {"frog", "python", "torch"} <= run.versions.keys()
    assert SECRET not in folder.run_json.read_text()


def test_second_run_has_its_own_folder() -> None:
    assert [recorded().folder, recorded().folder] == [RunFolder(Path("runs/my")), RunFolder(Path("runs/my-2"))]


def test_program_runs_without_a_folder_where_none_can_be_created(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").write_text("a file")
    program = RecordedProgram.create(parse_program(["my.py"]), Path("runs"), {})
    program.write_record(None, [], interrupted=False)
    assert program.folder is None
    assert "no run folder" in capsys.readouterr().err


def test_list_shows_status_and_world_but_no_steps() -> None:
    run_of_two_ranks(recorded(), failed=True)
    (row,) = list_runs(Path("runs"))
    assert (row.name, row.status, row.world_size, row.step) == ("my", "failed", 2, None)
    assert runs_table([row]).row_count == 1


def test_quiet_program_is_running_as_long_as_its_launcher_signs() -> None:
    folder = run_of_two_ranks(recorded(), failed=True)
    folder.record_json.unlink()
    lines = folder.launcher_events.read_text()
    old_ns = time.time_ns() - 10**12
    folder.launcher_events.write_text(
        "".join(json.dumps({**json.loads(line), "unix_ns": old_ns}) + "\n" for line in lines.splitlines())
    )
    assert list_runs(Path("runs"))[0].status == "running"
    os.utime(folder.launcher_events, ns=(old_ns, old_ns))
    assert list_runs(Path("runs"))[0].status == "died"


@pytest.mark.parametrize("failed", [True, False])
def test_report_says_how_each_rank_ended_and_what_is_unknown(failed: bool) -> None:
    html = render_report(run_of_two_ranks(recorded(), failed=failed))
    assert "my.py --lr &#39;1 &lt;&amp;&#39;" in html
    assert "Steps and losses: the program does not call frog.record." in html
    assert "the run was not observed" in html
    assert "said &lt;b&gt;1&lt;/b&gt; \\x1b[2J" in html
    assert ("SIGKILL on rank 1" in html) is failed
    assert f"<code>{Path(sys.argv[0]).name} " in html
    assert html[html.index('id="world"') :].count("was killed by SIGKILL") == failed
    assert html.count("ended with exit code 0") == (0 if failed else 2)


@pytest.mark.parametrize(("thread", "shown"), [("MainThread", True), ("Thread-1", False)])
def test_report_shows_the_line_of_the_error_that_ended_a_rank(thread: str, shown: bool) -> None:
    folder = run_of_two_ranks(recorded(), failed=True)
    line = {"file": "/home/me/train.py", "line": 41}
    write(folder.path, "status.json", {**STATUS, "rank": 1, "state": "failed", "line": None}, rank=1)
    error = {"format": 1, "rank": 1, "pid": 12, "unix_ns": 1, "type": "ValueError", "line": line, "thread": thread}
    write(folder.path, "error.json", error, rank=1)
    assert ("/home/me/train.py:41" in render_report(folder)) is shown


def test_report_of_a_stopped_program_counts_collectives_without_messages() -> None:
    """gloo counts messages as collectives: three of the five were one."""
    program = recorded()
    folder = run_of_two_ranks(program, failed=False)
    program.write_record(LaunchError("a user stopped it"), [], interrupted=True)
    numbers = (
        "rank",
        "local_rank",
        "node_rank",
        "attempt",
        "pid",
        "started_unix_ns",
        "unix_ns",
        "mono_ns",
        "rss_bytes",
    )
    counts = [{"group": "0", "enqueued": 5, "completed": 4}]
    zero = dict.fromkeys(numbers, 0)
    status = {**zero, "format": 1, "world_size": 2, "host": "a", "state": "running", "cpu_s": 1.0, "groups": counts}
    entry = {"group": "0", "op": "all_reduce", "backend": "gloo", "done": True}
    entries = [{**entry, "seq": 1}, {**entry, "seq": 2}]
    collectives = {"format": 1, "rank": 0, "pid": 0, "unix_ns": 0, "frames": True, "status": counts, "entries": entries}
    own = folder.path / "observed/attempt_0/rank_0"
    write_json(own / "status.json", status)
    assert "4 of 5 in group 0" in render_report(folder)
    write_json(own / "collectives.json", collectives)
    html = render_report(folder)
    assert "2 of 3 in group 0" in html
    assert html.count("was stopped with the program") == 2


def test_report_draws_what_the_program_recorded() -> None:
    folder = run_of_two_ranks(recorded(), failed=False)
    content = json.loads(folder.run_json.read_text())
    made = make_run(folder.path.parent / "made")
    put_in_place(made.events, folder.events)
    folder.run_json.write_text(json.dumps(content))
    html = render_report(folder)
    assert "As the program recorded it" in html
    assert "does not call frog.record" not in html
    assert {finding.what for finding in compare_runs(folder, folder, 0.0).findings} >= {"loss of each rank"}


def test_report_of_a_program_of_another_launcher(here: Path) -> None:
    """Only the observers of its ranks, and frog.record, wrote in the folder."""
    folder = here / "runs/job"
    for rank, (state, second) in enumerate([("failed", 9), ("failed", 4)]):
        times = {"started_unix_ns": 10**9, "unix_ns": 10**9 * (1 + second), "node_rank": rank, "pid": 70 + rank}
        write(folder, "status.json", {**STATUS, **times, "rank": rank, "state": state}, rank=rank)
        error = {"format": 1, "rank": rank, "pid": 70 + rank, "unix_ns": second, "type": f"Error{rank}"}
        write(folder, "error.json", error, rank=rank)
    html = render_report(RunFolder(folder))
    for words in ("A program of another launcher on 2 ranks", "Error1 on rank 1", "2 nodes", "9.0 s", ">71</td>"):
        assert words in html
    assert "another launcher started the ranks, and has them" in html
    assert "does not call frog.record" in html
    for words in ("Error0 on rank", "The end of each log", "<h2>Program</h2>", "Its log is below", "run.json"):
        assert words not in html
    (folder / "observed/attempt_0/rank_0/status.json").write_text("{")
    assert "attempt_0/rank_0/status.json: not valid JSON" in render_report(RunFolder(folder))
    put_in_place(make_run(here / "made").events, folder / "events")
    html = render_report(RunFolder(folder))
    assert "As the program recorded it" in html
    assert "does not call frog.record" not in html


def test_report_of_a_hang_blames_no_rank() -> None:
    folder = run_of_two_ranks(recorded(), failed=True)
    folder.record_json.write_text(folder.record_json.read_text().replace("SIGKILL", "HangError"))
    html = render_report(folder)
    assert "No rank failed: the launcher ended all of them." in html
    assert "HangError on rank" not in html


def test_report_of_a_failed_program_begins_with_the_diagnosis() -> None:
    html = unescape(render_report(run_of_two_ranks(recorded(), failed=True)))
    assert html.index('id="diagnosis"') < html.index('id="error"') < html.index('id="world"')
    assert "rank 1 was killed by SIGKILL" in html[html.index('id="diagnosis"') : html.index('id="error"')]
    assert 'id="diagnosis"' not in render_report(run_of_two_ranks(recorded(), failed=False))


def test_lines_around_a_place_are_shown(here: Path) -> None:
    (here / "src").mkdir()
    (here / "src/loop.py").write_text("".join(f"line {number}\n" for number in range(1, 9)))
    roots = [here / "gone", here / "src"]
    shown = source_of("loop.py:5 (main)", roots)
    assert [(line.number, line.text, line.is_meant) for line in shown] == [
        (number, f"line {number}", number == 5) for number in range(2, 9)
    ]
    assert [line.number for line in source_of("loop.py:1", roots)] == [1, 2, 3, 4]
    assert [line.number for line in source_of("loop.py:8", roots)] == [5, 6, 7, 8]
    for place in ("loop.py:9", "other.py:1", "no place", "src:1"):
        assert source_of(place, [*roots, here]) == []


def test_both_places_of_a_diagnosis_are_shown_with_their_ranks(here: Path) -> None:
    (here / "loop.py").write_text("a\nb\n")
    diagnosis = Diagnosis("branch", "differs", rank=1, line="loop.py:1", peer_line="loop.py:2 (step)")
    assert [(place.who, place.place, len(place.lines)) for place in _places(diagnosis, [here], 2)] == [
        ("rank 1", "loop.py:1", 2),
        ("the other rank", "loop.py:2 (step)", 2),
    ]
    alone = _places(Diagnosis("hang", "waits", line="loop.py:1"), [], 4)
    assert [(place.who, place.lines) for place in alone] == [("the ranks", [])]


def test_report_shows_what_the_rules_say_of_the_numbers() -> None:
    folder = run_of_two_ranks(recorded(), failed=False)
    assert "The numbers" not in render_report(folder)
    for rank in range(2):
        write_records(folder.path, rank, [table(), step(1, gradients=[[7 + rank, 2.0 + rank]], weights=[[rank, 2.0]])])
    html = unescape(render_report(folder))
    assert "<strong>Certain:</strong> since step 1, the gradients of weight differ between ranks 0 and 1" in html
    assert "What to do: look between train.py:7 (main)" in html
    assert '<li class="rule-certain" title="replicas use equal gradients in each step">gradients <span>since' in html
    assert '<li class="rule-held" title="replicas begin with equal weights">weights-start</li>' in html
    assert '<li class="rule-unchecked" title="a loaded model has the keys of the file: not checked, no model' in html
    write_records(folder.path, 0, [table(), {"kind": "step"}, step(1)])
    assert "rank_0/checks.jsonl: line 4" in render_report(folder)


def test_report_of_a_program_that_wrote_nothing_else() -> None:
    folder = recorded().folder
    assert folder is not None
    html = render_report(folder)
    for words in ("No rank was started", "There are no logs", "no rank printed anything", "How the run ended"):
        assert words in html


def test_comparison_names_what_differs() -> None:
    a, b = (run_of_two_ranks(recorded(), failed=failed) for failed in (True, False))
    comparison = compare_runs(a, b, 0.0)
    outcomes = {finding.what: finding.outcome for finding in comparison.findings}
    assert outcomes.pop("end") == "different"
    assert outcomes.pop("results") == "not compared"
    assert set(outcomes.values()) == {"equal"}
    assert (comparison.verdict, comparison.exit_code) == ("different", 1)
    assert compare_runs(a, a, 0.0).verdict == "same program, same world, same end; results were not compared"


def test_program_is_not_compared_with_frogs_trainer() -> None:
    a, b = (run_of_two_ranks(recorded(), failed=False) for _ in range(2))
    content = json.loads(b.run_json.read_text())
    b.run_json.write_text(json.dumps({**content, "program": None}))
    with pytest.raises(RunError, match="runs/my: the program recorded no steps"):
        compare_runs(a, b, 0.0)


def test_damaged_files_are_shown_or_refused_by_name() -> None:
    folder = run_of_two_ranks(recorded(), failed=True)
    random_ = random.Random(26)
    whole = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    for _ in range(150):
        path = random_.choice(sorted(whole))
        data = bytearray(whole[path])
        for _ in range(random_.randrange(1, 6)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        path.write_bytes(bytes(data[: random_.choice([None, random_.randrange(len(data))])]))
        try:
            render_report(folder)
            list_runs(Path("runs"))
            compare_runs(folder, folder, 0.0)
        except FrogError as error:
            assert error.hint  # noqa: PT017
        path.write_bytes(whole[path])
