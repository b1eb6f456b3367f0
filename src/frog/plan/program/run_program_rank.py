"""Run a training program with fake tensors until its last planned step, and write what it did as JSON.

    python -P -m frog.plan.program.run_program_rank REQUEST.json

The request names the program, its arguments, the rank, the GPU and the file of facts.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import runpy
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from frog.core.processes import leave_with_parent
from frog.plan.program import stand_in_cuda_rank, stand_in_fsdp1_rank, stand_in_rank
from frog.plan.program.messages_rank import PostOffice
from frog.plan.program.recording_rank import CannotFake, Complete, Recorder, is_user_file, user_line
from frog.plan.program.stand_in_flash_attn_rank import stand_in_for_flash_attn
from frog.plan.program.virtual_clock import VirtualClock


class Run:
    """The optimizer steps of a program, of which the last one is kept."""

    def __init__(self, recorder: Recorder, clock: VirtualClock, num_steps: int) -> None:
        self.recorder, self.clock, self.num_steps, self.num_done = recorder, clock, num_steps, 0
        self.notes: dict[str, int] = {}
        self.kept: dict[str, Any] | None = None
        """The facts of the planned step, when it is complete."""
        self.step_memory = 0
        self.parameters: dict[int, list[int]] = {}
        self._stepped: set[int] = set()
        """The optimizers that have made the current step: a rank with several stages may have several."""
        self._last: tuple[list[Any], int, dict[str, int]] = [], 0, {}

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Classify parameters and gradients, before an optimizer's step."""
        recorder = self.recorder
        if recorder.began or id(optimizer) in self._stepped:
            self._stepped.clear()
        elif self._stepped:
            self._continue_step()
        self._stepped.add(id(optimizer))
        recorder.rows.append(["wait", "reduce"])
        recorder.in_optimizer = True
        params = [param for group in optimizer.param_groups for param in group["params"]]
        recorder.classify(params, "parameters")
        recorder.classify([param.grad for param in params if param.grad is not None], "gradients")
        for param in params:
            whole = 0 if stand_in_fsdp1_rank.is_flat(param) else param.numel()
            self.parameters[id(param)] = [whole, getattr(param, "_local_tensor", param).numel()]

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Classify an optimizer's state; keep the facts of the last step.

        The program continues to its next forward pass, so that it prints its speed.
        """
        recorder = self.recorder
        recorder.in_optimizer = recorder.began = False
        recorder.classify(
            [leaf for leaf in tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)], "optimizer state"
        )
        self.num_done += 1
        self.clock.end_step()
        if self.num_done == self.num_steps:
            self.kept = copy.deepcopy(facts_of(self, None))
            recorder.is_complete = True
        self._last = list(recorder.rows), self.step_memory, dict(recorder.embedded)
        recorder.rows.clear()
        if recorder.stream:
            recorder.rows.append(["stream", recorder.stream])
        recorder.embedded.clear()
        self.step_memory = len(recorder.memory)

    def _continue_step(self) -> None:
        """Take back the end of a step: another optimizer follows before the next forward pass."""
        rows, self.step_memory, embedded = self._last
        self.recorder.rows[:0] = rows
        self.recorder.embedded.update(embedded)
        self.recorder.is_complete = False
        self.num_done -= 1
        self.clock.continue_step(len(rows))


def facts_of(run: Run, error: str | None) -> dict[str, Any]:
    """Return the facts of a run for its file."""
    recorder = run.recorder
    return {
        "version": 1,
        "error": error,
        "steps": run.num_done,
        "parameters": stand_in_fsdp1_rank.num_flat() + sum(whole for whole, _ in run.parameters.values()),
        "rank_parameters": sum(own for _, own in run.parameters.values()),
        "lines": recorder.lines,
        "rows": recorder.rows,
        "groups": recorder.groups,
        "storages": recorder.storages,
        "memory": recorder.memory,
        "step_memory": run.step_memory,
        "answered": recorder.answered,
        "no_rule": recorder.no_rule,
        "embedded": recorder.embedded,
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest",
        "notes": run.notes,
    }


def main() -> None:
    """Run the program of the request."""
    request = json.loads(Path(sys.argv[1]).read_text())
    leave_with_parent()
    if os.getppid() != request["parent"]:  # which ended while torch was imported
        os._exit(1)
    world_size = request["world_size"]
    facts = stand_in_cuda_rank.GpuFacts
    facts.name, facts.memory, facts.count = request["gpu"], request["gpu_memory"], request["gpus_per_node"]
    facts.num_sms = request["num_sms"]
    recorder = Recorder()
    office = PostOffice(Path(request["folder"]), request["rank"], recorder)
    _seed(office.rank)
    cluster = pickle.loads((office.folder / "cluster").read_bytes())
    run = Run(recorder, VirtualClock(recorder, cluster, world_size, office.rank, office), request["steps"])
    error = None
    try:
        _execute(run, request, office)
    except Complete:
        pass
    except CannotFake as problem:
        error = str(problem)
    except SystemExit as end:
        if end.code not in (None, 0):
            error = f"the program ended with exit code {end.code} before its {request['steps']} optimizer steps"
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        error = f"{_place(problem)}: {type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    ended_early = error is None and run.kept is None
    if ended_early:
        error = f"the program ended after {run.num_done} of {request['steps']} optimizer steps"
    written = run.kept or facts_of(run, error)
    facts_file = office.folder / f"facts-{office.rank}"
    staging = office.folder / f".facts-{office.rank}"
    of_end = {"clock_readings": run.clock.num_asked, "ended_early": ended_early}
    staging.write_text(json.dumps({**written, **of_end}))
    staging.rename(facts_file)
    sys.stdout.flush()
    office.end()
    os._exit(0)


def _seed(rank: int) -> None:
    """Seed what a program without a seed of its own draws from, so that its plan is the same each time."""
    random.seed(rank)
    torch.manual_seed(rank)
    with suppress(ImportError):
        import numpy

        numpy.random.seed(rank)


def _place(problem: BaseException) -> str:
    """Return the innermost line of the user's files in a traceback."""
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if is_user_file(frame.filename)]
    return f"{os.path.relpath(lines[-1].filename)}:{lines[-1].lineno}" if lines else user_line() or "the program"


def _execute(run: Run, request: dict[str, Any], office: PostOffice) -> None:
    """Run the program of the request under the fake tensors.

    Raises:  Complete in the forward pass after the planned steps; CannotFake if torch lacks a part; what the program
             raises.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    except ImportError as missing:
        raise CannotFake(f"torch {torch.__version__}: {missing}") from None
    recorder = run.recorder
    stand_in_rank.Replicated.recorder = recorder
    stand_in_cuda_rank.stand_in_for_cuda(recorder, run.clock)
    stand_in_rank.stand_in_for_distributed(recorder, office, request["world_size"], run.clock.catch_up)
    stand_in_rank.stand_in_for_torch(recorder, run.notes)
    stand_in_for_flash_attn(recorder)
    register_optimizer_step_pre_hook(run.before)
    register_optimizer_step_post_hook(run.after)
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
    warnings.filterwarnings("ignore", "DTensor random operators")  # the mesh is the CPU's only here
    program = request["program"]
    sys.argv = [program, *request["arguments"]]
    sys.path.insert(0, os.getcwd() if request["is_module"] else str(Path(program).resolve().parent))
    run.clock.stand_in_for_time()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, recorder, stand_in_rank.Translate(recorder, fake):
        if request["is_module"]:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
