"""What a job runs, a run of Frog's trainer or any program, and the files that accompany it to the cluster."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Protocol

from frog.core.config import RunConfig
from frog.core.config.deepspeed import deepspeed_path
from frog.core.env import child_env
from frog.core.errors import ConfigError, UsageError
from frog.core.units import format_bytes

_PYTHON = re.compile(r"python[\d.]*")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")


class Work(Protocol):
    """What a job runs: a run of Frog's trainer, or a program."""

    @property
    def name(self) -> str: ...

    def world_problems(self, world_size: int) -> list[str]: ...


@dataclass(frozen=True)
class ProgramWork:
    """A program of the user's own."""

    words: tuple[str, ...]
    """Its command: `my.py ...`, `-m package ...`, `python my.py ...`, or another command."""
    name: str
    """Name of the job; that of its run folder followed by the job's number."""
    requeue: bool = False
    """True if the program resumes from its own checkpoints, so that the job may start again."""
    observer: Path | None = None
    """Folder of the observer's code, as the job sees it; None to run without. In a bundle it is relative."""
    folder: str | None = None
    """Folder of a bundle that has the program's files; None to run where the job is submitted."""
    own_python: bool = False
    """True if a bundle's setup.sh creates the environment."""

    def world_problems(self, world_size: int) -> list[str]:
        return []

    @property
    def target(self) -> str:
        """The program as torchrun's last words, quoted for a shell."""
        return shlex.join(self.torchrun_words)

    @property
    def torchrun_words(self) -> tuple[str, ...]:
        """The program as torchrun's last words. torchrun reads $$ as one $."""
        words = self.words_after_python
        if words[0] != "-m" and not words[0].endswith(".py"):
            words = ("--no-python", *self.words)
        return tuple(word.replace("$", "$$") for word in words)

    @property
    def words_after_python(self) -> tuple[str, ...]:
        """The command without a Python in front of it."""
        return self.words[1:] if _PYTHON.fullmatch(self.words[0]) else self.words

    @property
    def file(self) -> str | None:
        """The script or program that must exist in the job's folder; None for a module or a command on PATH."""
        words = self.words_after_python
        return words[0] if words and (words[0].endswith(".py") or "/" in words[0]) else None


def program_work(
    words: Sequence[str], *, to: str, requeue: bool, observer: Path | None, name: str | None
) -> ProgramWork:
    """Return the work that runs a command on a kind of cluster, `to`. A pod's image can have a program of its own.

    Raises:  UsageError if the file does not exist, or if the command would start ranks itself.
    """
    first = Path(words[0]).name
    if first in _LAUNCHERS:
        raise UsageError(
            f"{first}: the job file starts torchrun on every node itself",
            f"frog submit --to {to} --nodes 2 --ranks-per-node 4 -- {_after_launcher(words)}",
        )
    script = next((word for word in words if not word.startswith("-") and not _PYTHON.fullmatch(word)), first)
    stem = script.rpartition(".")[2] if "-m" in words[:2] else Path(script).stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name or stem).strip("-.")
    work = ProgramWork(tuple(words), plain or "program", requeue, observer)
    if len(words) == 1 and _PYTHON.fullmatch(words[0]):
        raise UsageError(f"{words[0]}: no script to run", f"frog submit --to {to} -- my.py")
    if any(not word.isprintable() for word in words):
        raise UsageError("the command must be one line of printable characters", "put it into a script")
    in_image = to == "kubernetes" and work.file is not None and Path(work.file).is_absolute()
    if work.file is not None and not in_image and not Path(work.file).is_file():
        raise UsageError(f"{work.file}: no such file", "submit from the folder that contains it")
    return work


def _after_launcher(words: Sequence[str]) -> str:
    place = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    return "my.py" if place is None else shlex.join(words[place:])


def named_files(run_file: Path, config: RunConfig) -> dict[str, Path]:
    """Return the model file, DeepSpeed's and a strategy of one's own, by the setting that names each.

    Raises:  ConfigError if two of them, or one and the run file, have the same name: they will share a folder.
    """
    named = {"model.file": run_file.parent / config.source.file}
    if config.strategy.implementation == "deepspeed":
        named["strategy.deepspeed_file"] = deepspeed_path(config)
    if config.strategy.file is not None:
        named["strategy.file"] = Path(config.strategy.file)
    paths = [run_file, *named.values()]
    if len({path.name for path in paths}) < len(paths):
        raise ConfigError(
            f"two files have the same name: {', '.join(map(str, paths))}", "rename one: they will share a folder"
        )
    return named


