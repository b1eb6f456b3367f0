"""`frog doctor`: each probe detects problems, and its findings lead to the right advice for each lab."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from harness import LIMIT_S, Harness, run_to_end

from frog.cli import main
from frog.learn.doctor import machine, probes, tools
from frog.learn.doctor.doctor_text import as_json, as_text
from frog.learn.doctor.lab_verdict import judge
from frog.learn.doctor.needs import LABS, NEEDS, OPERATIONS
from frog.learn.doctor.seen import Seen, attempt, read_reports

WELL = {need.name: Seen(name=need.name, ok=True, text="right") for need in NEEDS}
BY_NAME = {need.name: need for need in NEEDS}
ALL = sorted(LABS)


def lacking(*names: str, text: str = "not found") -> dict[str, Seen]:
    return WELL | {name: Seen(name=name, ok=False, text=text) for name in names}


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, Seen]:
    return {seen.name: seen for seen in read_reports(capfd.readouterr().out)}


def test_port_probe_reads_until_every_byte_has_arrived() -> None:
    assert machine._ports(num_bytes=1 << 24).startswith("127.0.0.1:")


def test_machine_with_everything_runs_every_lab() -> None:
    assert all(judge(WELL, lab).runs and not judge(WELL, lab).instead for lab in ALL)
    text = as_text(WELL, ALL)
    assert [line for line in text.splitlines() if line.startswith("lab ")] == [
        f"lab {lab}, {name}: runs" for lab, name in LABS.items()
    ]
    assert "for later" not in text


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.name.replace(" ", "-"))
def test_missing_need_is_reported_only_for_labs_that_use_it(need: object) -> None:
    name = need.name  # type: ignore[attr-defined]
    this, seen = BY_NAME[name], lacking(name)
    for lab in ALL:
        verdict = judge(seen, lab)
        needed = lab in this.labs
        assert verdict.runs == (not needed or this.without is not None)
        assert verdict.instead == ((this,) if needed and this.without else ())
    text = as_text(seen, ALL)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    if not this.labs:
        assert f"  optional  {name}" in text
    assert this.without is not None or (this.macos and this.debian), "there must be something to do"
    shown = " ".join(text.split())
    for advice in (this.without, None if this.without and this.labs else this.macos):
        assert advice is None or " ".join(advice.split()) in shown


def test_need_names_are_unique_and_every_need_is_probed() -> None:
    assert len(BY_NAME) == len(NEEDS)
    in_processes = {name for probe in machine.PROBES.values() for name in probe} | tools.PROBES.keys()
    of_ranks = {"torch", "cpu", "gpu", "fork with torch", "transformers", "accelerate", "datasets"}
    gloo = {name for name in BY_NAME if name.startswith("gloo ")}
    assert BY_NAME.keys() == in_processes | of_ranks | gloo | {"torchrun", "temporary folder"}


def test_doctor_json_agrees_with_its_text() -> None:
    data = as_json(lacking("ports", "slurm", "rust"), ALL)
    assert json.loads(json.dumps(data))["labs"]["3"] == {
        "runs": False,
        "instead": {"slurm": BY_NAME["slurm"].without},
        "unknown": [],
        "install": {"ports": {"macos": BY_NAME["ports"].macos, "debian": BY_NAME["ports"].debian}},
    }
    states = {name: data["findings"][name]["state"] for name in ("ports", "slurm", "rust", "git")}
    assert states == {"ports": "missing", "slurm": "instead", "rust": "optional", "git": "ok"}


@pytest.mark.parametrize(
    ("missing", "words", "code"),
    [("slurm", "", 0), ("torchrun", "", 1), ("torchrun", "--lab 1", 0), ("torchrun", "--lab 2 --json", 1)],
)
def test_doctor_exits_with_1_if_a_lab_does_not_run(
    missing: str, words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "probe_machine", lambda deadline_s: lacking(missing))
    assert main(["doctor", *words.split()]) == code


def test_probes_without_an_answer_are_unknown_and_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (250.0, 1.0, 1.0))
    silent = probes._silence({"rank 0": None}, {}, 30.0)
    late = [need.name for need in NEEDS if need.section in ("PyTorch", "a world of two (gloo)")]
    seen = WELL | {name: probes._worst([], silent, name, False) for name in late}
    text = as_text(seen, ALL)
    shown = " ".join(text.split())
    assert f"{len(late)} of {len(NEEDS)} checks took too long, so nothing is known about torch, cpu, gpu" in shown
    assert "busy: load 250.0" in shown
    assert "no answer within 30 s; on a slow machine: frog doctor --deadline 120" in shown
    assert "missing" not in text
    assert "pip install" not in text
    assert len(text.splitlines()) < 60
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert "lab 1, the foundation: unknown: checks took too long" in text
    assert not any(judge(seen, lab).runs or judge(seen, lab).missing for lab in ALL)
    data = as_json(seen, ALL)
    assert data["findings"]["torch"]["state"] == "unknown"
    assert "torch" in data["labs"]["1"]["unknown"]


def test_probe_that_failed_explains_the_silence_of_its_needs() -> None:
    answered = probes._worst([], "the probe (rank 0) ended with 1: no torch", "torch", True)
    assert judge(WELL | {"torch": answered}, 1).missing == (BY_NAME["torch"],)


def test_probe_exception_is_reported_on_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise KeyError("first line\nsecond line")

    attempt("ports", fails)
    assert told(capfd)["ports"] == Seen(name="ports", ok=False, text="'first line\\nsecond line'")
    assert read_reports('frog-doctor: {"name": "cut sho') == []


def test_tools_missing_from_the_path_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "find_program", lambda name: name)
    monkeypatch.setattr(tools, "_VS_CODE", tmp_path / "no app")
    monkeypatch.setenv("TERM_PROGRAM", "")
    for name in ("git", "shell", "make", "ssh", "jupyter", "vs code", "docker", "rust", "torchrun command"):
        attempt(name, tools.PROBES[name])
    seen = told(capfd)
    assert len(seen) == 9
    assert not any(one.ok for one in seen.values())
    assert seen["git"].text == "not found"
    assert seen["shell"].text == "not found: bash, grep, cat, tail, head, chmod"


def program(folder: Path, name: str, lines: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_tools_that_fail_or_give_wrong_results_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path, "docker", "echo 'cannot connect to the engine' >&2; exit 1")
    program(tmp_path, "git", "echo 'xcode-select: note: no developer tools were found' >&2; exit 1")
    program(tmp_path, "grep", "echo three")
    program(tmp_path, "torchrun", "exit 0")
    for name in ("docker", "git", "git identity", "shell", "torchrun command"):
        attempt(name, tools.PROBES[name])
    seen = {name: one.text for name, one in told(capfd).items() if not one.ok}
    assert seen["docker"] == "cannot connect to the engine"
    assert seen["git"].startswith("xcode-select")
    assert seen["git identity"] == "git has no user.name or user.email for commits"
    assert seen["shell"].endswith("printed 'three', expected 'two'")
    assert seen["torchrun command"].startswith(f"{tmp_path}/torchrun does not belong to this Python")


def test_slow_tools_count_as_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "_PATIENCE_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    names = {"git": "git", "git identity": "git", "make": "make", "rust": "rustc", "docker": "docker"}
    for name in names.values():
        program(tmp_path, name, "exec sleep 60")
    monkeypatch.setattr(tools, "PROBES", {name: tools.PROBES[name] for name in names})
    monkeypatch.setattr(tools, "leave_with_parent", lambda: None)
    tools.main()
    seen = told(capfd)
    assert {name: one.text for name, one in seen.items() if one.ok} == {
        name: f"slow: {program} did not answer within 0.2 s" for name, program in names.items() if name != "docker"
    }
    assert seen["docker"].text == "the Docker engine did not answer within 0.2 s"


def test_host_name_problems_are_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("FROG_NODE_NAME", "pond")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    attempt("host name", machine.PROBES["name"]["host name"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    attempt("host address", machine.PROBES["name"]["host address"])
    seen = told(capfd)
    assert seen["host name"].text == "pond does not resolve: Name or service not known"
    assert seen["host address"].text == "pond is 127.0.1.1, which other machines cannot reach: it is a loopback address"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (a, 0)) for a in ("127.0.1.1", "10.0.0.7")])
    attempt("host address", machine.PROBES["name"]["host address"])
    assert told(capfd)["host address"].ok


def test_shortage_of_each_resource_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    usage, memory_seen = namedtuple("Usage", "free"), namedtuple("Memory", "available")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr("frog.core.machine.CGROUP", tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(1 << 20))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory_seen(1 << 30))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(machine.watchfiles, "watch", lambda *_, **__: iter([set()] * 40))
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(socket, "create_server", refused)
    monkeypatch.chdir(tmp_path)
    for name, look in (machine.PROBES["here"] | machine.PROBES["files"]).items():
        if name not in ("fork", "spawn"):
            attempt(name, look)
    seen = {name: one.text for name, one in told(capfd).items() if not one.ok}
    assert seen == {
        "cores": "0.5 for up to 4 ranks",
        "threads": "OMP_NUM_THREADS=8: 4 ranks x 8 threads on 0.5 cores",
        "memory": "1.0 GiB free, but the labs need 2.0 GiB",
        "shared memory": "1.0 MiB free, but the labs need 128.0 MiB",
        "open files": "a process may open only 256 files, but the labs need 512",
        "ports": "[Errno 1] Operation not permitted",
        "disk": "1.0 MiB free, but the labs need 1.0 GiB",
        "file watching": "the watcher did not notice a save in this folder for 3 s",
    }
    with pytest.raises(ValueError, match="cannot write: No such file"):
        machine._disk(tmp_path / "absent")


WRONG_AVG = """
import os, sys
import torch.distributed as dist
right = dist.all_reduce
def all_reduce(x, op, group):
    right(x, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op, group)
