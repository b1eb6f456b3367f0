"""Write a run's numbers as TensorBoard event files. Needs the extra `tensorboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from frog.core.errors import UsageError
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import SCALARS, History, RankHistory, read_history

_SUFFIX = ".frog"
_OF_RANK = ("loss", "grad_norm_local", "tokens", "memory_bytes")
_OF_ALL = tuple(name for name in SCALARS if name not in _OF_RANK)


def export_tensorboard(folder: RunFolder, target: Path | None = None) -> Path:
    """Write event files to `target` (default: `tensorboard` in the run folder) and return that folder.

    Each rank is a separate run in TensorBoard (`rank_0`); so are `all`, for the numbers that ranks agree on, and
    `held_out`, so that one chart shows `loss` of all of them. Files of an earlier call are replaced.

    Raises:  UsageError if the package tensorboard is not installed.
    """
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: F401
    except ImportError:
        raise UsageError(
            "the package tensorboard is not installed", "python -m pip install 'frog[tensorboard]'"
        ) from None
    folder.read_run_json()
    target = target or folder.path / "tensorboard"
    try:
        str(target).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{target}: tensorboard accepts only names in UTF-8", "name another folder: --to") from None
    for old in target.glob(f"*/events.out.tfevents.*{_SUFFIX}"):
        old.unlink()
    history = read_history(folder)
    for rank in history.ranks.values():
        _write_steps(target / f"rank_{rank.rank}", history, rank, {name: name for name in _OF_RANK})
    if history.main is not None:
        tags = {name: "loss" if name == "loss_mean" else name for name in _OF_ALL}
        _write_steps(target / "all", history, history.main, tags)
        _write_held_out(target / "held_out", history, history.main)
    return target


def _write_steps(folder: Path, history: History, rank: RankHistory, tags: dict[str, str]) -> None:
    series = {tag: rank.scalars[name] for name, tag in tags.items() if not np.isnan(rank.scalars[name]).all()}
    with _Writer(folder) as writer:
        for index, step in enumerate(rank.steps.tolist()):
            wall_s = (int(rank.end_ns[index]) + history.clock_offset_ns(rank.rank, int(rank.segment[index]))) / 1e9
            writer.scalars(step, wall_s, {tag: float(values[index]) for tag, values in series.items()})


def _write_held_out(folder: Path, history: History, main: RankHistory) -> None:
    if not (main.evals or main.samples):
        return
    times_s = {
        step: (int(end_ns) + history.clock_offset_ns(main.rank, int(segment))) / 1e9
        for step, end_ns, segment in zip(main.steps.tolist(), main.end_ns, main.segment, strict=True)
    }
    begin_s = history.segments[0].unix_ns / 1e9
    with _Writer(folder) as writer:
        for step, event in main.evals.items():
            values = {"loss": event.loss, "perplexity": event.perplexity, "bits_per_byte": event.bits_per_byte}
            known = {name: value for name, value in values.items() if value is not None}
            writer.scalars(step, times_s.get(step, begin_s), known)
        for step, sample in main.samples.items():
            text = sample.prompt + sample.text.removeprefix(sample.prompt)
            writer.text(step, times_s.get(step, begin_s), "sample", text)


class _Writer:
    """One event file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> _Writer:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = EventFileWriter(str(self._folder), filename_suffix=_SUFFIX)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def scalars(self, step: int, wall_s: float, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if values:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
            self._add(step, wall_s, summary)

    def text(self, step: int, wall_s: float, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        # Four spaces make it code in Markdown, so that the sample is shown as it is.
        block = "\n".join(f"    {line}" for line in text.splitlines())
        value = Summary.Value(
            tag=tag,
            tensor=make_tensor_proto([block.encode()]),
            metadata=create_summary_metadata(display_name="", description=""),
        )
        self._add(step, wall_s, Summary(value=[value]))

    def _add(self, step: int, wall_s: float, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._file.add_event(Event(wall_time=wall_s, step=step, summary=summary))
