"""One trial: a world with a fault, and a check of the required outcome from outside."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault
from frog.core.processes import is_alive
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import AnyLauncherEvent, WorldEvent
from frog.core.runs.read import read_launcher
from frog.launch.harness import Program
from frog.measure.chaos.oracle import Oracle, diagnosis_problems, recovery_problems, resume_problems, resumed_from
from frog.measure.chaos.sandbox import faults_env, met_faults, write_faults
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.run_diagnosis import diagnose

_LAST_S = 10.0
"""How long processes may survive their launcher."""

_STOP_S = 60.0
"""How long an interrupted trial may take to end."""


@dataclass(frozen=True)
class Setting:
    """The settings shared by all trials of a campaign."""

    program: Sequence[str]
    world: Sequence[str]
    """The arguments of `frog run` that set the world size."""
    deadline_s: float
    timeout_s: float

    @property
    def leave_s(self) -> float:
        """Time until all ranks must have exited: the deadline for a hang, the collective's timeout for a lost peer."""
        return self.deadline_s + self.timeout_s + 20

    @property
    def end_s(self) -> float:
        """Time after which a launch is killed."""
        return 4 * self.leave_s + 120


@dataclass
class Verdict:
    """The outcome of a trial."""

    fault: Fault
    restarts: int
    seconds: float = 0.0
    code: int | None = None
    left_s: float | None = None
    """Time from the fault to the end of the world in which it occurred."""
    diagnosis: Diagnosis | None = None
    from_step: int | None = None
    """Step at which the next world resumed."""
    recovered: bool = False
    problems: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def extras(self) -> list[str]:
        """Further events, for the table."""
        return []

    @property
    def seen(self) -> str:
        """The diagnosis, for the table."""
        diagnosis = self.diagnosis
        if diagnosis is None:
            return ""
        fields = {"rank": diagnosis.rank, "step": diagnosis.step, "phase": diagnosis.phase}
        return " ".join([diagnosis.fault, *(f"{name}={value}" for name, value in fields.items() if value is not None)])

    @property
    def continuation(self) -> str:
        """The run's continuation, for the table."""
        how = "restarted" if self.restarts else "resumed"
        return "" if self.from_step is None else f"{how} at step {self.from_step}"


def run_trial(setting: Setting, verdict: Verdict, name: str, oracle: Oracle) -> None:
    """Run a world with the fault; without restarts, resume it afterwards; record the problems."""
    fault, restarts = verdict.fault, verdict.restarts
    folder, start_s = RunFolder(Path("runs") / name), time.monotonic()
    shutil.rmtree(folder.path, ignore_errors=True)
    words = [*setting.program, "--set", f"name={name}"]
    with tempfile.TemporaryDirectory(prefix="frog-trial-") as scratch:
        faults = Path(scratch) / "faults.toml"
        write_faults(faults, [fault])
        launch = Launch(setting, words, restarts, Path(scratch), faults_env(faults))
        launch.run(folder)
        verdict.code, verdict.output = launch.code, launch.output
        verdict.problems += launch.problems
        met = met_faults(faults)
        if not met:
            verdict.problems.append("the fault never occurred")
        else:
            _check_end(verdict, setting, folder, launch, met[0])
        if verdict.code and not restarts:
            again = Launch(setting, [*words, "--continue"], 0, Path(scratch), {})
            again.run(folder)
            verdict.problems += again.problems + ([f"resumed: exit code {again.code}"] if again.code else [])
            verdict.output += again.output
    wrong = recovery_problems(oracle, folder)
    verdict.recovered = not wrong
    if met and KINDS[fault.kind].ends:
        wrong += resume_problems(fault, folder)
        verdict.from_step = resumed_from(folder)
    if met:
        verdict.diagnosis = verdict.diagnosis or diagnose(folder)
        verdict.problems += diagnosis_problems(fault, verdict.diagnosis, oracle)
    wrong += [f"left behind: {path.name}" for path in folder.unfinished_checkpoints()]
    verdict.seconds = time.monotonic() - start_s
    verdict.problems += wrong