def fails(*_, **__):
    raise RuntimeError("reduce_scatter: not for you\\nand a second line")
dist.all_reduce, dist.reduce_scatter = all_reduce, fails
dist.scatter = lambda *_, **__: os._exit(3)
from frog.learn.doctor.doctor_rank import main
main(int(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_wrong_or_crashing_gloo_operations_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVG that only adds, as in some releases; an operation that fails; a rank that crashes."""
    monkeypatch.chdir(tmp_path)
    seen = probes.probe_machine(60, ["-c", WRONG_AVG])
    assert seen["gloo all_reduce SUM"].text == "right"
    found, right = "[5.0, 9.0, 6.0, 7.0]", "[2.5, 4.5, 3, 3.5]"
    assert seen["gloo all_reduce AVG"].text == f"wrong: {found} in float32, expected {right}"
    assert seen["gloo reduce_scatter"].text == "reduce_scatter: not for you"
    assert seen["gloo gather"].ok
    for name in ("gloo barrier", "transformers"):
        assert seen[name].text.startswith("the probe (rank 0) ended with 3"), seen[name]
    assert seen["torchrun"].ok
    assert not any(tmp_path.iterdir())
    assert [need.name for need in judge(seen, 2).instead if need.name.startswith("gloo")] == [
        "gloo all_reduce AVG",
        "gloo reduce_scatter",
        "gloo scatter",
        "gloo all_to_all",
    ]


def test_torchrun_probe_writes_its_line_in_one_call() -> None:
    """Two ranks write to one file."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        env = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "PYTHONUNBUFFERED": "1"}
        subprocess.run([sys.executable, "-c", probes._WHO], env=env, stdout=theirs, check=True, timeout=LIMIT_S)
        assert ours.recv(100) == b"rank 1 of 2\n"


def test_barrier_that_does_not_wait_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from frog.learn.doctor import doctor_rank as rank

    monkeypatch.setattr(rank, "dist", SimpleNamespace(barrier=lambda group: None))
    for others_came in (True, False):
        store = SimpleNamespace(check=lambda names, came=others_came: came)
        with contextlib.nullcontext() if others_came else pytest.raises(ValueError, match="before rank 1 arrived"):
            rank._barrier(store, 0, None)


def test_scratch_folders_of_a_killed_probe_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    makes = f"import os, tempfile; tempfile.mkdtemp(prefix='.frog-doctor-', dir={str(tmp_path)!r})"
    words = ["-c", f"{makes}; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(probes, "_programs", lambda scratch, rank: {"torchrun": words})
    assert "ended with -9" in probes.probe_machine(60)["torchrun"].text
    assert list(tmp_path.iterdir()) == []


def test_doctor_ends_at_its_deadline_without_leftover_processes(tmp_path: Path) -> None:
    here = Harness(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    started = here.start("frog", "doctor", "--deadline", "0.2", env={"TMPDIR": str(temporary)})
    out, err = run_to_end(started)
    assert started.returncode == 1, err
    assert "Traceback" not in out + err
    assert "no answer within 0.2 s" in " ".join(out.split())
    assert list(temporary.iterdir()) == []
    assert [process.pid for process in psutil.process_iter(["cmdline"]) if str(temporary) in str(process.info)] == []


@pytest.mark.slow
def test_doctor_reports_that_this_machine_runs_lab_2(tmp_path: Path) -> None:
    data = json.loads(Harness(tmp_path).run("frog", "doctor", "--lab", "2", "--json", "--deadline", "300").stdout)
    wrong = {name: one for name, one in data["findings"].items() if one["state"] == "missing" and 2 in one["labs"]}
    assert wrong == {}
    gloo = {name: one["found"] for name, one in data["findings"].items() if name.startswith("gloo ")}
    assert gloo.keys() == {f"gloo {operation}" for operation in OPERATIONS}
    assert list(tmp_path.iterdir()) == []
