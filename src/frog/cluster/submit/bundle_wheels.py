"""The wheels of a bundle: Frog's own wheel and its dependencies at the pinned versions."""

from __future__ import annotations

import base64
import hashlib
import platform as host
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import frog
from frog.core.errors import LaunchError, UsageError
from frog.core.processes import kill_group

PROJECT = Path(frog.__file__).parents[2]
"""Frog's source folder, if this Frog was installed from one."""
CONSTRAINTS = "constraints.txt"

_BUILD_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 600, 3600
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", CONSTRAINTS)
"""Files that a build reads besides those that it packs."""


def check_platform(platform: str | None, python: str | None) -> None:
    """Refuse another machine or Python: pip selects dependencies for the machine and Python that it runs on.

    Raises:  UsageError if `platform` or `python` differs from this machine's.
    """
    if python is not None and python != python_version():
        raise UsageError(
            f"--python-version {python}: this is Python {python_version()}, and pip would select packages for it",
            f"run the same command with Python {python}",
        )
    if platform is None:
        return
    match = re.fullmatch(r"(?:many|musl)linux(?:\d+|_\d+_\d+)_(\w+)", platform)
    if match is None:
        raise UsageError(f"--platform {platform}: not a Linux platform", f"manylinux_2_28_{host.machine()}")
    if (host.system(), host.machine()) != ("Linux", match[1]):
        raise UsageError(
            f"--platform {platform}: this is {host.system()} on {host.machine()}, and pip would select packages for it",
            "create the bundle in a Linux container of that machine type",
        )


def collect_wheels(folder: Path, extras: tuple[str, ...], platform: str | None, python: str | None) -> None:
    """Fill `folder` with Frog's wheel and its dependencies, for `platform` if given.

    Raises:  LaunchError with pip's message if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = own_wheel(folder)
    download_wheels(folder, own, extras, platform, python)


def own_wheel(folder: Path) -> Path:
    """Create Frog's wheel: build it from the sources, or repack the installed files."""
    if (PROJECT / "pyproject.toml").is_file() and (PROJECT / "src" / "frog").is_dir():
        return build_wheel(folder)
    return pack_wheel(folder, distribution("frog"))


def pack_wheel(folder: Path, installed: Distribution) -> Path:
    """Repack the wheel of `installed`: its files and their hashes, without pip's additions.

    Raises:  LaunchError if its list of files is missing.
    """
    if installed.files is None:
        raise LaunchError(
            "the list of Frog's own files (RECORD) is missing, so Frog's wheel cannot be packed",
            "install Frog again, or omit the wheels: --no-wheels",
        )
    added = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    files = [file for file in installed.files if file.parts[0] != ".." and "__pycache__" not in file.parts]
    files = [file for file in files if not (file.parts[0].endswith(".dist-info") and file.name in added)]
    info = next(file.parts[0] for file in files if file.name == "METADATA")
    record = f"{info}/RECORD"
    path = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    rows = [f"{record},,"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in files:
            data = Path(str(file.locate())).read_bytes()
            wheel.writestr(file.as_posix(), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append(f"{file.as_posix()},sha256={digest},{len(data)}")
        wheel.writestr(record, "\n".join(rows) + "\n")
    return path


def build_wheel(folder: Path, project: Path = PROJECT) -> Path:
    """Build Frog's wheel in a copy of its sources, so that the build leaves no files next to them."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "frog"
        for name in (*_SOURCES, *_packed(project)):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (project / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(project / name, copy / name, ignore=ignored, dirs_exist_ok=True)
            elif (project / name).is_file():
                shutil.copy(project / name, copy / name)
        _pip(["wheel", "--no-deps", "--wheel-dir", str(folder), str(copy)], _BUILD_TIMEOUT_S)
    return next(folder.glob("frog-*.whl"))


def _packed(project: Path) -> list[str]:
    """Return the files and folders that pyproject.toml puts into the wheel."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    return [*wheel["packages"], *wheel["force-include"]]


def download_wheels(folder: Path, own: Path, extras: tuple[str, ...], platform: str | None, python: str | None) -> None:
    """Fill `folder` with the dependencies of Frog's wheel `own`, at the versions of constraints.txt.

    Raises:  LaunchError with pip's message if it fails.
    """
    wanted = f"{own.resolve()}[{','.join(extras)}]" if extras else str(own.resolve())
    constraints = PROJECT / CONSTRAINTS
    words = ["-c", str(constraints)] if constraints.is_file() else []
    _download(folder, [*words, wanted], platform, python)


def download_requirements(folder: Path, requirements: Path, platform: str | None, python: str | None) -> None:
    """Fill `folder` with the wheels of a requirements file and their dependencies.

    Raises:  LaunchError with pip's message if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _download(folder, ["--requirement", str(requirements)], platform, python)


def _download(folder: Path, wanted: list[str], platform: str | None, python: str | None) -> None:
    if platform is None:
        # `pip wheel` uses existing wheels, and builds one for packages that exist only as sources.
        _pip(["wheel", "--wheel-dir", str(folder), *wanted], _DOWNLOAD_TIMEOUT_S)
        return
    tag = (python or python_version()).replace(".", "")
    words = ["--platform", platform, "--python-version", tag, "--implementation", "cp", "--abi", f"cp{tag}"]
    for older in _older(platform):
        words += ["--platform", older]
    _pip(["download", "--dest", str(folder), "--only-binary=:all:", *words, *wanted], _DOWNLOAD_TIMEOUT_S)


def _older(platform: str) -> list[str]:
    """Return the names of a manylinux platform and all older ones: it accepts their wheels, and pip needs each name."""
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if match is None:
        return []
    machine = match[2]
    names = [f"manylinux_2_{number}_{machine}" for number in range(int(match[1]) - 1, 4, -1)]
    return [*names, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]


def python_version() -> str:
    """Return the version of the running Python, such as `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _pip(words: list[str], timeout_s: float) -> None:
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:  # also for Ctrl-C, because pip and its children run in their own session
            kill_group(process.pid)
            if isinstance(error, subprocess.TimeoutExpired):
                what = f"pip {words[0]} did not finish within {timeout_s:g} s"
                raise LaunchError(what, "check the network and try again") from None
            raise
    if process.returncode != 0:
        answer = "\n".join((err.strip() or out.strip()).splitlines()[-8:])
        raise LaunchError(f"pip {words[0]} ended with exit code {process.returncode}\n{answer}", _hint(answer))


def _hint(words: str) -> str:
    if "No matching distribution" in words or "Could not find a version" in words:
        return "check that a wheel exists for that platform and Python; or try another --platform or --python-version"
    if "No space left" in words:
        return "free some space: wheels with CUDA need about 3 GB"
    return "check the network; --no-wheels makes a bundle without wheels"
