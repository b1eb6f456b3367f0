"""The table of commands: complete, grouped under headings, with valid examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S

from frog.cli import _parser, main
from frog.core.commands import EXAMPLES, HEADINGS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def all_commands() -> Any:
    return _parser()


def test_every_command_has_a_heading_and_an_example(all_commands: Any) -> None:
    assert sorted(EXAMPLES) == sorted(all_commands.commands.choices)


@pytest.mark.parametrize("name", EXAMPLES)
def test_parser_of_one_command_equals_that_of_all(all_commands: Any, name: str) -> None:
    alone, of_all = _parser(name).commands.choices, all_commands.commands.choices
    assert name in alone
    assert len(alone) < len(of_all) / 2
    for one, parser in alone.items():
        assert parser.format_help() == of_all[one].format_help()
        assert parser.epilog is not None


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_the_command_of_its_name(all_commands: Any, name: str) -> None:
    frog, *words = shlex.split(EXAMPLES[name])
    assert (frog, words[0]) == ("frog", name)
    all_commands.parse_args(words)


def test_help_lists_the_commands_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    found = re.findall(r"^(?:(\S.*)|  (\w+) .*)$", said, re.MULTILINE)
    listed: dict[str, list[str]] = {}
    for heading, command in found:
        if heading in HEADINGS:
            listed[heading] = []
        elif command:
            listed[next(reversed(listed))].append(command)
    assert listed == {heading: list(commands) for heading, commands in HEADINGS.items()}


def test_frog_without_arguments_shows_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert [command in said for command in ("frog learn init", "frog init", "frog slurm explain")] == [True] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "'trian' is not a command; did you mean train?"),
        ("learn chek", "'chek' is not a command; did you mean check?"),
        ("slurm xyz", "'xyz' is not a command; valid: up, "),
    ],
)
def test_mistyped_command_gets_a_suggestion(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_map_has_every_command_in_one_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \[\w+\]\(.*README\.md\) \| .* \| (.*)\|$", page, re.MULTILINE)
    listed = [command for commands in rows for command in commands.strip().split(", ") if command]
    assert sorted(listed) == sorted(EXAMPLES)


def test_tour_has_every_command_under_its_heading() -> None:
    page = (ROOT / "docs" / "tour.md").read_text()
    table = page.partition("| command | what it is for |")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    for row in table.splitlines()[2:]:
        if heading := re.match(r"\| \*\*(.*)\*\* ", row):
            listed[heading[1]] = set()
        else:
            listed[next(reversed(listed))].update(re.findall(r"`frog (\w+)", row.split(" | ")[0]))
    assert listed == {heading: set(commands) for heading, commands in HEADINGS.items()}


def test_tour_links_every_page_for_users() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text()
    for_contributors = r"development/|learn/exercises\.|teach/(?!README)|(?:README|architecture|tour)\."
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if not re.match(for_contributors, page) and f"({page}" not in tour]
    assert missing == []


def test_invalid_choice_of_an_option_keeps_argparse_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "latest", "folder", "--to", "onnx"])
    assert "invalid choice: 'onnx'" in capsys.readouterr().err


def test_python_m_frog_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "frog", "--version"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert done.stdout.startswith("frog ")
