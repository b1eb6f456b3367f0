"""What the doctor says about the programs and the environment of a machine, and what each rank reports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.learn.doctor import doctor_rank, tools
from frog.learn.doctor.seen import Seen, attempt, read_reports


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each program answers: its path by name, and (code, stdout, stderr) or an exception by its words."""
    answers: dict[str, Any] = {}

    def ran(words: tuple[str, ...], **options: Any) -> Any:
        answer = answers[" ".join(words)]
        if isinstance(answer, Exception):
            raise answer
        answers["options"] = options
        return SimpleNamespace(returncode=answer[0], stdout=answer[1], stderr=answer[2])

    monkeypatch.setattr("shutil.which", lambda name: answers.get(name))
    monkeypatch.setattr("subprocess.run", ran)
    return answers


@pytest.mark.parametrize(
    ("code", "out", "err", "said"),
    [
        (0, "one\ntwo\n", "warning", "one"),
        (0, " \n one \n", "", "one"),
        (0, "", "OpenSSH\nmore", "OpenSSH"),
        (0, "\n", "\n", ""),
        (1, "", "first\nlast\n", ValueError("last")),
        (1, "out\nend", "error", ValueError("end")),
        (2, "", "", ValueError("make ended with 2")),
        (-9, "", " ", ValueError("make ended with -9")),
    ],
)
def test_program_says_its_first_line_or_its_last_error(
    code: int, out: str, err: str, said: str | ValueError, machine: dict[str, Any]
) -> None:
    machine |= {"make": "/bin/make", "make --version": (code, out, err)}
    if isinstance(said, str):
        assert tools.run("make", "--version") == said
        assert machine["options"]["timeout"] == 8
        assert machine["options"]["stdin"] == subprocess.DEVNULL
        env = machine["options"]["env"]
        assert (env["GIT_TERMINAL_PROMPT"], env["DOCKER_CLI_HINTS"]) == ("0", "false")
    else:
        with pytest.raises(ValueError, match=f"^{said}$"):
            tools.run("make", "--version")


def test_program_that_is_missing_or_does_not_start_is_named(machine: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^not found$"):
        tools.run("make", "--version")
    machine |= {"make": "/bin/make", "make --version": OSError(8, "Exec format error")}
    with pytest.raises(ValueError, match=r"^make: Exec format error$"):
        tools.run("make", "--version")


@pytest.mark.parametrize(
    ("prefix", "base", "conda", "found"),
    [("env", "", False, True), ("", "", True, True), ("env", "", True, True), ("", "", False, False)],
    ids=["a virtual environment", "conda's base", "conda's environment", "the system's Python"],
)
def test_environment_is_virtual_or_of_conda(
    prefix: str, base: str, conda: bool, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / prefix
    own.mkdir(exist_ok=True)
    if conda:
        (own / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / base))
    if found:
        assert tools._environment() == str(own)
    else:
        with pytest.raises(ValueError, match=f"^no virtual environment: {own} is the system's Python$"):
            tools._environment()


PIP = f"{sys.executable} -P -m pip --version"
LAB, NOTEBOOK = {"jupyter-lab": "/bin/jupyter-lab"}, {"jupyter-notebook": "/bin/jupyter-notebook"}
VERSIONS = {"jupyter-lab --version": (0, "4.2", ""), "jupyter-notebook --version": (0, "7.1", "")}
DOCKER = "docker version --format {{.Server.Version}}"


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("pip", {sys.executable: "x", PIP: (0, "pip 25.1 from /a/b (python 3.11)", "")}, "pip 25.1"),
        ("pip", {sys.executable: "x", PIP: (1, "", "No module"), "conda": "c", "conda --version": (0, "conda 24", "")},
         "conda 24"),
        ("pip", {sys.executable: "x", PIP: (1, "", "No module")}, ValueError("not found")),
        ("jupyter", LAB | NOTEBOOK | VERSIONS, "jupyter-lab 4.2"),
        ("jupyter", NOTEBOOK | VERSIONS, "jupyter-notebook 7.1"),
        ("jupyter", VERSIONS, ValueError("not found")),
        ("docker", {"docker": "d", DOCKER: (0, "27.1\n", "")}, "engine 27.1"),
        ("docker", {"docker": "d", DOCKER: (1, "", "a\nno daemon")}, ValueError("no daemon")),
        ("docker", {"docker": "d", DOCKER: subprocess.TimeoutExpired("docker", 8)},
         ValueError("the Docker engine did not answer within 8 s")),
        ("torchrun command", {}, ValueError("not on the PATH")),
        ("torchrun command", {"torchrun": str(Path(sys.executable).parent / "torchrun")},
         str(Path(sys.executable).parent / "torchrun")),
        ("rust", {"rustc": "r", "rustc --version": (0, "rustc 1.80", "")}, "rustc 1.80"),
        ("ssh", {"ssh": "s", "ssh -V": (0, "", "OpenSSH_9")}, "OpenSSH_9"),
        ("make", {"make": "m", "make --version": (0, "GNU Make 4", "")}, "GNU Make 4"),
        ("python", {}, sys.version.split()[0]),
    ],
)  # fmt: skip
def test_probe_of_a_program(name: str, answers: dict[str, Any], said: str | ValueError, machine: Any) -> None:
    machine |= answers
    if isinstance(said, str):
        assert tools.PROBES[name]() == said
    else:
        with pytest.raises(ValueError, match=f"^{said}$"):
            tools.PROBES[name]()


