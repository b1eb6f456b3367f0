"""Create a bundle, for a run of Frog's trainer or for any program: its contents and its README."""

from __future__ import annotations

import argparse
import platform as host
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path

from frog import __version__
from frog.cluster.jobfile.cluster_profile import CLUSTERS, ClusterProfile, load_profile, profile_path
from frog.cluster.submit.bundle_folder import BUNDLE_JSON, SUMS, BundleFacts, BundleRequest, staged, write_sums
from frog.cluster.submit.bundle_wheels import check_platform, collect_wheels, download_requirements, python_version
from frog.cluster.submit.left_out import left_out, left_out_line, refuse_secrets, without_bundles
from frog.cluster.submit.slurm_job import JOBS, REQUEST_OPTIONS, SlurmRequest, check_request
from frog.cluster.submit.submit_slurm import command_line, render_checked
from frog.cluster.submit.submitted_work import (
    ProgramWork,
    find_program_files,
    imported_packages,
    named_files,
    program_work,
    project_files,
    strategy_settings,
)
from frog.core.config import RunConfig, load_run_config
from frog.core.config.deepspeed import read_deepspeed
from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.core.schema import write_typed
from frog.core.terminal import printable_lines
from frog.core.units import format_bytes, format_seconds
from frog.observe.environment import HOOK
from frog.train.data.prepared import open_prepared

_TEXTS = Path(__file__).parent / "texts"
_PROGRAM, _OBSERVER = "program", "observer"
"""Folders of a program's bundle."""
_REQUIREMENTS = "requirements.txt"


def make_bundle(args: argparse.Namespace) -> None:
    """Create the requested folder, and print its contents.

    Raises:  UsageError, ConfigError, DataError before anything is created; LaunchError if pip fails, after the
             unfinished folder is removed.
    """
    start_s = time.monotonic()
    config = load_run_config(args.run_file, args.set)
    files, settings = _run_files(args.run_file, config)
    request = SlurmRequest.from_arguments(
        args,
        {},
        profile=load_profile(args.profile),
        config=config,
        run_file=Path("config") / args.run_file.name,
        settings=(*args.set, *settings),
        bundled=True,
        command=command_line(args, "bundle"),
        file=Path("job.sbatch"),
    )
    check_request(request)
    check_platform(args.platform, args.python_version)
    data = open_prepared(config.data.name, verify=True)
    with_wheels = not args.no_wheels and request.profile.container is None
    with staged(args.to, force=args.force) as folder:
        for name, source in files.items():
            _copy(source, folder / name)
        _add_profile(folder, args.profile)
        _copy(data.path, folder / "data" / config.data.name)
        if with_wheels:
            _add_wheels(folder, config, args)
        write_typed(folder / BUNDLE_JSON, _facts(request, config.data.name, args, with_wheels))
        write_atomic(folder / request.job_file, render_checked(request, folder))
        warnings = _warnings(request, folder)
        write_atomic(folder / "README.md", _readme(request, config.data.name, with_wheels, warnings, args))
        num_files = write_sums(folder)
    _print_summary(args.to, num_files, time.monotonic() - start_s, warnings)


def _run_files(run_file: Path, config: RunConfig) -> tuple[dict[str, Path], list[str]]:
    """Return the run's files by place in the bundle, and the settings with which the run file finds them there."""
    named = named_files(run_file, config)
    files = {f"config/{path.name}": path for path in (run_file, *named.values())}
    model, deepspeed = named["model.file"], named.get("strategy.deepspeed_file")
    settings = [] if config.source.file == model.name else [f"model.file={model.name}"]
    if config.source.init_from is not None:
        weights = Path(config.source.init_from)
        if not (weights / "config.json").is_file():
            raise UsageError(
                f"model.init_from={config.source.init_from}: not a folder of weights, so a bundle cannot include it",
                f"frog export {config.source.init_from} --to hf DIR, then --set model.init_from=DIR",
            )
        files[f"weights/{weights.name}"] = weights
        settings.append(f"model.init_from=weights/{weights.name}")
    if deepspeed is not None:
        read_deepspeed(deepspeed)
    return files, settings + strategy_settings(named, "config")


