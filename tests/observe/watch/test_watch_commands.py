"""`frog watch`, `frog watch --text` and `frog report --timeline` as a user types them."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import LIMIT_S
from observe.watch.hung_program import hung_program
from synthetic_run import Synthetic, make_run

from frog.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", "none")


def test_text_shows_the_ranks_and_the_diagnosis_once_in_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hung_program(tmp_path / "runs" / "h")
    assert main(["watch", "h", "--text"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^h  failed  31\.0 s$", out, re.MULTILINE)
    assert re.search(
        r"^ +0  in a collective at prog\.py:3, waits for ranks 1, 2 and 3 +number 2: barrier", out, re.MULTILINE
    )
    assert re.search(r"^ +3  in a collective at prog\.py:5, waits for rank 0 +number 2: all_reduce", out, re.MULTILINE)
    assert "  ranks 1, 2 and 3: are in all_reduce of 4 float at prog.py:5 and wait for rank 0" in out
    assert "  >    3      dist.barrier()" in out
    assert "What to do: " in out


def test_text_of_a_trained_run_has_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "r", Synthetic(segments=[(2, 0, 12)], checkpoint_every=None))
    assert main(["watch", "--text"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"loss \d\.\d+ \(step 12\), tokens per second \d\d\.\d+ k \(step 12\)", out)
    assert "step 12, evaluate" in out


def test_timeline_is_one_file_in_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "r", Synthetic(segments=[(2, 0, 12)], checkpoint_every=None))
    assert main(["report", "r", "--timeline", "--open"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("timeline: runs/r/timeline.html (")
    assert "found no browser" in out
    assert "Frog watch" in (tmp_path / "runs/r/timeline.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["watch", "none"], "none: no run folder here or under runs/"),
        (["watch"], "no runs under runs/"),
        (["watch", "none", "--text"], "none: no run folder here or under runs/"),
        (["run", "--nproc", "1", "--open", "--", "my.py"], "--open and --port need --watch"),
        (["run", "--nproc", "1", "--watch", "--check", "--", "my.py"], "--watch cannot be combined with --check"),
    ],
    ids=str,
)
def test_mistake_is_an_error_with_a_hint(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.py").write_text("print(1)\n")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "try:" in error


def test_damaged_run_is_an_error_and_not_an_empty_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "r", Synthetic(segments=[(1, 0, 3)], checkpoint_every=None)).run_json.write_text("{")
    assert main(["watch", "r"]) == 2
    assert "run.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["watch"], ["run", "--watch", "--nproc", "1"]], ids=["watch", "run"])
@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_port_that_cannot_be_is_refused(port: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--port", port])
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_page_is_served_until_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    hung_program(tmp_path / "runs" / "h")
    words = [sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())", "watch", "h"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line, hint = process.stdout.readline(), process.stdout.readline()
        url = urlsplit(line.split()[-1])
        connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=LIMIT_S)
        connection.request("GET", url.path)
        assert connection.getresponse().status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert line.startswith("watching runs/h: http://127.0.0.1:")
    assert hint == "  Ctrl-C ends the page, not the run\n"
    assert (process.returncode, out, err) == (0, "", "")
