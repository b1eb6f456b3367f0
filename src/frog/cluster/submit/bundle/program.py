"""Create a bundle for a program that is not Frog's: its folder, its packages, the observer and the job file."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path

from frog.cluster.jobfile.cluster_profile import CLUSTERS, load_profile, profile_path
from frog.cluster.submit.bundle.project import project_files
from frog.cluster.submit.bundle.staging import staged
from frog.cluster.submit.bundle.sums import SUMS, write_sums
from frog.cluster.submit.bundle.wheels import check_platform, download_requirements, python_version
from frog.cluster.submit.program_files import find_program_files, imported_packages
from frog.cluster.submit.program_work import ProgramWork, program_work
from frog.cluster.submit.slurm_job import JOBS, SlurmRequest, check_request
from frog.cluster.submit.submit_slurm import command_line, render_checked
from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.core.units import format_bytes, format_seconds
from frog.observe.environment import HOOK

_TEXTS = Path(__file__).parent / "texts"
_PROGRAM, _OBSERVER = "program", "observer"
"""Folders of the bundle."""
_REQUIREMENTS = "requirements.txt"


def make_program_bundle(args: argparse.Namespace) -> None:
    """Create the requested folder, and print its contents.

    Raises:  UsageError or ConfigError before anything is created; LaunchError if pip fails, after the unfinished
             folder is removed.
    """
    start, here = time.monotonic(), Path()
    work = program_work(args.program, to="slurm", requeue=args.requeue, observer=None, name=args.name)
    names = project_files(here, _needed(work, here), args.exclude, args.to)
    requirements = _requirements(args, names)
    work = replace(
        work,
        folder=_PROGRAM,
        observer=None if args.no_observe else Path(_OBSERVER),
        own_python=requirements is not None,
    )
    request = _request(args, work)
    check_request(request)
    check_platform(args.platform, args.python_version)
    with staged(args.to, force=args.force) as folder:
        for name in names:
            _copy(here / name, folder / _PROGRAM / name)
        profile = profile_path(args.profile)
        _copy(profile, folder / CLUSTERS / profile.name)
        (folder / JOBS).mkdir(parents=True)
        if not args.no_observe:
            shutil.copytree(HOOK, folder / _OBSERVER, ignore=shutil.ignore_patterns("__pycache__", "*simulated*"))
        if requirements is not None:
            _add_wheels(folder, requirements, args)
        write_atomic(folder / request.job_file, render_checked(request, folder))
        write_atomic(folder / "README.md", _readme(request, work, names, requirements, args))
        count = write_sums(folder)
    size = sum(path.stat().st_size for path in args.to.rglob("*") if path.is_file())
    took = format_seconds(time.monotonic() - start)
    print(f"{args.to}: {count} files, {format_bytes(size)}, in {took}; {SUMS} lists them")
    print(f"next: read {args.to}/README.md")


def _request(args: argparse.Namespace, work: ProgramWork) -> SlurmRequest:
    return SlurmRequest.asked_for(
        args,
        {},
        profile=load_profile(args.profile),
        config=work,
        run_file=Path(work.file or work.name),
        bundled=True,
        command=command_line(args, "bundle"),
        file=Path("job.sbatch"),
    )


def _needed(work: ProgramWork, folder: Path) -> tuple[str, ...]:
    """Return the files that the command needs, even if git ignores them."""
    found = find_program_files(work.words_after_python, work.file, (), folder)
    return (*found.sent, *found.data)


def _requirements(args: argparse.Namespace, names: list[str]) -> str | None:
    """Return the file that lists the program's packages, or None to take no wheels along."""
    if args.no_wheels:
        return None
    if args.requirements is not None:
        if args.requirements not in names:
            raise UsageError(
                f"--requirements {args.requirements}: not a file of the bundle", "name a file in this folder"
            )
        return str(args.requirements)
    return _REQUIREMENTS if _REQUIREMENTS in names else None


def _add_wheels(folder: Path, requirements: str, args: argparse.Namespace) -> None:
    print(f"collecting the wheels of {requirements}; torch takes the longest", flush=True)
    download_requirements(folder / "wheels", folder / _PROGRAM / requirements, args.platform, args.python_version)
    python = args.python_version or python_version()
    text = (_TEXTS / "setup.sh").read_text().replace("@PYTHON@", python)
    text = text.replace("'@WANTED@'", f"--requirement '{_PROGRAM}/{requirements}'")
    text = "\n".join(line for line in text.split("\n") if "import frog" not in line)
    write_atomic(folder / "setup.sh", text)
    (folder / "setup.sh").chmod(0o755)


def _readme(
    request: SlurmRequest, work: ProgramWork, names: list[str], requirements: str | None, args: argparse.Namespace
) -> str:
    profile = request.profile
    setup = f"PYTHON=python{args.python_version or python_version()} ./setup.sh      # creates .venv from wheels/ only"
    packages = "from `wheels/`"
    if requirements is None:
        setup = "# activate an environment with these packages, or name its Python in the profile"
        packages = ", ".join(_versions(names)) or "none"
    source = [f"Source of these facts: {profile.source}"] if profile.source else []
    checks = "".join(f"- {text}\n" for text in (*profile.check, *source))
    return (_TEXTS / "PROGRAM.md").read_text().format(
        name=work.name,
        profile=profile.name,
        description=profile.description or profile.name,
        world=f"{request.nodes} x {request.ranks} = {request.nodes * request.ranks}",
        command=request.command,
        where=profile.scratch or "a folder that all nodes share",
        setup=setup,
        packages=packages,
        folder=args.to.name,
        checks=checks or "- nothing: the profile lists no checks\n",
    )  # fmt: skip


def _versions(names: list[str]) -> list[str]:
    """Return the packages that the program imports, with the versions of this environment."""
    known = packages_distributions()
    modules = imported_packages([Path(name) for name in names if name.endswith(".py")])
    other = sorted(module for module in modules if module not in sys.stdlib_module_names)
    return [f"{known[name][0]} {version(known[name][0])}" if name in known else name for name in other]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
