"""Real runs of the site: their commands use existing names, and their pages show the results."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from frog.cli import _parser
from frog.core.config.load import load_run_config
from frog.core.config.strategies import AXES, DATA_STRATEGIES
from frog.core.errors import FrogError
from tools.site.examples import EXAMPLES, Example, Examples, _run, example_pages
from tools.site.nav import navigation

ROOT = Path(__file__).parents[3]


def test_each_strategy_has_an_example() -> None:
    assert {*DATA_STRATEGIES, *AXES, "chaos", "class"} == {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_commands_of_examples_exist(example: Example) -> None:
    text = "; ".join(example.commands)
    for words in re.findall(r"(?:^|[;(] ?|&& |do )frog ([^;)]+)", text):
        _parser().parse_args(shlex.split(words.replace("$who", "ada")))
    assert [path for path in re.findall(r"cp (src/\S+)", text) if not (ROOT / path).exists()] == []
    for words in re.findall(r"train (config/\S+) (.*)", text):
        sets = re.findall(r"--set (\S+)", words[1].partition(";")[0])
        load_run_config(ROOT / words[0], sets).check_world(2)


def test_example_page_shows_the_result_of_its_run(tmp_path: Path) -> None:
    assert example_pages(tmp_path) == Examples()
    (tmp_path / "class.html").write_text("<title>class</title>")
    found = example_pages(tmp_path)
    assert "[A class](class.md)" in found.pages["examples/README.md"]
    assert 'src="shown-class.html" title="' in found.pages["examples/class.md"]
    assert found.files == {"shown-class.html": tmp_path / "class.html"}


def test_navigation_lists_real_runs_only_if_they_exist() -> None:
    assert "Real runs" not in str(navigation(ROOT, {}))
    assert "Real runs" in str(navigation(ROOT, {"A class": "examples/class.md"}))


def test_failed_example_is_reported_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(FrogError, match=r"the example x did not create x\.html\n\$ echo why\nwhy\n"):
        _run(tmp_path, Example("x", "X", "", ("echo why",), "x.html"))
