"""Run all probes concurrently, as programs with a common deadline, and collect their reports."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from frog.core.files import remove_abandoned, scratch_folder
from frog.launch.harness import Program
from frog.learn.doctor.needs import NEEDS
from frog.learn.doctor.seen import SCRATCH, Seen, read_reports

_RANK = ("-m", "frog.learn.doctor.doctor_rank")
_WHO = """import sys
from frog.core.env import variable as of
sys.stdout.write(f"rank {of('RANK')} of {of('WORLD_SIZE')}\\n")"""
"""Writes the line in one call: both ranks share a file, and with PYTHONUNBUFFERED print writes word by word."""
_TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
_MACHINE = ("here", "name", "files", "namespaces")


def probe_machine(deadline_s: float, rank: Sequence[str] = _RANK) -> dict[str, Seen]:
    """Return the finding for each need, by name. Ends all probe processes, even after an error or Ctrl-C."""
    deadline = time.monotonic() + deadline_s
    with scratch_folder("frog-doctor-") as scratch, contextlib.ExitStack() as stack:
        for folder in (scratch.parent, Path.cwd()):
            stack.callback(remove_abandoned, folder, SCRATCH)
        programs = {}
        for name, words in _programs(scratch, rank).items():
            (scratch / name).mkdir()
            programs[name] = stack.enter_context(Program([sys.executable, "-P", *words], scratch / name))
        codes = {name: program.wait(max(0.0, deadline - time.monotonic())) for name, program in programs.items()}
        outputs = {name: program.output for name, program in programs.items()}
    reported = [seen for output in outputs.values() for seen in read_reports(output)]
    reported.append(_torchrun(codes["torchrun"], outputs["torchrun"]))
    silent = _silence(codes, outputs, deadline_s)
    answered = any(codes.values())  # a probe that failed explains the silence
    return {
        need.name: _worst([seen for seen in reported if seen.name == need.name], silent, need.name, answered)
        for need in NEEDS
    }


def _programs(scratch: Path, rank: Sequence[str]) -> dict[str, list[str]]:
    """Return the probes' commands; those that load torch come first because they take the longest."""
    return {
        **{f"rank {number}": [*rank, str(number), str(scratch / "store")] for number in (0, 1)},
        "torchrun": [*_TORCHRUN, "--no-python", sys.executable, "-P", "-c", _WHO],
        **{name: ["-m", "frog.learn.doctor.machine", name, str(scratch.parent)] for name in _MACHINE},
        "tools": ["-m", "frog.learn.doctor.tools"],
    }


def _torchrun(code: int | None, output: str) -> Seen:
    """Check that both ranks printed their rank."""
    if code == 0 and all(f"rank {number} of 2" in output for number in (0, 1)):
        return Seen(name="torchrun", ok=True, text="starts a world of two")
    if code is None:
        return Seen(name="torchrun", ok=False, text="ran out of time", answered=False)
    last = (output.strip().splitlines() or ["the probe printed nothing"])[-1]
    return Seen(name="torchrun", ok=False, text=f"ended with {code}: {last}")


def _worst(seen: Sequence[Seen], silent: str, name: str, answered: bool) -> Seen:
    """Return a failed finding if any rank reported one, else a good one. answered: False if silence is a time-out."""
    missing = Seen(name=name, ok=False, text=silent, answered=answered)
    if not seen or (name.startswith("gloo ") and len(seen) < 2 and seen[0].ok):
        return missing
    return next((report for report in seen if not report.ok), seen[0])


def _silence(codes: Mapping[str, int | None], outputs: Mapping[str, str], deadline_s: float) -> str:
    """Explain why a probe reported nothing."""
    for name, code in codes.items():
        if code:
            last = (outputs[name].strip().splitlines() or ["nothing"])[-1]
            return f"the probe ({name}) ended with {code}: {last}"
    return f"no answer within {deadline_s:g} s; on a slow machine: frog doctor --deadline {4 * deadline_s:g}"
