"""A rank that trains several runs in one world, each like `frog train`: `many_runs_worker.py RUNS.json`.

Starting a world takes longer than such a run. RUNS.json contains the command-line arguments of each run.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch

from frog.core.env import world_env
from frog.core.processes import leave
from frog.train import main as program
from frog.train import setup, start
from frog.train.comm import join_world

world = join_world(world_env(), torch.device("cpu"), timeout_s=60)
for words in json.loads(Path(sys.argv[1]).read_text()):
    with ExitStack() as kept:
        kept.enter_context(patch.object(start, "join_world", lambda *args, **kwargs: world))
        kept.enter_context(patch.object(world, "leave"))
        kept.enter_context(patch.object(setup, "launch_dir", lambda: None))  # a launch stores its run's name there
        code = program.main(words)
    world.forget_axes()
    if code:
        leave(code)
world.leave()
leave(0)
