"""The paths of a run: one class owns them all."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.errors import RunError
from frog.core.files import link_folder

_STEP_FOLDER = re.compile(r"step_(\d{8})")


@dataclass(frozen=True)
class RunFolder:
    """`runs/<name>/`, complete in itself: what was asked, what happened, what came out."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def record_json(self) -> Path:
        return self.path / "record.json"

    @property
    def tokenizer_json(self) -> Path:
        return self.path / "tokenizer.json"

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
        """A rank's trace; a large one is gzipped."""
        plain = self.profile / f"rank_{rank}.trace.json"
        zipped = plain.with_suffix(".json.gz")
        return zipped if zipped.exists() else plain

    def rank_events(self, rank: int) -> Path:
        return self.events / f"rank_{rank}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint folder, in order; whether each can be trusted is `frog.checkpoint`'s to say."""
        if not self.checkpoints.is_dir():
            return []
        matches = (_STEP_FOLDER.fullmatch(entry.name) for entry in self.checkpoints.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def event_ranks(self) -> list[int]:
        """Ranks that left an events file, in order."""
        if not self.events.is_dir():
            return []
        names = (re.fullmatch(r"rank_(\d+)\.jsonl", entry.name) for entry in self.events.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def link_logs(self, root: Path = Path()) -> bool:
        """Make `logs` in `root` a link to this run's logs. False if a real folder stands there."""
        return link_folder(root / "logs", self.logs)

    def read_run(self) -> dict[str, Any]:
        """The content of run.json. Raises RunError if this is not a run folder."""
        return self._read(self.run_json, "no run there: run.json is missing")

    def read_record(self) -> dict[str, Any] | None:
        """The content of record.json, or None while the run has not ended."""
        return self._read(self.record_json, "") if self.record_json.exists() else None

    def _read(self, path: Path, absent: str) -> dict[str, Any]:
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path}: {absent}", "`frog runs` lists the runs") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: not valid JSON: {error}", "restore the file, or run again") from None
        if not isinstance(value, dict):
            raise RunError(f"{path}: holds a {type(value).__name__}, not an object")
        return value


def free_name(name: str, runs: Path = Path("runs")) -> str:
    """`name` if no run has it, else `name-2` and so on."""
    taken = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    return next(
        found for number in itertools.count(1) if (found := f"{name}-{number}" if number > 1 else name) not in taken
    )


def find_run(text: str, runs: Path = Path("runs")) -> RunFolder:
    """The run that a user names: a folder, a name under `runs/`, or `latest`.

    Raises:  RunError if there is none, with the names that are near.
    """
    if text == "latest":
        folders = list(runs.glob("*/run.json")) if runs.is_dir() else []
        if not folders:
            raise RunError(f"no runs under {runs}/", "`make demo` makes one")
        return RunFolder(max(folders, key=lambda entry: entry.stat().st_mtime).parent)
    for candidate in (Path(text), runs / text):
        if (candidate / "run.json").is_file():
            return RunFolder(candidate)
    raise RunError(f"{text}: no run folder there, nor under {runs}/", "`frog runs` lists the runs")
