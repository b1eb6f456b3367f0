"""The quick `frog`, `torchrun` and `python` of the tests behave as the installed ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import LIMIT_S, Harness, set_words, wait_until

from frog.launch.resource_limits import end_descendants
from warm_frog import cold_env, warm_env

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux")

LOOK = Path(__file__).parents[1] / "launch" / "fork_look.py"
"""Writes everything that a process inherits to the file named by its first argument."""
DIFFERS = ("parent", "leads_session")


def run(words: tuple[str, ...], folder: Path, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, **options)


def looks(path: Path) -> tuple[dict[str, Any], list[float]]:
    """Return what fork_look.py saw and the random numbers that it drew."""
    found = json.loads(path.read_text())
    return {name: value for name, value in found["look"].items() if name not in DIFFERS}, found["drawn"]


@pytest.mark.parametrize("words", [("--version",), ("nonsense",), ("runs",), ("train", "missing.toml")], ids=" ".join)
def test_output_and_exit_code_equal_those_of_the_installed_frog(tmp_path: Path, words: tuple[str, ...]) -> None:
    quick, installed = (run(("frog", *words), tmp_path, env) for env in (warm_env(), cold_env()))
    assert (quick.returncode, quick.stdout, quick.stderr) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )


def test_command_inherits_the_same_as_the_installed_program(tmp_path: Path) -> None:
    frog = program(tmp_path, LOOK.read_text())
    for name, env in (("quick", of_program(frog)), ("again", of_program(frog)), ("installed", {})):
        words = (str(frog) if name == "installed" else "frog", name, "a b", "")
        run(words, tmp_path, {**env, "FROG_OWN": "a\nb"}, stdin=subprocess.DEVNULL, check=True)
    (quick, drawn), (_, other), (installed, _) = (looks(tmp_path / name) for name in ("quick", "again", "installed"))
    changed = ("PATH", "OMP_WAIT_POLICY")  # of_program's; Frog's own
    for one in (quick, installed):
        one["environ"] = {name: value for name, value in one["environ"].items() if name not in changed}
        one["open"].pop()  # the list's own descriptor
    quick["open"].pop()  # to the fork server of agents
    assert quick == installed
    assert drawn[0] != other[0]
    assert drawn[1] != other[1]


RANK = f"""
import frog.core.env
import atexit, os, runpy, sys
agent = os.getppid()
parent = open(f"/proc/{{agent}}/stat").read().rpartition(")")[2].split()[1]
is_quick = "server.py" in open(f"/proc/{{agent}}/cmdline").read()
is_child = parent == os.environ["FROG_LAUNCHER_PID"] and os.getsid(agent) == os.getpgid(agent) == agent
print(is_quick == (sys.argv[1] == "quick"), is_child, flush=True)
runpy.run_path({str(LOOK)!r}, run_name="look")
atexit.register(print, "at the end")
sys.exit("the last words")
"""


@pytest.mark.slow
def test_ranks_inherit_the_same_as_those_of_the_installed_frog(tmp_path: Path) -> None:
    """The rank is forked too, and ends as Python does."""
    (tmp_path / "rank.py").write_text(RANK)
    seen = []
    for name, env in (("quick", warm_env()), ("installed", cold_env())):
        words = ("frog", "run", "--nproc", "1", "--threads", "1", "--", "rank.py", name)
        done = run(words, tmp_path, {**env, "FROG_START": "fork"})
        assert (done.returncode, done.stdout) == (1, "True True\nat the end\n")
        assert "the last words" in done.stderr
        assert "Traceback" not in done.stderr
        look, _ = looks(tmp_path / name)
        own = re.compile("FROG_LAUNCH.*|TORCHELASTIC_.*|MASTER_PORT")
        look["environ"] = {key: value for key, value in look["environ"].items() if not own.fullmatch(key)}
        seen.append({key: value for key, value in look.items() if key not in ("argv", "orig_argv")})
    assert seen[0] == seen[1]


OF_NODES = """
import json, os, sys
agent = os.getppid()
launcher = open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1]
programs = open(f"/proc/{launcher}/task/{launcher}/children").read().split()
found = [
    launcher == os.environ["FROG_LAUNCHER_PID"],
    os.getsid(agent) == os.getpgid(agent) == agent,
    sum("server.py" in open(f"/proc/{pid}/cmdline").read() for pid in programs),
    {os.readlink(f"/proc/{agent}/fd/{number}").partition(":")[0] for number in (1, 2)} == {"pipe"},
    os.readlink("/proc/self/ns/net") == sys.argv[1],
]
json.dump(found, open(f"found-{os.environ['RANK']}", "w"))
"""


def _may_create_networks() -> bool:
    return subprocess.run(["unshare", "-Urnm", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("network", [(), ("--network", "delay=1ms")], ids=["no network", "network"])
def test_programs_of_nodes_are_forked(tmp_path: Path, network: tuple[str, ...]) -> None:
    """The fork server of the command, both agents, and the store."""
    if network and not (Path("/dev/net/tun").exists() and _may_create_networks()):
        pytest.skip("this user may not create network namespaces")
    (tmp_path / "rank.py").write_text(OF_NODES)
    words = ("frog", "run", "--nodes", "2x1", *network, "--threads", "1", "--no-observe", "--", "rank.py")
    done = run((*words, os.readlink("/proc/self/ns/net")), tmp_path, warm_env(), timeout=900)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert json.loads((tmp_path / f"found-{rank}").read_text()) == [True, True, 4, True, not network]


def test_script_inherits_the_same_as_under_the_installed_python(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(f"import frog.core.env\n{LOOK.read_text()}")
    for name, env in (("quick", warm_env()), ("installed", cold_env())):
        run(("python", "-u", "look.py", name, "a b"), tmp_path, env, stdin=subprocess.DEVNULL, check=True)
    quick, installed = (looks(tmp_path / name)[0] for name in ("quick", "installed"))
    for one in (quick, installed):
        one["open"].pop()  # the list's own descriptor
        one["orig_argv"].pop(0)  # the file's name
        one["environ"].pop("PATH")
    assert quick == installed


NESTED = """
import subprocess, sys
if len(sys.argv) == 1:
    for words in (["nested.py", "x"], ["-u", "nested.py", "x"], ["-m", "frog.cli", "--version"], [FROG, "--version"],
                  ["-m", "torch.distributed.run", "--nproc-per-node=1", "nested.py", "x"], ["-m", "this"]):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        print(done.returncode, done.stdout.splitlines()[0])
