"""`python -m frog.train.profile.profile_rank RUN.toml`: a rank of a short run whose last steps torch.profiler records.

`frog profile` starts this. The run takes a few steps to warm up; then the same number of plain steps as it will record,
to measure the profiler's own cost; one step with the profiler on, in which it settles; and then the recorded ones. It
ends there, without a last evaluation or a checkpoint.
It is the real training loop with an observer: the trace has a mark `frog::step N` around each
step and `frog::forward` and so on around its phases.

Every rank leaves profile/rank_N.trace.json, as torch writes it, and profile/rank_N.json about it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from frog.core.config.arguments import add_profile_arguments
from frog.core.env import quiet_profiler
from frog.core.files import write_json
from frog.core.processes import leave
from frog.core.runs.observer import Observer, observing
from frog.core.runs.record import FORMAT
from frog.core.runs.vocabulary import Phase
from frog.train.comm import Axis
from frog.train.main import run_rank, train_run
from frog.train.parallel.mesh import Mesh
from frog.train.record import write_end
from frog.train.setup import Run
from frog.train.workload import Workload

WARM_UP_STEPS = 2


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="frog.train.profile.profile_rank", description="Profile a short run, on this rank."
    )
    add_profile_arguments(parser)
    args = parser.parse_args(arguments)
    args.resume, args.go_on, args.set = None, False, [*args.set, *_short(args.steps)]
    return run_rank(args, functools.partial(profiled, num_recorded=args.steps))


def _plain(num_recorded: int) -> range:
    return range(WARM_UP_STEPS + 1, WARM_UP_STEPS + num_recorded + 1)


def _recorded(num_recorded: int) -> range:
    first = _plain(num_recorded).stop + 1
    return range(first, first + num_recorded)


def _short(num_recorded: int) -> list[str]:
    """Return the overrides that make a run short: its steps, one held-out window at the start, nothing else."""
    num_steps = _recorded(num_recorded).stop - 1
    aside = (f"eval.every={num_steps}", "eval.tokens=1", "eval.sample_tokens=0", f"checkpoint.every={num_steps}")
    return [f"train.steps={num_steps}", *aside]


def profiled(run: Run, workload: Workload, num_recorded: int) -> dict[str, Any]:
    """Run the training loop and record its last steps; write the run's record, and return it. A collective call."""
    start_time = time.monotonic()
    watch = Watch(run, num_recorded)
    try:
        with observing(watch):
            return train_run(run, workload)  # only if it was asked to stop before the recorded steps were done
    except _Done:
        pass
    wall_s = time.monotonic() - start_time
    watch.write()
    run.world.barrier()
    step = run.config.train.steps
    tokens = step * run.config.train.global_batch_size * run.config.data.sequence_length
    record = {"status": "completed", "step": step, "loss": watch.loss_mean, "eval": None, "weights_sha256": None}
    record |= {"order_sha256": None, "tokens": tokens, "wall_s": wall_s, "tokens_per_s": tokens / wall_s}
    if run.world.is_main:
        write_end(run.folder, record)
    return record


class _Done(Exception):
    """The last recorded step is done. Raised to skip the loop's last evaluation and checkpoint."""


class Watch(Observer):
    """Marks steps and phases in the trace, starts and stops the profiler."""

    def __init__(self, run: Run, num_recorded: int) -> None:
        self._run = run
        self._plain, self._recorded = _plain(num_recorded), _recorded(num_recorded)
        self._step_mark: record_function | None = None
        self._phase_mark: record_function | None = None
        self.loss_mean: float | None = None
        activities = [ProfilerActivity.CPU]
        if run.world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        quiet_profiler()
        self._profiler = profile(activities=activities, record_shapes=True)

    def phase_begins(self, step: int, phase: Phase, micro: int) -> None:
        """Begin a step: the data phase starts it."""
        if phase == "data":
            self._begin_step(step)
        self._phase_mark = _mark(phase)

    def phase_ends(self, step: int, phase: Phase, micro: int) -> None:
        _close(self._phase_mark)

    def event_written(self, event: str, fields: Mapping[str, Any]) -> None:
        """End a step: the event `step` closes it."""
        if event == "step":
            self._end_step(fields["step"])
            self.loss_mean = fields["loss_mean"]
            if fields["step"] == self._recorded[-1]:
                raise _Done

    def _begin_step(self, step: int) -> None:
        if step == self._recorded[0] - 1:  # excludes the cost of starting, which differs between ranks, from all marks
            self._profiler.prepare_trace()
            self._profiler.start_trace()
        if step in self._recorded:
            self._step_mark = _mark(f"step {step}")

    def _end_step(self, step: int) -> None:
        _close(self._step_mark)
        self._step_mark = None
        if step == self._recorded[-1]:
            if self._run.world.device.type == "cuda":
                torch.cuda.synchronize()
            self._profiler.stop_trace()

    def write(self) -> None:
        """Write the trace, and next to it the data that a reader needs."""
        folder, rank = self._run.folder.profile, self._run.world.rank
        folder.mkdir(exist_ok=True)
        self._profiler.export_chrome_trace(str(folder / f"rank_{rank}.trace.json"))
        steps = {"plain_steps": list(self._plain), "recorded_steps": list(self._recorded)}
        about = {"format": FORMAT, "rank": rank, **steps, "axes": _axes(self._run.mesh)}
        write_json(folder / f"rank_{rank}.json", about)


def _mark(name: str) -> record_function:
    mark = record_function(f"frog::{name}")
    mark.__enter__()  # type: ignore[no-untyped-call]
    return mark


def _close(mark: record_function | None) -> None:
    if mark is not None:
        mark.__exit__(None, None, None)


def _axes(mesh: Mesh) -> dict[str, list[int]]:
    """Return the ranks of this rank's group on each axis, by the names that collectives use."""
    axes = [mesh.world.axis, *(axis for axis in vars(mesh).values() if isinstance(axis, Axis))]
    return {axis.name: list(axis.ranks) for axis in axes if axis.size > 1}


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