@pytest.mark.parametrize(
    ("term", "app", "said"),
    [("vscode", False, "this terminal runs in VS Code"), ("other", True, "APP"), ("other", False, "1.93")],
)
def test_vs_code_is_the_terminal_the_app_or_the_command(
    term: str, app: bool, said: str, machine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine |= {"code": "/bin/code", "code --version": (0, "1.93\nabc", "")}
    monkeypatch.setenv("TERM_PROGRAM", term)
    monkeypatch.setattr(tools, "_VS_CODE", tmp_path if app else tmp_path / "none")
    assert tools.PROBES["vs code"]() == said.replace("APP", str(tmp_path))


def test_slurm_names_what_is_missing(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    machine |= {"/sbin/slurmctld": "x", "/sbin/slurmctld -V": (0, "slurm 23.11", "")}
    monkeypatch.setattr(tools, "find_program", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(tools, "missing_programs", list)
    assert tools.PROBES["slurm"]() == "slurm 23.11"
    monkeypatch.setattr(tools, "missing_programs", lambda: ["slurmd", "munged"])
    with pytest.raises(ValueError, match=r"^not found: slurmd, munged$"):
        tools.PROBES["slurm"]()


@pytest.mark.parametrize(
    ("rank", "first", "last"),
    [(0, ["torch", "fork with torch", "cpu"], ["gpu"]), (1, [], ["transformers", "accelerate", "datasets"])],
)
def test_each_rank_reports_its_part(
    rank: int, first: list[str], last: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worlds: list[Any] = []
    for name in ("leave_with_parent", "bind_loopback", "_fork", "_computes", "_gpu", "_version"):
        monkeypatch.setattr(doctor_rank, name, lambda *_: "right")
    monkeypatch.setattr(doctor_rank, "FileStore", lambda *given: given)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *given, **named: worlds.append((given, named)))
    monkeypatch.setattr("torch.distributed.new_group", lambda ranks, timeout: (ranks, timeout.total_seconds()))

    def operation(rank: int, group: Any) -> None:
        assert group == ([0, 1], 5)

    monkeypatch.setattr(doctor_rank, "operations", lambda _store: {"one": operation, "two": operation})
    doctor_rank.main(rank, "file")
    seen = read_reports(capfd.readouterr().out)
    assert [one.name for one in seen] == [*first, "gloo one", "gloo two", *last]
    assert [one.name for one in seen if not one.ok] == []
    (((backend,), named),) = worlds
    assert (backend, named["store"], named["rank"], named["world_size"]) == ("gloo", ("file", 2), rank, 2)
    assert named["timeout"].total_seconds() == 60


def fails(error: Exception) -> Callable[[], str]:
    def look() -> str:
        raise error

    return look


@pytest.mark.parametrize(
    ("look", "ok", "text"),
    [
        (lambda: "a  b\n c", True, "a b c"),
        (lambda: "x" * 400, True, "x" * 300),
        (fails(ValueError("first\nsecond")), False, "first"),
        (fails(ValueError("")), False, "ValueError"),
        (fails(ValueError(" \n ")), False, "ValueError"),
    ],
)
def test_report_is_one_line_of_300_characters(
    look: Callable[[], str], ok: bool, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt("a", look)
    assert read_reports(capfd.readouterr().out) == [Seen(name="a", ok=ok, text=text, answered=True)]
