"""docs/observe/run-folder.md: its example runs, and its tables list the schema's fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from synthetic_run import Synthetic, make_run

from frog.core.runs.event_schema import FIELDS
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS

PAGE = (Path(__file__).parents[3] / "docs" / "observe" / "run-folder.md").read_text()


def test_documented_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "demo", Synthetic([(2, 0, 4), (1, 2, 4)], eval_every=None, checkpoint_every=None))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})
    said = re.sub(r"\d\.\d{3} s", "S s", capsys.readouterr().out)
    assert said.splitlines() == [
        "attempt None, rank 0: None, waited S s",
        "attempt None, rank 1: None, waited S s",
        "attempt None, rank 0: completed, waited S s",
    ]


@pytest.mark.parametrize(("title", "fields"), [("Rank events", FIELDS), ("Launcher events", LAUNCHER_FIELDS)])
def test_documented_tables_match_schema_fields(title: str, fields: dict[str, frozenset[str]]) -> None:
    _, _, rest = PAGE.partition(f"### {title}\n")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", rest.partition("\n#")[0], re.MULTILINE)
    assert {name: frozenset(re.findall(r"`(\w+)`", words)) for name, words in rows} == fields
