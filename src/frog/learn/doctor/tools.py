"""A probe: `python -m frog.learn.doctor.tools` runs the programs that the labs use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from frog.cluster.slurm.slurm_programs import find_program, missing_programs
from frog.core.env import child_env, variable
from frog.core.processes import leave_with_parent
from frog.learn.doctor.seen import attempt

_PATIENCE_S = 8.0
_VS_CODE = Path("/Applications/Visual Studio Code.app")


def run(*words: str, folder: str | None = None) -> str:
    """Return the first line that a program prints.

    Raises:  ValueError if the program is missing or fails; TimeoutExpired if it takes too long.
    """
    if shutil.which(words[0]) is None:
        raise ValueError("not found")
    env = child_env(GIT_TERMINAL_PROMPT="0", DOCKER_CLI_HINTS="false")
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            env=env,
            cwd=folder,
        )
    except OSError as problem:
        raise ValueError(f"{words[0]}: {problem.strerror}") from None
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode:
        raise ValueError(lines[-1] if lines else f"{words[0]} ended with {done.returncode}")
    return lines[0] if lines else ""


def _git() -> str:
    """Make a commit in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        run("git", "init", "-q", folder=folder)
        Path(folder, "a").write_text("a")
        run("git", "add", "a", folder=folder)
        who = ("-c", "user.name=frog", "-c", "user.email=frog@example.org", "-c", "commit.gpgsign=false")
        run("git", *who, "commit", "-q", "--no-verify", "-m", "a", folder=folder)
    return run("git", "--version").removeprefix("git version ")


def _git_identity() -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run("git", "var", "GIT_COMMITTER_IDENT", folder=folder).partition(" <")[0]
        except ValueError:
            raise ValueError("git has no user.name or user.email for commits") from None


def _shell() -> str:
    """Run the shell commands that the labs use, in one line."""
    names = ("bash", "grep", "cat", "tail", "head", "chmod")
    if missing := [name for name in names if shutil.which(name) is None]:
        raise ValueError(f"not found: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        line = "printf 'one\\ntwo\\nthree\\n' > log && chmod u+r log && cat log | grep t | tail -n 2 | head -n 1"
        if (printed := run("bash", "-c", line, folder=folder)) != "two":
            raise ValueError(f"`{line}` printed {printed!r}, expected 'two'")
    return ", ".join(names)


def _torchrun() -> str:
    if (path := shutil.which("torchrun")) is None:
        raise ValueError("not on the PATH")
    if Path(path).parent.resolve() != Path(sys.executable).parent.resolve():
        raise ValueError(f"{path} does not belong to this Python: {sys.executable}")
    return path


def _jupyter() -> str:
    names = [name for name in ("jupyter-lab", "jupyter-notebook") if shutil.which(name)]
    return f"{names[0]} {run(names[0], '--version')}" if names else run("jupyter-lab")


def _vs_code() -> str:
    if variable("TERM_PROGRAM") == "vscode":
        return "this terminal runs in VS Code"
    return str(_VS_CODE) if _VS_CODE.exists() else run("code", "--version")


def _docker() -> str:
    """Test the engine, which the docker client only talks to."""
    try:
        return "engine " + run("docker", "version", "--format", "{{.Server.Version}}")
    except subprocess.TimeoutExpired:
        raise ValueError(f"the Docker engine did not answer within {_PATIENCE_S:g} s") from None


def _slurm() -> str:
    if missing := missing_programs():
        raise ValueError(f"not found: {', '.join(missing)}")
    return run(find_program("slurmctld"), "-V")


def _pip() -> str:
    try:
        return " ".join(run(sys.executable, "-P", "-m", "pip", "--version").split()[:2])
    except ValueError:
        return run("conda", "--version")


def _environment() -> str:
    if sys.prefix != sys.base_prefix or os.path.exists(os.path.join(sys.prefix, "conda-meta")):
        return sys.prefix
    raise ValueError(f"no virtual environment: {sys.prefix} is the system's Python")


PROBES: dict[str, Callable[[], str]] = {
    "python": lambda: sys.version.split()[0],
    "environment": _environment,
    "pip": _pip,
    "git": _git,
    "git identity": _git_identity,
    "shell": _shell,
    "make": lambda: run("make", "--version"),
    "ssh": lambda: run("ssh", "-V"),
    "jupyter": _jupyter,
    "vs code": _vs_code,
    "docker": _docker,
    "slurm": _slurm,
    "rust": lambda: run("rustc", "--version"),
    "torchrun command": _torchrun,
}


def patiently(look: Callable[[], str]) -> str:
    """Return the result of `look`. A program that is slow to answer counts as installed."""
    try:
        return look()
    except subprocess.TimeoutExpired as late:
        return f"slow: {os.path.basename(late.cmd[0])} did not answer within {_PATIENCE_S:g} s"


def main() -> None:
    leave_with_parent()
    with ThreadPoolExecutor(len(PROBES)) as pool:
        for name, look in PROBES.items():
            pool.submit(attempt, name, partial(patiently, look))


if __name__ == "__main__":
    main()
