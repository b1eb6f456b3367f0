"""The wheels of a bundle: Frog's own, built from its sources, and all that it needs, at the pinned versions."""

from __future__ import annotations

import platform as host
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from frog.core.errors import LaunchError, UsageError
from frog.core.processes import kill_group

PROJECT = Path(__file__).parents[4]
"""Where Frog's sources lie, if this Frog was installed from them."""
CONSTRAINTS = "constraints.txt"

_BUILD_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 600, 3600
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", CONSTRAINTS)


def check_platform(platform: str | None, python: str | None) -> None:
    """Refuse what pip cannot do: which packages are needed at all, it decides by the machine and Python it runs on.

    Raises:  UsageError if these are of another kind than what `platform` and `python` name.
    """
    if python is not None and python != python_version():
        raise UsageError(
            f"--python-version {python}: this is Python {python_version()}, and pip would take what that one needs",
            f"the same command with Python {python}",
        )
    if platform is None:
        return
    match = re.fullmatch(r"(?:many|musl)linux(?:\d+|_\d+_\d+)_(\w+)", platform)
    if match is None:
        raise UsageError(f"--platform {platform}: not a platform of Linux", f"manylinux_2_28_{host.machine()}")
    if (host.system(), host.machine()) != ("Linux", match[1]):
        raise UsageError(
            f"--platform {platform}: this is {host.system()} on {host.machine()}, and pip would take what that needs",
            "make it in a Linux container of that machine type",
        )


def collect_wheels(folder: Path, extras: tuple[str, ...], platform: str | None, python: str | None) -> None:
    """Fill `folder` with Frog's wheel and its dependencies'. With `platform`, for that one.

    Raises:  UsageError if Frog's sources are not here; LaunchError with pip's words if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = build_wheel(folder)
    download_wheels(folder, own, extras, platform, python)


def build_wheel(folder: Path, project: Path = PROJECT) -> Path:
    """Frog's own wheel, built in a copy of its sources, so that nothing is left beside them."""
    if not (project / "pyproject.toml").is_file() or not (project / "src" / "frog").is_dir():
        raise UsageError(
            f"{project}: Frog's sources are not there, and its wheel is built from them",
            "call `frog bundle` of a checkout (make setup), or leave the wheels out: --no-wheels",
        )
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "frog"
        shutil.copytree(project / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in _SOURCES:
            if (project / name).is_file():
                shutil.copy(project / name, copy / name)
        _pip(["wheel", "--no-deps", "--wheel-dir", str(folder), str(copy)], _BUILD_TIMEOUT_S)
    return next(folder.glob("frog-*.whl"))


def download_wheels(folder: Path, own: Path, extras: tuple[str, ...], platform: str | None, python: str | None) -> None:
    """All that Frog's wheel needs, at the versions of constraints.txt."""
    wanted = f"{own.resolve()}[{','.join(extras)}]" if extras else str(own.resolve())
    constraints = PROJECT / CONSTRAINTS
    words = ["-c", str(constraints)] if constraints.is_file() else []
    if platform is None:
        # `wheel` takes wheels where there are some, and builds one of what comes as sources alone.
        _pip(["wheel", "--wheel-dir", str(folder), *words, wanted], _DOWNLOAD_TIMEOUT_S)
        return
    tag = (python or python_version()).replace(".", "")
    words += ["--platform", platform, "--python-version", tag, "--implementation", "cp", "--abi", f"cp{tag}"]
    for older in _older(platform):
        words += ["--platform", older]
    _pip(["download", "--dest", str(folder), "--only-binary=:all:", *words, wanted], _DOWNLOAD_TIMEOUT_S)


def _older(platform: str) -> list[str]:
    """A platform of manylinux takes the wheels of all before it; pip must be given their names."""
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if match is None:
        return []
    machine = match[2]
    names = [f"manylinux_2_{number}_{machine}" for number in range(int(match[1]) - 1, 4, -1)]
    return [*names, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]


def python_version() -> str:
    """Of the Python that runs this: `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _pip(words: list[str], timeout_s: float) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:  # Ctrl-C too: pip is in a session of its own, with what it started
            kill_group(process.pid)
            if isinstance(error, subprocess.TimeoutExpired):
                what = f"pip {words[0]}: no end within {timeout_s:g} s"
                raise LaunchError(what, "is the network there? try again") from None
            raise
    if process.returncode != 0:
        answer = "\n".join((err.strip() or out.strip()).splitlines()[-8:])
        raise LaunchError(f"pip {words[0]} ended with exit code {process.returncode}\n{answer}", _hint(answer))


def _hint(words: str) -> str:
    if "No matching distribution" in words or "Could not find a version" in words:
        return "is there a wheel for that platform and Python? another --platform, or --python-version"
    if "No space left" in words:
        return "make room: wheels with CUDA take some 3 GB"
    return "is the network there? --no-wheels makes a bundle without them"
