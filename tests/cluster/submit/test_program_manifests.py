"""Kubernetes manifests for a program that is not Frog's: valid, complete, and refused where they could not work."""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.cluster.kubernetes.local_pod import expand
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.objects import Manifest
from frog.cluster.submit.submitted_work import LARGEST_NAMED, find_program_files
from frog.core.errors import UsageError
from frog.observe.environment import HOOK

sys.path.append(str(Path(__file__).parents[1] / "kubernetes"))

from manifest_schemas import documents, schema_problems  # isort: skip

FILES = {
    "my.py": "import os, pack.model\nfrom pack import data\nprint('é')\n",
    "pack/__init__.py": "",
    "pack/model.py": "from . import data\nfrom .deep.layer import x\n",
    "pack/data.py": "def late():\n    import helper.torch\n",
    "pack/deep/layer.py": "x = 1\n",
    "pack/__main__.py": "from pack import model\n",
    "helper.py": "",
    "unused.py": "",
    "run.sh": "#!/bin/sh\nexec python my.py\n",
    "configs/a.yaml": "a: 1\n",
    "configs/b.yaml": "b: 1\n",
}
PACKAGE = ["pack/__init__.py", "pack/data.py", "pack/deep/layer.py", "pack/model.py"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a program and make it the working folder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Submit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submit(project: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Return the exit code and the output of `frog submit --to kubernetes --dry-run` for a program."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["submit", "--to", "kubernetes", "--image", "any", "--dry-run", *words])
        return (code, *capsys.readouterr())

    return run


def manifest_of(text: str, folder: Path) -> Manifest:
    (folder / "job.yaml").write_text(text)
    return read_manifest(folder / "job.yaml")


@pytest.mark.parametrize(
    "words",
    [
        ["--nodes", "2", "--", "my.py"],
        ["--no-observe", "--restarts", "2", "--claim", "mine", "--", "-m", "elsewhere.train"],
        ["--no-gpus", "--name", "x", "--", "python", "my.py", "--config=configs/a.yaml"],
        ["--include", "configs", "--ranks-per-node", "1", "--", "./run.sh", "a b", "$(HOME) $$x ${y} `z` 'q'"],
        ["--", "/app/train.py"],
        ["--kind", "trainjob", "--nodes", "2", "--", "my.py", "$(HOME) $$x", "configs/a.yaml"],
        ["--kind", "trainjob", "--no-gpus", "--no-observe", "--claim", "mine", "--", "./run.sh"],
    ],
    ids=" ".join,
)
def test_manifest_of_a_program_is_valid_and_runs_here(submit: Submit, project: Path, words: list[str]) -> None:
    code, text, err = submit(*words)
    assert code == 0, err
    for document in documents(text).values():
        assert schema_problems(document) == []
    program = words[words.index("--") + 1 :]
    args = manifest_of(text, project).job.template.container.args
    received = [expand(word, {"HOME": "/tmp"}).replace("$$", "$") for word in args]  # by the kubelet, and by torchrun
    assert received[-len(program) :] == program or received[-len(program) + 1 :] == program[1:]
    assert f"-- {program[0]}" in text.splitlines()[0], "the command that made it"


@pytest.mark.parametrize(
    ("words", "include", "sent"),
    [
        (["my.py", "--lr", "0.1"], [], ["helper.py", "my.py", *PACKAGE]),
        (["-m", "pack"], [], ["helper.py", *PACKAGE, "pack/__main__.py"]),
        (["-m", "torch.elsewhere"], [], []),
        (["./run.sh", "configs/a.yaml"], [], ["configs/a.yaml", "run.sh"]),
        (["./run.sh", "--config=configs/a.yaml", "nothing.yaml"], ["my.py"], ["configs/a.yaml", "my.py", "run.sh"]),
        (["./run.sh"], ["configs", "un*.py"], ["configs/a.yaml", "configs/b.yaml", "run.sh", "unused.py"]),
    ],
)
def test_files_sent_are_imports_and_named_files(
    project: Path, words: list[str], include: list[str], sent: list[str]
) -> None:
    script = None if words[0] == "-m" else words[0]
    assert sorted(find_program_files(words, script, include, Path()).sent) == sorted(sent)


def test_binary_or_large_argument_must_be_on_the_volume(submit: Submit, project: Path) -> None:
    (project / "data.bin").write_bytes(b"\0\1")
    (project / "long.txt").write_text("x" * (LARGEST_NAMED + 1))
    code, text, err = submit("--", "my.py", "data.bin", "long.txt")
    assert code == 0, err
    assert "# The volume must have /workspace/data.bin: it is not in this file.\n" in text
    assert "# The volume must have /workspace/long.txt: it is not in this file.\n" in text
    assert "long.txt" not in documents(text)["ConfigMap"]["data"]


def imported(part: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return a part of the observer with everything that it imports."""
    seen |= {part}
    for node in ast.walk(ast.parse((HOOK / f"frog_observer/{part}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                if name not in seen:
                    seen = imported(name, seen)
    return seen


def test_config_map_has_the_program_and_the_observer(submit: Submit, project: Path) -> None:
    _, text, _ = submit("--", "my.py")
    manifest = manifest_of(text, project)
    volumes = manifest.job.template.volumes
    files = manifest.config_maps["frog-my-program"]
    assert {path: files.data[key] for key, path in volumes["program"].items.items()} == {
        name: FILES[name] for name in ["helper.py", "my.py", *PACKAGE]
    }
    with zipfile.ZipFile(BytesIO(files.content("observer.zip"))) as archive:
        names = set(archive.namelist())
    assert {"sitecustomize.py", "frog_observer/__init__.py"} <= names
    parts = imported("__init__") | {"faults", "profiler"}  # which variables of the environment start
    assert names == {"sitecustomize.py", *(f"frog_observer/{part}.py" for part in parts)}
    assert submit("--", "my.py")[1] == text, "the same files give the same manifest"


def test_paths_that_differ_only_in_a_separator_have_different_keys(submit: Submit, project: Path) -> None:
    (project / "pack.data.py").write_text("other = 1\n")
    code, text, err = submit("--include", "pack.data.py", "--include", "pack/data.py", "--", "./run.sh")
    assert code == 0, err
    items = documents(text)["Job"]["spec"]["template"]["spec"]["volumes"][1]["configMap"]["items"]
    assert {item["path"] for item in items} == {"run.sh", "pack.data.py", "pack/data.py"}
    assert len({item["key"] for item in items}) == 3


def test_restarts_are_only_for_a_program_that_resumes(submit: Submit) -> None:
    def spec(*words: str) -> Any:
        return documents(submit(*words, "--nodes", "2", "--", "my.py")[1])["Job"]["spec"]

    assert spec()["backoffLimit"] == 0
    assert "podFailurePolicy" not in spec()
    assert spec("--restarts", "3")["backoffLimit"] == 6
    assert spec("--restarts", "3")["podFailurePolicy"]["rules"][0]["action"] == "Ignore"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--", "missing.py"], "missing.py: no such file"),
        (["--", "../outside.py"], "../outside.py: is outside of this folder"),
        (["--", "PROJECT/my.py"], "an absolute path means a file of the image"),
        (["--include", "none", "--", "my.py"], "--include none: no such file"),
        (["--include", "../outside.py", "--", "my.py"], "must be below this folder"),
        (["--include", "/etc", "--", "my.py"], "must be below this folder"),
        (["--include", "data.bin", "--", "my.py"], "data.bin: not text in UTF-8"),
        (["--include", "huge.txt", "--", "my.py"], "a ConfigMap holds at most 1,048,576: huge.txt (2,000,000 bytes)"),
        (["--", "broken.py"], "broken.py: not valid Python"),
        (["--requeue", "--", "my.py"], "--requeue: only --to slurm has this option"),
        (["--kind", "trainjob", "--restarts", "1", "--", "my.py"], "the runtime of a TrainJob sets the number"),
        (["--", "torchrun", "--nproc-per-node=4", "my.py"], "torchrun: the job file starts torchrun"),
        (["--image", "", "--", "my.py"], "not a valid image name"),
        (["--include", "my.py", "run.toml"], "--include: cannot be combined with a run file"),
    ],
)
def test_program_that_could_not_work_is_refused(submit: Submit, project: Path, words: list[str], error: str) -> None:
    (project / "data.bin").write_bytes(b"\xff\xfe")
    (project / "huge.txt").write_text("x" * 2_000_000)
    (project / "broken.py").write_text("def (:\n")
    (project.parent / "outside.py").write_text("")
    code, out, err = submit(*(word.replace("PROJECT", str(project)) for word in words))
    assert (code, out) == (2, "")
    assert error in err


def test_program_needs_an_image(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--to", "kubernetes", "--dry-run", "--", "my.py"]) == 2
    assert "--image: name an image" in capsys.readouterr().err


def test_imports_of_a_loop_of_modules_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import a\n")
    assert find_program_files(["a.py"], "a.py", (), tmp_path).sent == ("a.py", "b.py")


def test_relative_import_beyond_the_top_does_not_leave_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.py").write_text("")
    (inner / "a.py").write_text("from ....secret import x\nfrom .. import secret\n")
    assert find_program_files(["a.py"], "a.py", (), inner).sent == ("a.py",)


def test_unreadable_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        find_program_files(["x"], None, ["**nothing**"], tmp_path)