def _add_wheels(folder: Path, config: RunConfig, args: argparse.Namespace) -> None:
    extras = ("deepspeed",) if config.strategy.implementation == "deepspeed" else ()
    print(f"collecting wheels for {args.platform or 'this platform'}; torch takes the longest", flush=True)
    collect_wheels(folder / "wheels", extras, args.platform, args.python_version)
    python = args.python_version or python_version()
    wanted = f"frog[{','.join(extras)}]=={__version__}" if extras else f"frog=={__version__}"
    _write_setup(folder, (_TEXTS / "setup.sh").read_text().replace("@PYTHON@", python).replace("@WANTED@", wanted))


def _facts(request: SlurmRequest, data: str, args: argparse.Namespace, with_wheels: bool) -> BundleFacts:
    """Return the facts about the bundle, for programs."""
    return BundleFacts(
        frog=__version__,
        run=request.config.name,
        run_file=str(request.run_file),
        settings=list(request.settings),
        data=data,
        profile=profile_path(args.profile).stem,
        request=BundleRequest(**{name: getattr(request, name) for name in REQUEST_OPTIONS}),
        wheels=with_wheels,
        platform=(args.platform or f"{host.system()} {host.machine()}") if with_wheels else None,
        python=(args.python_version or python_version()) if with_wheels else None,
    )


def _readme(request: SlurmRequest, data: str, with_wheels: bool, warnings: list[str], args: argparse.Namespace) -> str:
    profile = request.profile
    python = args.python_version or python_version()
    where = profile.scratch or "a folder that all nodes share"
    setup = f"PYTHON=python{python} ./setup.sh      # creates .venv from wheels/ only"
    if profile.container is not None:
        setup = f"ls {profile.container}      # the profile's image, with Python and Frog"
    elif not with_wheels:
        setup = f"{profile.python} -c 'import frog'      # this bundle has no wheels: Frog must be installed there"
    return (_TEXTS / "README.md").read_text().format(
        name=request.config.name,
        profile=profile.name,
        description=profile.description or profile.name,
        world=f"{request.nodes} x {request.ranks} = {request.nodes * request.ranks}",
        command=request.command,
        where=where,
        setup=setup,
        checks=_checks(profile, warnings),
        data=data,
        folder=args.to.name,
    )  # fmt: skip


def _warnings(request: SlurmRequest, folder: Path) -> list[str]:
    """Return a warning for a cluster with GPUs if the bundle's torch has no CUDA."""
    wheels = sorted(path.name for path in (folder / "wheels").glob("*.whl"))
    torch = next((name for name in wheels if name.startswith("torch-")), None)
    cuda = any(name.startswith("nvidia_") for name in wheels) or (torch is not None and "+cu" in torch)
    if torch is None or cuda or not request.profile.gpus_per_node:
        return []
    return [
        f"{torch} has no CUDA, but {request.profile.name} has GPUs: the ranks would compute on CPUs. Let pip find a "
        "build with CUDA, for example with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126, and make the "
        "bundle again"
    ]


