"""The agent of `frog run`, in a process forked for it: `python -u agent.py TASK`. TASK: its command and environment."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from typing import Any

from frog.core.env import replace_env

command, env = json.loads(sys.argv[1])
replace_env(env)
sys.orig_argv, sys.argv = command, command[3:]
if not sys.flags.safe_path:
    sys.path[0] = os.getcwd()
for number, name in ((1, "stdout"), (2, "stderr")):  # unbuffered, as under `python -u`
    was, raw = getattr(sys, name), io.FileIO(number, "w", closefd=False)
    raw.name = f"<{name}>"
    stream: Any = io.TextIOWrapper(raw, was.encoding, was.errors, write_through=True)
    stream.mode = "w"
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
sys.modules.pop(sys.argv[0])  # it was only imported for its dependencies
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
