"""Record what `frog check` compares: what stands for gradients and weights, batches, learning rates, calls, by step.

`install()` waits for the program's torch and adds hooks and watched functions to it. They read tensors, and change
neither a number nor a random state nor a collective. If anything here fails, recording stops and the program continues.
FROG_CHECK has the number of steps from one sampled step to the next. Needs the standard library of Python 3.9 and the
program's torch. See docs/observe/run-folder.md for the file.
"""

from __future__ import annotations

import importlib
import os

from ..place import after_earlier_starts, find_place  # noqa: TID252 its absolute name differs below a launcher

VARIABLE = "FROG_CHECK"


def install() -> None:
    """Record in this process if it is a rank, and if a check is asked for."""
    every, place = os.environ.get(VARIABLE, ""), find_place(os.environ, os.getpid())
    if not every.isdigit() or int(every) == 0 or place is None:
        return
    from .step_recorder import StepRecorder
    from .watched_functions import watch
    from .watched_states import watch_safetensors

    recorder = StepRecorder(after_earlier_starts(place), int(every))
    # the neighbour that simulates GPUs has the finder that both need
    replace = importlib.import_module("frog_simulated_gpus.replace")
    replace.after_import(
        {
            "torch": lambda module: watch(recorder),
            "safetensors.torch": lambda module: watch_safetensors(recorder, module),
        }
    )
