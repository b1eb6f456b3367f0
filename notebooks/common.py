"""Shared by the notebooks: the project's folder, commands as a user types them, and the report's colours."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from frog.core.runs import RecordedRun, read_run
from frog.core.runs.folder import RunFolder
from frog.observe.view.palette import PHASE_COLORS, RANK_COLORS

ROOT = Path(__file__).resolve().parents[1]
os.chdir(ROOT)  # use the project's data/ and runs/, wherever the kernel was started
sys.path.insert(1, str(ROOT / "scripts"))  # import the labs' scripts unchanged

PHASES = {phase: light for phase, (light, _) in PHASE_COLORS.items()}
RANKS = [light for light, _ in RANK_COLORS]

plt.rcParams |= {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": plt.cycler(color=RANKS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.figsize": (9, 3.4),
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def frog(*words: str, fails: bool = False) -> None:
    """Run a command of Frog in a separate process; show the command and its output.

    Raises:  RuntimeError if it fails, or if it should fail and does not.
    """
    print("$ frog", shlex.join(words))
    command = [sys.executable, "-m", "frog.cli", *words]
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}  # a kernel sets it
    done = subprocess.run(command, env=plain, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(done.stdout.rstrip())


def train(name: str, *settings: str, nproc: int) -> RecordedRun:
    """Train config/demo.toml in a world of `nproc` ranks, replacing an earlier run of that name; read its events."""
    folder = RunFolder(Path("runs") / name)
    shutil.rmtree(folder.path, ignore_errors=True)
    given = [word for setting in (f"name={name}", *settings) for word in ("--set", setting)]
    frog("run", "--nproc", str(nproc), "--threads", "1", "--", "train", "config/demo.toml", *given)
    return read_run(folder)
