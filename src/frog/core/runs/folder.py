"""All paths of a run, in one class."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import RunError, UsageError
from frog.core.files import folders_with, link_folder
from frog.core.runs.record import Record, RunFile
from frog.core.schema import read_typed

_RESTORE = "restore the file from a copy, or run again"
_STEP_FOLDER = re.compile(r"step_(\d{8})")


@dataclass(frozen=True)
class RunFolder:
    """`runs/<name>/`: the complete configuration, events and results of a run."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def record_json(self) -> Path:
        return self.path / "record.json"

    @property
    def attempt_json(self) -> Path:
        return self.path / "attempt.json"

    @property
    def join_endpoint_json(self) -> Path:
        """Address and secret with which `frog join` adds a rank to an elastic run."""
        return self.path / "join_endpoint.json"

    @property
    def tokenizer_json(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def strategy_py(self) -> Path:
        """Copy of a strategy of one's own."""
        return self.path / "strategy.py"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def adapter(self) -> Path:
        """Result of a fine-tuning run."""
        return self.path / "adapter"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def launcher_events(self) -> Path:
        return self.events / "launcher.jsonl"

    @property
    def heartbeats(self) -> Path:
        return self.path / "heartbeats"

    def heartbeat(self, rank: int) -> Path:
        return self.heartbeats / f"rank_{rank}.json"

    def node_log(self, node_rank: int) -> Path:
        return self.logs / f"node_{node_rank}" / "agent.log"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank_{rank}" / "train.log"

    def trace(self, rank: int) -> Path:
        """Return a rank's trace; large traces are gzipped."""
        plain = self.profile / f"rank_{rank}.trace.json"
        zipped = plain.with_suffix(".json.gz")
        return zipped if zipped.exists() else plain

    def rank_events(self, rank: int) -> Path:
        return self.events / f"rank_{rank}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    def staged_checkpoint(self, step: int, attempt: str) -> Path:
        """Return the folder in which an attempt writes a step's checkpoint until it is complete."""
        return self.checkpoints / f".step_{step:08d}.{attempt}"

    def unfinished_checkpoints(self) -> list[Path]:
        """Return staging folders, and checkpoints that a new one of the same step is replacing."""
        return sorted(self.checkpoints.glob(".step_*"))

    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a checkpoint folder, in order; `frog.train.checkpoint` verifies their content.

        Raises:  RunError if the checkpoints folder cannot be read.
        """
        try:
            names = os.listdir(self.checkpoints)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(
                f"{self.checkpoints}: cannot be read: {error.strerror}", "`ls -ld` shows its owner"
            ) from None
        return sorted(int(match[1]) for name in names if (match := _STEP_FOLDER.fullmatch(name)))

    def event_ranks(self) -> list[int]:
        """Return the ranks with an events file, in order."""
        return _ranks(self.events, r"rank_(\d+)\.jsonl")

    def heartbeat_ranks(self) -> list[int]:
        """Return the ranks with a heartbeat, in order."""
        return _ranks(self.heartbeats, r"rank_(\d+)\.json")

    def link_logs(self, root: Path = Path()) -> bool:
        """Make `logs` in `root` a link to this run's logs. False if `logs` is a real folder."""
        return link_folder(root / "logs", self.logs)

    def read_run_json(self) -> RunFile:
        """Read run.json. Raises RunError if this is not a run folder, or has another format."""
        try:
            return read_typed(self.run_json, RunFile, _RESTORE)
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run: run.json is missing", "`frog runs` lists the runs") from None

    def read_achieved(self) -> Record | None:
        """Read record.json, which later failed starts do not change. Raises RunError if the file is damaged."""
        try:
            return read_typed(self.record_json, Record, _RESTORE)
        except FileNotFoundError:
            return None

    def read_record(self) -> Record | None:
        """Read how the last start ended, even if it failed; None while it runs or if it was killed. Raises as above."""
        with contextlib.suppress(FileNotFoundError):
            return read_typed(self.attempt_json, Record, _RESTORE)
        record = self.read_achieved()
        if record is None or record.starts is None or not self.run_json.exists():
            return record
        return record if record.starts >= len(self.read_run_json().segments) else None

    @property
    def resume_command(self) -> str:
        """Command that resumes this run."""
        with contextlib.suppress(RunError):
            if self.read_run_json().finetune is not None:
                return f"frog finetune --resume {self.path}"
        return f"frog train --resume {self.path}"


def _ranks(folder: Path, pattern: str) -> list[int]:
    names = (re.fullmatch(pattern, entry.name) for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in names if match)


_OWN = {"run.json", "record.json", "attempt.json", "join_endpoint.json", "door.json", "tokenizer.json"}
_OWN_FOLDERS = {"events", "heartbeats", "logs", "checkpoints", "adapter"}


def check_output(path: Path) -> None:
    """Check an output path that a user chose. Raises UsageError if writing it would overwrite a file of a run."""
    real = Path(os.path.realpath(path.parent)) / path.name
    for folder in real.parents:
        first = real.relative_to(folder).parts[0]
        if first in _OWN | _OWN_FOLDERS and os.path.lexists(real) and os.path.exists(folder / "run.json"):
            raise UsageError(f"{path} is a file of the run in {folder} and would be overwritten", "choose another file")


def free_name(name: str, runs: Path = Path("runs")) -> str:
    """Return `name` if no run has it, else `name-2` and so on."""
    taken = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def find_run(text: str, runs: Path = Path("runs")) -> RunFolder:
    """Find the run that a user names: a folder, a name under `runs/`, or `latest`.

    Raises:  RunError if the run does not exist.
    """
    if text == "latest":
        latest = _latest(runs)
        if latest.run_json.is_file():
            return latest
        raise _only_observed(latest.path)
    try:
        for candidate in (Path(text), runs / text):
            if (candidate / "run.json").is_file():
                return RunFolder(candidate)
    except PermissionError:
        raise RunError(f"{candidate}: cannot be read: Permission denied", "`ls -ld` shows its owner") from None
    except OSError:  # for example a name of 300 letters
        pass
    if observed := _observed_at(text, runs):
        raise _only_observed(observed)
    raise RunError(f"{text}: no run folder here or under {runs}/", "`frog runs` lists the runs")


def _observed_at(text: str, runs: Path) -> Path | None:
    """Return the folder that a user names if an observer wrote there."""
    return next((path for path in (Path(text), runs / text) if os.path.isdir(path / "observed")), None)


def _only_observed(path: Path) -> RunError:
    return RunError(
        f"{path}: only an observer wrote here, so there are no logs and no checkpoints",
        f"frog report {path}, or frog diagnose {path}",
    )


def _latest(runs: Path) -> RunFolder:
    """Return the run that began last, also one of which only the observer wrote. Raises RunError if there is none."""
    began = {folder: os.stat(folder / "run.json").st_mtime for folder in folders_with(runs, "run.json")}
    for folder in only_observed(runs):
        began[folder] = max(os.stat(attempt).st_mtime for attempt in (folder / "observed").glob("attempt_*"))
    if not began:
        raise RunError(f"no runs under {runs}/", "`make demo` creates one")
    return RunFolder(max(began, key=lambda folder: began[folder]))


def only_observed(runs: Path) -> list[Path]:
    """Return the folders of programs below plain torchrun or srun, in which only the observers of ranks wrote."""
    return [folder for folder in folders_with(runs, "observed") if is_only_observed(folder)]


def is_only_observed(folder: Path) -> bool:
    """Return whether only the observers of ranks wrote in a folder, not a launcher of Frog."""
    return not (folder / "run.json").exists() and any(folder.glob("observed/attempt_*"))


def find_evidence(text: str) -> RunFolder:
    """Find the run that a user names, as `find_folder` does, or a folder in which only observers wrote.

    Raises:  RunError if neither exists.
    """
    if text == "latest":
        return _latest(Path("runs"))
    named = _observed_at(text, Path("runs"))
    return RunFolder(named) if named is not None else find_folder(text)


def find_folder(text: str) -> RunFolder:
    """Find the run that a user names, even if it failed before it wrote run.json.

    Raises:  RunError if the run does not exist.
    """
    try:
        return find_run(text)
    except RunError:
        for candidate in (Path(text), Path("runs") / text):
            folder = RunFolder(candidate)
            if any(part.is_dir() for part in (folder.events, folder.heartbeats, folder.logs)):
                return folder
        raise
