"""Run the tutorial scripts as a learner does: from any folder, with a small prepared text and a tiny model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from harness import Harness, run_to_end
from warm_frog import warm_env

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = ("--data", "rhymes", "--config", "config.json", "--sequence-length", "16")
_MEET = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
_LAUNCH_VARIABLES = re.compile(r"(NODE_|LOCAL_|GROUP_|ROLE_)?RANK|N(NODES|PROC_PER_NODE)|(LOCAL_)?WORLD_SIZE|MASTER_.*")


class PageHarness(Harness):
    """A separate folder for one test. Starts scripts by their full path."""

    def start_page(self, name: str, *words: str, nproc: int | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a script with plain `python` or, if `nproc` is given, under torchrun."""
        begin = ("python",) if nproc is None else ("torchrun", f"--nproc_per_node={nproc}", *_MEET)
        env = {"OMP_NUM_THREADS": "1", **options.pop("env", {})}
        if options.get("warm"):
            env |= warm_env(nested=True)  # the launcher's page starts its nodes by sys.executable
        return self.start(*begin, str(SCRIPTS / name), *words, env=env, **options)

    def page(self, name: str, *words: str, code: int = 0, **options: Any) -> tuple[str, str]:
        """Run a script until it ends; return its stdout and stderr."""
        process = self.start_page(name, *words, warm=True, **options)
        return finish(process, code)


def finish(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for a process, which must end in time with this exit code; return its output."""
    out, err = run_to_end(process)
    assert process.returncode == code, f"exit code {process.returncode}, not {code}\n{out}\n{err}"
    return out, err


def make_page_harness(harness: Harness, folder: Path) -> PageHarness:
    """Fill `folder` with the prepared text and the files of `harness`; unset all launcher variables."""
    for name in [name for name in os.environ if _LAUNCH_VARIABLES.fullmatch(name)]:
        del os.environ[name]
    shutil.copytree(harness.root / "data", folder / "data")
    for name in ("config.json", "run.toml"):
        shutil.copy(harness.root / name, folder / name)
    return PageHarness(folder)