def strategy_settings(named: dict[str, Path], folder: str) -> list[str]:
    """Return the settings with which a run finds the files of its strategy in a folder."""
    return [f"{name}={folder}/{path.name}" for name, path in named.items() if name.startswith("strategy.")]


LARGEST_NAMED = 128 << 10
"""Largest size of a file that is sent because the command names it; a larger one is data."""


@dataclass(frozen=True)
class ProgramFiles:
    """The files to send, as paths relative to the working folder, and named files that are not sent."""

    sent: tuple[str, ...]
    data: tuple[str, ...] = ()
    """Binary or large files that the command names."""


def find_program_files(words: Sequence[str], script: str | None, include: Sequence[str], folder: Path) -> ProgramFiles:
    """Return the files that a command needs from `folder`.

    words: the command after Python. script: its script, or None for `-m MODULE` or a command on PATH.
    include: patterns of further files and folders.

    Raises:  UsageError if a file lies outside of the folder, is missing, or cannot be parsed.
    """
    chosen: set[Path] = set()
    for start in _starts(words, script, folder):
        chosen |= _with_imports(start, folder if script is None else start.parent)
    for pattern in include:
        chosen |= _matching(pattern, folder)
    named = {path for word in words for path in _named(word, folder)} - chosen
    data = {path for path in named if path.stat().st_size > LARGEST_NAMED or not is_text(path)}
    inside = {_inside(path, folder) for path in chosen | named - data}
    return ProgramFiles(tuple(sorted(inside)), tuple(sorted(_inside(path, folder) for path in data)))


def imported_packages(files: Sequence[Path]) -> set[str]:
    """Return the top-level names that files import and that none of them defines, skipping files with errors."""
    packages: set[str] = set()
    for path in files:
        with contextlib.suppress(UsageError):
            packages |= {module[0] for module in _imports(path, path.parent) if module}
    return packages - {path.stem for path in files} - {part for path in files for part in path.parts[:-1]}


def is_text(path: Path) -> bool:
    """True if a file is text in UTF-8."""
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def largest(files: Iterable[str], folder: Path) -> str:
    """Return a list of the largest files with their sizes, for an error."""
    sizes = sorted(((folder / name).stat().st_size, name) for name in files)[-3:]
    return ", ".join(f"{name} ({format_bytes(size)})" for size, name in reversed(sizes))


def _starts(words: Sequence[str], script: str | None, folder: Path) -> list[Path]:
    """Return the files with which the program starts: its script, or the module's files if they are in the folder."""
    if script is not None:
        return [folder / script]
    if len(words) < 2 or words[0] != "-m":
        return []
    module = words[1].split(".")
    return [*_files_of(module, folder), *_files_of([*module, "__main__"], folder)]


def _with_imports(start: Path, root: Path) -> set[Path]:
    """Return a file and, if it is Python, the files below `root` that it imports, directly or not."""
    files, waiting = {start}, [start]
    while waiting:
        path = waiting.pop()
        if path.suffix != ".py":
            continue
        new = {imported for module in _imports(path, root) for imported in _files_of(module, root)} - files
        files |= new
        waiting += sorted(new)
    return files


def _imports(path: Path, root: Path) -> Iterator[list[str]]:
    """Yield the modules that a file's import statements name, wherever they are, as parts of dotted names."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: not valid Python: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _package_of(path, root, node.level) + (node.module.split(".") if node.module else [])
            yield from ([*base, name.name] for name in node.names)


def _package_of(path: Path, root: Path, level: int) -> list[str]:
    """Return the package from which a relative import of `level` dots starts; nothing for an absolute one."""
    if level == 0:
        return []
    parts = path.parent.relative_to(root).parts
    return list(parts[: len(parts) - level + 1])


def _files_of(module: Sequence[str], root: Path) -> Iterator[Path]:
    """Yield the files that importing a module executes: its packages' `__init__.py` and its own."""
    for length in range(1, len(module) + 1):
        place = root.joinpath(*module[:length])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


def _named(word: str, folder: Path) -> Iterator[Path]:
    """Yield the file that an argument names: `configs/a.yaml` or `--config=configs/a.yaml`."""
    for text in {word, word.partition("=")[2]}:
        path = folder / text
        if text and not os.path.isabs(text) and ".." not in path.parts and path.is_file():
            yield path