else:
    print("torch" in sys.modules)
    sys.exit(3 * (__name__ != "__main__"))
"""


@pytest.mark.slow
def test_programs_that_a_program_starts_are_forked_if_asked(tmp_path: Path) -> None:
    frog = str(Path(sys.executable).parent / "frog")
    (tmp_path / "nested.py").write_text(NESTED.replace("FROG", repr(frog)))
    version = run(("frog", "--version"), tmp_path, cold_env()).stdout.strip()
    expected = ["0 True", "0 True", f"0 {version}", f"0 {version}", "0 True", "0 The Zen of Python, by Tim Peters"]
    words = ("python", "nested.py")
    assert run(words, tmp_path, warm_env(nested=True)).stdout.splitlines() == expected
    plain = run(words, tmp_path, warm_env()).stdout.splitlines()
    assert plain == [line.replace("True", "False") for line in expected]


FAILING = """
import os, sys
sys.stdout.write(f"{'torch' in sys.modules} {os.environ['RANK']} ")  # a single write: ranks share the file
sys.stdout.flush()
def fail():
    raise ValueError("as requested")
if len(sys.argv) == 1:
    fail()
"""


def test_ranks_of_torchrun_are_forked(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(FAILING)
    words = ("torchrun", "--nproc-per-node=2", "rank.py", "well")
    assert sorted(run(words, tmp_path, warm_env(), check=True).stdout.split()) == ["0", "1", "True", "True"]


def test_failing_script_prints_the_same_traceback_as_under_the_installed_python(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(FAILING)
    quick, installed = (run(("python", "rank.py"), tmp_path, {"RANK": "0", **env}) for env in (warm_env(), cold_env()))
    assert (quick.stdout, installed.stdout) == ("True 0 ", "False 0 ")
    assert (quick.returncode, quick.stderr) == (installed.returncode, installed.stderr)


def program(folder: Path, text: str) -> Path:
    """Write a program to run instead of the installed `frog`."""
    path = folder / "frog"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def of_program(installed: Path, address: str | None = None) -> dict[str, str]:
    """Return the variables with which `frog` is a process forked to run that program."""
    env = warm_env()
    return {**env, "FROG_TEST_SERVER": f"{address or env['FROG_TEST_SERVER'].partition(':')[0]}:{installed}"}


@pytest.mark.parametrize(
    ("change", "forked"),
    [
        ({}, True),
        ({"env": {"FROG_OWN": "3"}}, True),
        ({"env": {"OMP_NUM_THREADS": "3"}}, False),
        ({"umask": 0o27}, False),
        ({"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}, False),
        ({"preexec_fn": lambda: os.close(0)}, False),
        ({"preexec_fn": lambda: os.nice(1)}, False),
    ],
    ids=["same", "own variable", "read on import", "umask", "ignored signal", "closed input", "priority"],
)
def test_only_a_command_in_the_same_surroundings_is_forked(
    tmp_path: Path, change: dict[str, Any], forked: bool
) -> None:
    env = of_program(program(tmp_path, "import sys; print('torch' in sys.modules)"))
    done = run(("frog",), tmp_path, {**env, **change.pop("env", {})}, **change)
    assert done.stdout == f"{forked}\n"


def test_installed_program_runs_when_the_server_has_ended(tmp_path: Path) -> None:
    env = of_program(program(tmp_path, "import sys; print('torch' in sys.modules)"), str(tmp_path / "absent"))
    assert run(("frog",), tmp_path, env).stdout == "False\n"


def test_server_survives_the_end_of_the_descendants_of_its_process(tmp_path: Path) -> None:
    env = of_program(program(tmp_path, "import sys; print('torch' in sys.modules)"))
    end_descendants()  # as a grader's world, which some tests run in their own process
    assert run(("frog",), tmp_path, env).stdout == "True\n"


ENDLESS = ("frog", "run", "--nproc", "2", "--", "train", "run.toml", *set_words("train.steps=100000"))


def test_signal_reaches_the_command_and_its_exit_code_is_passed_on(harness: Harness) -> None:
    process = harness.start(*ENDLESS, *set_words("name=stopped"), warm=True)
    harness.wait_for_step("stopped", 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert harness.record("stopped")["status"] == "interrupted"


def test_killed_client_ends_the_command(harness: Harness) -> None:
    process = harness.start(*ENDLESS, *set_words("name=killed"), warm=True)
    harness.wait_for_step("killed", 1, process)
    process.kill()
    process.communicate()
    here = str(harness.root)
    wait_until(lambda: here not in [one.info["cwd"] for one in psutil.process_iter(["cwd"])], "the ranks' end")
