"""Correct job files of many forms have no findings; explain finds each mistake planted in one of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from frog.cluster.jobfile.explain import TRAPS, explain

HERE = Path(__file__).parent
RIGHT = sorted((HERE / "right").iterdir())
PLANTED = tomllib.loads((HERE / "planted.toml").read_text())["planted"]


def codes(text: str, folder: Path) -> set[str]:
    return {finding.code for finding in explain(text, Path("job.sbatch"), None, (folder,)).findings}


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_correct_job_file_has_no_findings(path: Path, tmp_path: Path) -> None:
    assert codes(path.read_text(), tmp_path) == set()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted['right']}-{planted['code']}")
def test_planted_mistake_is_found(planted: dict[str, str], tmp_path: Path) -> None:
    (path,) = [path for path in RIGHT if path.stem == planted["right"]]
    text = path.read_text()
    assert planted["old"] in text
    assert planted["code"] in codes(text.replace(planted["old"], planted["new"], 1), tmp_path)


def test_published_files_have_sources_and_verdicts() -> None:
    files = tomllib.loads((HERE / "wild.toml").read_text())["file"]
    assert len({item["sha256"] for item in files}) == len(files) >= 60
    assert len({item["repository"] for item in files}) >= 40
    for item in files:
        assert item["why"]
        for key in (*item["true"], *item.get("debatable", ()), *item.get("false", ())):
            line, _, code = key.partition(":")
            assert line.isdigit()
            assert code in TRAPS
