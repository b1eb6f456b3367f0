"""The agent of `frog run`, in a process forked for it: `python -u agent.py TASK`. TASK: its command and environment."""

from __future__ import annotations

import json
import os
import runpy
import sys

from unbuffered import unbuffer

from frog.core.env import replace_env

command, env = json.loads(sys.argv[1])
replace_env(env)
sys.orig_argv, sys.argv = command, command[3:]
if not sys.flags.safe_path:
    sys.path[0] = os.getcwd()
unbuffer()
sys.modules.pop(sys.argv[0])  # it was only imported for its dependencies
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