def _check_end(verdict: Verdict, setting: Setting, folder: RunFolder, launch: Launch, met_s: float) -> None:
    """Check the exit code, the error message and the duration; then diagnose, before anything else happens."""
    fault, ends = verdict.fault, KINDS[verdict.fault.kind].ends
    must_fail = ends and verdict.restarts == 0
    if bool(verdict.code) != must_fail:
        verdict.problems.append(f"exit code {verdict.code}")
    if ends:
        again = [e for e in read_launcher(folder).of(WorldEvent) if e.attempt == 1]
        end_s = again[0].unix_ns / 1e9 if again else launch.end_s
        verdict.left_s = end_s - met_s
        if verdict.left_s > setting.leave_s:
            verdict.problems.append(f"{verdict.left_s:.0f} s until all ranks exited; at most {setting.leave_s:.0f} s")
    if must_fail:
        verdict.problems += word_problems(fault, verdict.output)
        if folder.path.exists():
            verdict.diagnosis = diagnose(folder)


def word_problems(fault: Fault, output: str) -> list[str]:
    """Check that the user sees first which rank failed, with its error message: this judges the text itself.

    If a rank does something that its peers cannot follow, one of the peers may be the one that fails.
    """
    words = output[output.rfind("\nerror: ") + 1 :]
    if not words.startswith(("error: rank ", "error: node")):
        return ["no rank is named first"]
    kind = KINDS[fault.kind]
    if kind.named_first and f"error: rank {fault.rank} " not in words:
        return [f"another rank is named first: {words.splitlines()[0]}"]
    missing = kind.words.format(rank=fault.rank) not in words
    traceback = not kind.traceback and "Traceback (most recent call last)" in words
    problems = ["the rank's message is missing"] if missing else []
    return [*problems, "a traceback is shown"] if traceback else problems


class Launch:
    """One `frog run`, which must not leave any process, port or file outside its run folder."""

    def __init__(
        self, setting: Setting, words: Sequence[str], restarts: int, scratch: Path, changes: dict[str, str]
    ) -> None:
        self._setting, self._changes = setting, changes
        world = [*setting.world, "--deadline", f"{setting.deadline_s:g}", "--restarts", str(restarts)]
        self._command = [sys.executable, "-P", "-m", "frog.cli", "run", *world, "--", *words]
        self._scratch = scratch
        self.code: int | None = None
        self.output, self.end_s = "", 0.0
        self.problems: list[str] = []

    def run(self, folder: RunFolder) -> None:
        """Run a trial until its end or its deadline; record the files and processes that it leaves behind."""
        before = len(read_launcher(folder).events)
        with Program(self._command, self._scratch, self._changes) as program:
            try:
                self.code = program.wait(self._setting.end_s)
            except KeyboardInterrupt:
                program.end(_STOP_S)
                raise
            if self.code is None:
                self.problems.append(f"did not end within {self._setting.end_s:.0f} s")
                program.end()
            self.end_s = time.time()
            all_gone = program.all_gone(_LAST_S)
            events = read_launcher(folder).events[before:]
            if not all_gone:
                alive = [str(pid) for pid in _pids(events) if is_alive(pid)]
                self.problems.append(f"processes left behind: {', '.join(alive) or 'unknown'}")
        self.output = program.output
        self.problems += [f"left behind: {name}" for name in program.left_files()]
        if "network" not in " ".join(self._setting.world):
            self.problems += _ports_left(events)


def _pids(events: Sequence[AnyLauncherEvent]) -> list[int]:
    return [pid for event in events if isinstance(event, WorldEvent) for pid in event.pids]


def _ports_left(events: Sequence[AnyLauncherEvent]) -> list[str]:
    """Return the rendezvous addresses of the worlds that are still in use."""
    left = []
    for address, port in {(e.master_addr, e.master_port) for e in events if isinstance(e, WorldEvent)}:
        if re.fullmatch(r"[\d.]+", address):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port))
                except OSError as error:
                    left.append(f"port {address}:{port} is not free: {error.strerror}")
    return left
