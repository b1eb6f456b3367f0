"""The notebooks: they are valid text notebooks, their links exist, and each runs from the first to the last cell."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import pytest
from harness import LIMIT_S
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("lab*.py"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
EXERCISE = re.compile(r"\blab\d/\d\d_\w+")
MAGIC = re.compile(r"^(\w+ = )?%{1,2}\w.*$", re.MULTILINE)
ABSOLUTE = re.compile(r"(?<![\w.<])/(?:home|Users|root|tmp|work|private|var)\b|[A-Z]:\\")
SAYS = {
    "lab0": [
        "in total: predicted 16, measured 16",
        "100,000 bytes arrived",
        "[7, 4, 10000] the same messages: True",
        "my half of the data, knobs: different on each rank",
    ],
    "lab1": [
        "predicted   664,192, measured   664,192",
        "predicted True, measured True",
        "alone: equal bit for bit: False",
    ],
    "lab2": [
        "equal on all ranks, bit for bit, in all steps: True",
        "within tolerance",
        "no sample on two ranks in any step: True",
        "the same samples as one process in every step: True",
        "the same on rank 1: True",
        "rank 2 fails in step 5",
        "weights: equal on all ranks",
        "the gradient of one process with all samples: True",
        "hang: rank 0 waits for rank 1",
        "; rank 1 never entered it",
    ],
    "lab4": [
        "ranks 0\u20133 │ in total: predicted 16, measured 16",
        "bytes per weight: predicted 10, measured 10",
        "ranks 0\u20133 │ the same weights as four copies: True",
        "hang: ranks 0, 1, 2 wait for rank 3",
    ],
    "lab5": [
        "columns, rows, hidden, partial: different on each rank",
        "ranks 0, 1 │ as one process computes it: True",
        "ranks 0, 1 │ summed after GELU:  False",
        "rank 1: waits for a message",
        "ranks 0, 1 │ each token is back in its place: True",
    ],
    "lab6": [
        "hang: ranks 0, 1, 2, 3 wait for each other",
        "sent 12 MB, predicted 12",
        "ranks 0\u20133 │ equal to torch's: True",
        "ring: equal on all ranks",
    ],
}
"""Output that must appear on every machine."""


def cells(path: Path, kind: str) -> list[str]:
    return [cell.source for cell in jupytext.read(path).cells if cell.cell_type == kind]


def test_labs_that_have_notebooks_link_them() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["lab0", "lab1", "lab2", "lab4", "lab5", "lab6"]
    for path in NOTEBOOKS:
        assert f"](../../notebooks/{path.name})" in (ROOT / f"docs/labs/{path.stem}.md").read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_a_valid_text_notebook(path: Path) -> None:
    notebook = jupytext.read(path)
    assert notebook.metadata["jupytext"]["text_representation"]["format_name"] == "percent"
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert len(cells(path, "markdown")) > 5
    assert ABSOLUTE.findall(path.read_text()) == []
    for source in cells(path, "code"):
        compile(MAGIC.sub("", source), path.name, "exec")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_links_exist(path: Path) -> None:
    text = "\n".join(cells(path, "markdown"))
    links = [target for target in LINK.findall(text) if "://" not in target]
    assert f"../docs/labs/{path.stem}.md" in links
    assert [target for target in links if not (path.parent / target).exists()] == []
    exercises = EXERCISE.findall(text)
    assert exercises
    assert [name for name in exercises if not (ROOT / "labs" / name).is_dir()] == []


def test_notebooks_are_committed_without_output() -> None:
    kept = subprocess.run(["git", "ls-files", "notebooks"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert [name for name in kept if not name.endswith((".py", ".md"))] == []


@pytest.fixture(scope="module")
def project(default_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the parts of the project that notebooks use, with the default data set prepared."""
    root = tmp_path_factory.mktemp("project")
    for name in ("config", "notebooks", "scripts"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__"))
    shutil.copytree(default_data, root / "data")
    return root


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SAYS)
def test_notebook_runs_from_first_to_last_cell(name: str, project: Path) -> None:
    folder = project / "notebooks"
    notebook = jupytext.read(folder / f"{name}.py")
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # instead of ports; a socket's path must be short
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
        place = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, config=config, resources=place, timeout=720, startup_timeout=LIMIT_S).execute()

    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    printed += "\n".join(output["data"]["text/plain"] for output in outputs if "data" in output)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert [line for line in SAYS[name] if line not in printed] == []
    plots = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(plots) == sum("plt.show()" in source for source in cells(folder / f"{name}.py", "code"))