def _matching(pattern: str, folder: Path) -> set[Path]:
    """Return the files that a pattern of --include matches, and those below a folder that it matches."""
    if os.path.isabs(pattern) or ".." in Path(pattern).parts:
        raise UsageError(f"--include {pattern}: must be below this folder", "submit from a folder that contains it")
    matches = [folder / name for name in glob(pattern, root_dir=folder, recursive=True)]
    files = {path for match in matches for path in (match, *match.rglob("*")) if path.is_file()}
    if not files:
        raise UsageError(f"--include {pattern}: no such file")
    return {path for path in files if "__pycache__" not in path.parts}


def _inside(path: Path, folder: Path) -> str:
    """Return a path relative to the folder."""
    relative = os.path.relpath(path, folder)
    if relative.startswith(".."):
        raise UsageError(
            f"{relative}: is outside of this folder, and only files below it are sent",
            "submit from a folder that contains all of the program",
        )
    return relative


LARGEST_FILE, LARGEST_FOLDER = 100 << 20, 2 << 30
_SKIPPED = ("__pycache__", "node_modules", "runs", "wandb", "*.egg-info")
"""Folders that hold what programs and tools left, for a project without git."""
_GIT_TIMEOUT_S = 60


def project_files(folder: Path, needed: Iterable[str], exclude: Sequence[str], target: Path) -> list[str]:
    """Return the files below `folder` to take: those that git does not ignore, and the needed ones.

    exclude: patterns of files and folders to leave out. target: the bundle, which may lie in the folder.

    Raises:  UsageError if a link leads out of the folder, or if a file or all files together are too large.
    """
    listed = _git_files(folder)
    names = {*(_walk(folder) if listed is None else listed), *needed}
    own = Path(os.path.abspath(target))
    kept = sorted(
        name
        for name in names
        if not any(_matches(name, pattern) for pattern in exclude) and not (folder.resolve() / name).is_relative_to(own)
    )
    for name in kept:
        _check_inside(folder, name)
    _check_sizes(folder, kept)
    return kept


def _git_files(folder: Path) -> list[str] | None:
    """Return the files that git knows or does not ignore; None if the folder is not in a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    words = [git, "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, env=child_env(), capture_output=True, timeout=_GIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [file for name in names for file in _below(folder, name)]


def _below(folder: Path, name: str) -> Iterator[str]:
    """Yield a file, or the files of a submodule; nothing for a file that was deleted."""
    path = folder / name
    if path.is_file() or path.is_symlink():
        yield name
    elif path.is_dir():
        yield from (f"{name}/{inner}" for inner in _walk(path))


def _walk(folder: Path) -> Iterator[str]:
    """Yield the files of a folder without hidden ones, environments and what programs left."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(Path(place) / name)]
        for name in files:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)


def _is_skipped(path: Path) -> bool:
    name = path.name
    skipped = name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in _SKIPPED)
    return skipped or (path / "pyvenv.cfg").exists()


def _matches(name: str, pattern: str) -> bool:
    """True if a pattern matches a file's path, its name, or a folder above it."""
    parts = name.split("/")
    tops = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatch(text, pattern.rstrip("/")) for text in (*tops, *parts))


def _check_inside(folder: Path, name: str) -> None:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{name}: a link to {os.path.realpath(path)}, which is outside of this folder",
            f"copy the file here, or leave it out: --exclude {name}",
        )
    if not name.isprintable():
        raise UsageError(f"{name!r}: a file's name must be one line of printable characters", "rename the file")
    if not path.is_file():
        raise UsageError(f"{name}: not a file that can be copied", f"leave it out: --exclude {name}")


def _check_sizes(folder: Path, names: Sequence[str]) -> None:
    sizes = sorted(((folder / name).stat().st_size, name) for name in names)
    if not sizes:
        raise UsageError("this folder has no files to take along", "run it in the program's folder")
    size, name = sizes[-1]
    hint = f"leave it out (--exclude {name}), and copy it to the cluster yourself"
    if size > LARGEST_FILE:
        most = format_bytes(LARGEST_FILE)
        raise UsageError(f"{name}: {format_bytes(size)}, but a bundle takes files of at most {most}", hint)
    total = sum(size for size, _ in sizes)
    if total > LARGEST_FOLDER:
        largest = ", ".join(f"{name} ({format_bytes(size)})" for size, name in sizes[:-4:-1])
        raise UsageError(
            f"this folder has {format_bytes(total)}, but a bundle takes at most {format_bytes(LARGEST_FOLDER)}; "
            f"largest: {largest}",
            "leave out what is data: --exclude 'data/*'",
        )
