"""Right job files of many forms are silent; with one mistake planted in each, that mistake is found."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from frog.jobfile.explain import explain

HERE = Path(__file__).parent
RIGHT = sorted((HERE / "right").iterdir())
PLANTED = tomllib.loads((HERE / "planted.toml").read_text())["planted"]


def codes(text: str, folder: Path) -> set[str]:
    return {finding.code for finding in explain(text, Path("job.sbatch"), None, (folder,)).findings}


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_a_right_file_is_silent(path: Path, tmp_path: Path) -> None:
    assert codes(path.read_text(), tmp_path) == set()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted['right']}-{planted['code']}")
def test_a_planted_mistake_is_found(planted: dict[str, str], tmp_path: Path) -> None:
    (path,) = [path for path in RIGHT if path.stem == planted["right"]]
    text = path.read_text()
    assert planted["old"] in text
    assert planted["code"] in codes(text.replace(planted["old"], planted["new"], 1), tmp_path)
