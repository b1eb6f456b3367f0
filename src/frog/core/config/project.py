"""`frog init DIR`: create a project folder with a run file, a model file, a cluster profile and a job file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import frog
from frog.core.errors import UsageError
from frog.core.files import write_atomic

_INSTALLED = Path(__file__).parent / "shipped"
_CLONE = Path(frog.__file__).parents[2]

FILES = (
    "config/demo.toml",
    "config/config.json",
    "config/own_ddp.py",
    "config/own_zero1.py",
    "config/slurm_example.sbatch",
    "config/clusters/generic.toml",
    "train.py",
)
"""The files of a new project, by their paths in the repository."""

_IGNORED = "/runs/\n/data/\n/logs\n/build/\n"

_README = """\
# {name}

    frog data prepare                                    the embedded corpus; your own text: frog data prepare --help
    frog run --nproc 4 -- train config/demo.toml         train on four ranks of this machine
    frog report latest --open                            open its report
    frog slurm explain config/slurm_example.sbatch       explain what the job file requests, and its mistakes
    frog submit config/demo.toml --to slurm --dry-run    print the job for a cluster of config/clusters/

| file | contents |
|---|---|
| `config/demo.toml` | the run: data, steps, optimizer, strategy. Override any field: `--set train.steps=20` |
| `config/config.json` | the model's sizes, in Hugging Face's names |
| `config/own_ddp.py`, `config/own_zero1.py` | strategies of your own: `--set strategy.file=config/own_ddp.py` |
| `config/clusters/generic.toml` | the cluster: copy it and fill in the values from your site's documentation |
| `config/slurm_example.sbatch` | a job file for Slurm, to read and adapt |
| `train.py` | the program that `torchrun` and the job file start |
"""


def add_init_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog init`."""
    parser = commands.add_parser(
        "init",
        help="create a training folder: run file, model, cluster profile, job file",
        description="Create a folder with a run file, a model file, a cluster profile and a job file. "
        "Commands such as `frog train` and `frog submit` find them there.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder; . is the current one")
    parser.set_defaults(handler=_init)


def _init(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    make_project(folder)
    print(f"created {folder}\nnext: cd {folder} && frog data prepare && frog run --nproc 4 -- train config/demo.toml")
    return 0


def make_project(folder: Path) -> None:
    """Write the files of a project into a new or empty folder.

    Raises:  UsageError if the folder is not empty, or cannot be written to.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder}: is not empty", "name a new folder")
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, shipped_file(name).read_bytes())
        write_atomic(folder / ".gitignore", _IGNORED)
        write_atomic(folder / "README.md", _README.format(name=folder.resolve().name))
    except OSError as problem:
        raise UsageError(f"{folder}: cannot be created: {problem.strerror}", "name another folder") from None


def shipped_file(name: str) -> Path:
    """Return the path of a file or folder of the repository that an installed Frog has too."""
    installed = _INSTALLED / name
    return installed if installed.exists() else _CLONE / name
