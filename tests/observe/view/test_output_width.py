"""Output of commands fits a terminal of 80 columns, wraps between words, and has no padding in a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from synthetic_run import Synthetic, make_run
from terminal_screen import FROG, environment, lines_of, output_in_pipe, output_in_terminal, shown_by

from frog.core.runs.folder import RunFolder
from frog.core.terminal import wrapped
from frog.train.log import RankLog

SAID = (
    "global batch 32 sequences = dp 2 x grad_accum 1 x micro-batch 16; 2,048 tokens a step; and what else a rank says"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_run(folder / "runs" / "pond")
    make_run(folder / "runs" / "lake", Synthetic(loss_noise=0.5, noise_from_step=11))
    make_run(folder / "runs" / "killed", Synthetic(segments=[(2, 0, 17)], status=None))
    for rank in (0, 1):
        with RankLog(RunFolder(folder / "runs" / "pond").rank_log(rank), rank, show=False) as log:
            log.say(SAID)
    return folder


COMMANDS = [
    *("runs", "compare pond lake", "logs pond", "diagnose killed", "compare pond puddle"),
    "learn init course --name Ada",
]


@pytest.mark.parametrize("words", COMMANDS)
def test_output_fits_terminal_and_wraps_between_words(project: Path, tmp_path: Path, words: str) -> None:
    in_init = words.startswith("learn")
    places = [tmp_path / "terminal", tmp_path / "pipe"] if in_init else [project, project]
    for place in places:
        place.mkdir(exist_ok=True)
    shown = lines_of(output_in_terminal([*FROG, *words.split()], 80, environment(), places[0]))
    assert [line for line in shown if len(line) > 80 and " " in line.strip()] == []
    piped = output_in_pipe([*FROG, *words.split()], environment(), places[1]).replace("/pipe", "/terminal")
    assert sorted(" ".join(shown).split()) == sorted(piped.split())


@pytest.mark.parametrize("words", COMMANDS[:-1])
def test_piped_output_has_no_padding_and_no_escapes(project: Path, words: str) -> None:
    output = output_in_pipe([*FROG, *words.split()], environment(), project)
    assert "\x1b" not in output
    assert [line for line in output.split("\n") if line != line.rstrip()] == []


@pytest.mark.parametrize("words", COMMANDS[:-1])
def test_no_color_removes_escapes(project: Path, words: str) -> None:
    assert "\x1b" not in output_in_terminal([*FROG, *words.split()], 80, environment(NO_COLOR="1"), project)


def test_comparison_lines_are_not_wrapped_in_a_pipe(project: Path) -> None:
    lines = output_in_pipe([*FROG, "compare", "pond", "lake"], environment(), project).split("\n")
    assert any(line.startswith("loss of each rank") and "; largest difference at step" in line for line in lines)


SAYS = """
import sys
from frog.train.log import RankLog
with RankLog(None, 0, show=True) as log:
    log.start_bar(0, 9)
    log.say(sys.argv[1])
"""


def test_rank_output_wraps_between_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAYS, SAID]
    assert output_in_pipe(command, environment(), tmp_path) == f"{SAID}\n"
    rows = shown_by(output_in_terminal(command, 80, environment(), tmp_path).replace("\n", "\r\n"))
    assert " ".join(rows[:2]) == SAID


def test_long_word_is_not_broken() -> None:
    path = "/scratch/" + "x" * 90
    assert wrapped(f"  the checkpoint {path} is missing", 40) == ["  the checkpoint", f"    {path}", "    is missing"]
    assert wrapped("short", None) == ["short"]
    assert wrapped("", 40) == [""]