def make_program_bundle(args: argparse.Namespace) -> None:
    """Create the requested folder, and print its contents.

    Raises:  UsageError or ConfigError before anything is created; LaunchError if pip fails, after the unfinished
             folder is removed.
    """
    start_s, here = time.monotonic(), Path()
    work = program_work(args.program, to="slurm", requeue=args.requeue, observer=None, name=args.name)
    names = without_bundles(here, project_files(here, _needed(work, here), args.exclude, args.to))
    refuse_secrets(here, names, args.secret)
    left = left_out(here, set(names), args.to)
    requirements = _requirements_file(args, names)
    work = replace(
        work,
        folder=_PROGRAM,
        observer=None if args.no_observe else Path(_OBSERVER),
        own_python=requirements is not None,
    )
    request = _program_request(args, work)
    check_request(request)
    check_platform(args.platform, args.python_version)
    with staged(args.to, force=args.force) as folder:
        for name in names:
            _copy(here / name, folder / _PROGRAM / name)
        _add_profile(folder, args.profile)
        if not args.no_observe:
            shutil.copytree(HOOK, folder / _OBSERVER, ignore=shutil.ignore_patterns("__pycache__", "*simulated*"))
        if requirements is not None:
            _add_program_wheels(folder, requirements, args)
        write_atomic(folder / request.job_file, render_checked(request, folder))
        write_atomic(folder / "README.md", _program_readme(request, work, names, requirements, args))
        num_files = write_sums(folder)
    _print_summary(args.to, num_files, time.monotonic() - start_s, left=left)


def _program_request(args: argparse.Namespace, work: ProgramWork) -> SlurmRequest:
    return SlurmRequest.from_arguments(
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
    files = find_program_files(work.words_after_python, work.file, (), folder)
    return (*files.sent, *files.data)


def _requirements_file(args: argparse.Namespace, names: list[str]) -> str | None:
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


def _add_program_wheels(folder: Path, requirements: str, args: argparse.Namespace) -> None:
    print(f"collecting the wheels of {requirements}; torch takes the longest", flush=True)
    download_requirements(folder / "wheels", folder / _PROGRAM / requirements, args.platform, args.python_version)
    python = args.python_version or python_version()
    text = (_TEXTS / "setup.sh").read_text().replace("@PYTHON@", python)
    text = text.replace("'@WANTED@'", f"--requirement '{_PROGRAM}/{requirements}'")
    text = "\n".join(line for line in text.split("\n") if "import frog" not in line)
    _write_setup(folder, text)


def _program_readme(
    request: SlurmRequest, work: ProgramWork, names: list[str], requirements: str | None, args: argparse.Namespace
) -> str:
    profile = request.profile
    setup = f"PYTHON=python{args.python_version or python_version()} ./setup.sh      # creates .venv from wheels/ only"
    packages = "from `wheels/`"
    if requirements is None:
        setup = "# activate an environment with these packages, or name its Python in the profile"
        packages = ", ".join(_versions(names)) or "none"
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
        checks=_checks(profile),
    )  # fmt: skip


def _versions(names: list[str]) -> list[str]:
    """Return the packages that the program imports, with the versions of this environment."""
    known = packages_distributions()
    modules = imported_packages([Path(name) for name in names if name.endswith(".py")])
    other = sorted(module for module in modules if module not in sys.stdlib_module_names)
    return [f"{known[name][0]} {version(known[name][0])}" if name in known else name for name in other]


def _add_profile(folder: Path, name: str) -> None:
    """Copy the cluster's profile, and create the folder for jobs."""
    profile = profile_path(name)
    _copy(profile, folder / CLUSTERS / profile.name)
    (folder / JOBS).mkdir(parents=True)


def _write_setup(folder: Path, text: str) -> None:
    write_atomic(folder / "setup.sh", text)
    (folder / "setup.sh").chmod(0o755)


def _checks(profile: ClusterProfile, warnings: Sequence[str] = ()) -> str:
    """Return the list of what to check on the cluster before the first job."""
    source = [f"Source of these facts: {profile.source}"] if profile.source else []
    checks = "".join(f"- {text}\n" for text in (*warnings, *profile.check, *source))
    return checks or "- nothing: the profile lists no checks\n"


def _print_summary(
    bundle: Path, num_files: int, took_s: float, warnings: Sequence[str] = (), left: Sequence[str] = ()
) -> None:
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    print(f"{bundle}: {num_files} files, {format_bytes(size)}, in {format_seconds(took_s)}; {SUMS} lists them")
    print("".join(f"note: {text}\n" for text in warnings) + printable_lines(left_out_line(left)), end="")
    print(f"next: read {bundle}/README.md")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
