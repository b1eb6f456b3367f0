"""One rank of a short ddp run that records the files of Frog between `frog train` and each action of a step.

path_worker.py NAME

Whenever a forward pass, a gradient's all-reduce, the optimizer's step or its zeroing begins inside a training step, the
rank records the files on the call stack, in order; each rank writes them to NAME-RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType

import frog
from frog.cli import main
from frog.core.env import world_env
from frog.core.processes import leave

SOURCE = f"{Path(frog.__file__).parent}/"
ACTIONS = {
    ("train/model/transformer.py", "forward"): "forward",
    ("train/comm/axis.py", "all_reduce"): "reduce",
    ("train/parallel/scratch.py", "step"): "optimize",
    ("train/parallel/scratch.py", "zero"): "zero",
}
ASIDE = ("attend", "conclude")
"""Actions of the loop between steps."""

found: dict[str, list[str]] = {}


def place(frame: FrameType) -> tuple[str, str]:
    return frame.f_code.co_filename.removeprefix(SOURCE), frame.f_code.co_name


def note(frame: FrameType, event: str, argument: object) -> None:
    if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
        return
    action = ACTIONS.get(place(frame))
    if action is None or action in found:
        return
    callers, one = [], frame
    while one is not None:
        if one.f_code.co_filename.startswith(SOURCE):
            callers.append(place(one))
        one = one.f_back if place(one) != ("cli.py", "main") else None  # exclude the code that started this process
    names = [name for _, name in callers]
    if "take_steps" in names and not set(ASIDE) & set(names):
        found[action] = list(dict.fromkeys(file for file, _ in reversed(callers)))


name = sys.argv[1]
settings = (f"name={name}", "train.steps=2", "checkpoint.every=2", "eval.every=2", "eval.sample_tokens=0")
sys.setprofile(note)
code = main(["train", "run.toml", *(word for text in settings for word in ("--set", text))])
sys.setprofile(None)
Path(f"{name}-{world_env().rank}.json").write_text(json.dumps(found))
leave(code)
