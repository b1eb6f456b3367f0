"""Runs that continue when ranks are lost (`comm.on_loss = "shrink"`): their faults, and the required outcome.

Each must finish without help, with the samples and losses of the undisturbed run, whichever ranks were lost or joined.
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault, marks_folder
from frog.core.runs import RecordedRun, read_run
from frog.core.runs.event_schema import EndEvent, MembershipEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.launch.harness import Program
from frog.measure.chaos.oracle import Oracle
from frog.measure.chaos.sandbox import faults_env, met_faults, where_met, write_faults
from frog.measure.chaos.trial import Launch, Setting, Verdict

_ATOL = 1e-5
"""Absolute tolerance of losses between worlds of different sizes."""

_SIGNS_A_STEP = 12
_LAST_SIGNS = 4
"""How many signs of life a rank gives at least: in a step with what follows it, and after the last step."""

_SENT_BYTES = (0, 1, 31, 4096)
"""How many bytes of an interrupted message are sent: none, part of its header, or more than most messages have."""

_MIDWAYS = 3
"""Number of places per phase, if every phase is covered."""

_SLOW_S = 1.5
"""Duration of each step while a rank joins."""

_STOP_TIMEOUT_S = 3
"""`train.timeout_s` if a rank is stopped: how long the others wait for it."""

_LEFT_S = 60.0
"""How long a joining rank may take to end after the run."""

_JOINING = """
import sys, time
from pathlib import Path
import frog.train.elastic.join
from frog.measure.chaos.collective_kills import CollectiveKills
from frog.cli import main
from frog.core.runs.observer import OBSERVERS

run, signs, mark = sys.argv[1:]
until_s = time.monotonic() + 120
while not (Path(run) / "run.json").exists() and time.monotonic() < until_s:
    time.sleep(0.01)
if signs:
    kills = CollectiveKills()
    OBSERVERS.append(kills)
    kills.kill_after(int(signs), lambda where: Path(mark).write_text(where) > 0)
sys.exit(main(["join", run]))
"""
"""`frog join`, with torch already loaded when the run starts; optionally killed after some signs of life."""


@dataclass
class Loss(Verdict):
    """The loss of a rank, possibly together with another loss, or while a rank joins."""

    others: tuple[Fault, ...] = ()
    """Other faults in the same run."""
    joins: bool = False
    """True if a rank joins."""
    joining_dies: bool = False
    """True if the fault is in the joining rank."""
    where: str = ""
    """Place in a collective where the rank was killed, if it was killed midway."""
    changes: tuple[MembershipEvent, ...] = ()

    @property
    def extras(self) -> list[str]:
        where = [f"killed {self.where}"] if self.where else []
        return [*where, *map(str, self.others), *(["another rank joins"] if self.joins else [])]

    @property
    def seen(self) -> str:
        changes = (("lost", [e.lost for e in self.changes]), ("joined", [e.joined for e in self.changes]))
        said = (
            f"{what} {', '.join(str(rank) for ranks in lists for rank in ranks)}"
            for what, lists in changes
            if any(lists)
        )
        return "; ".join(said)

    @property
    def continuation(self) -> str:
        return f"{len(self.changes[-1].members)} after step {self.changes[-1].step}" if self.changes else ""


_ALONE, _SCENES = 0, 5


def plan_all_losses(kinds: Sequence[str], oracle: Oracle, seed: int) -> list[Loss]:
    """Plan every kind in every phase, alone; then each kind once in every other scene."""
    often = [(kind, n) for kind in kinds for n in range(_MIDWAYS if "signs" in KINDS[kind].own else 1)]
    alone = [fault for kind, n in often for fault in oracle.everywhere([kind], seed + n, each_step=False)]
    others = oracle.draw(kinds, (_SCENES - 1) * len(kinds), seed)
    scenes = [_ALONE] * len(alone) + [1 + number // len(kinds) for number in range(len(others))]
    return plan_losses([*alone, *others], oracle, seed, scenes)


def plan_losses(faults: Sequence[Fault], oracle: Oracle, seed: int, scenes: Sequence[int] | None = None) -> list[Loss]:
    """Plan losses by scene: alone; of rank 0; two together; while a rank joins; of the joining rank."""
    generator, planned = random.Random(f"{seed} losses"), list[Loss]()
    through_sockets = len({*oracle.node_of.values()}) == oracle.world_size
    for number, (fault, scene) in enumerate(zip(faults, scenes or itertools.cycle(range(_SCENES)), strict=False)):
        kind = KINDS[fault.kind]
        if kind.of_node and kind.severs:
            scene = _ALONE  # either half may continue: there is no rank to spare
        fault = replace(fault, rank=0) if scene == 1 else fault
        most = _SIGNS_A_STEP if fault.step < oracle.record.step else _LAST_SIGNS
        if "signs" in kind.own:
            least, most = (most * (number % 3 + end) // 3 for end in (0, 1))  # early, in the middle, late
            sent_bytes = generator.choice(_SENT_BYTES) if through_sockets else None
            fault = replace(fault, signs=generator.randint(least, most), sent_bytes=sent_bytes)
        rest = sorted(set(oracle.node_of) - _gone(fault, oracle))
        slow = Fault("slow", generator.choice(rest), 1, "data", times=9, seconds=_SLOW_S)
        joining = Fault("midway", oracle.world_size, 0, "data", signs=generator.randint(0, 2 * _SIGNS_A_STEP))
        planned.append(
            [
                Loss(fault, 0),
                Loss(fault, 0),
                Loss(fault, 0, others=(Fault("kill", generator.choice(rest), fault.step, fault.phase, fault.micro),)),
                Loss(fault, 0, others=(slow,), joins=True),
                Loss(joining, 0, others=(slow,), joins=True, joining_dies=True),
            ][scene]
        )
    return planned


def _gone(fault: Fault, oracle: Oracle) -> set[int]:
    """Return the ranks that the fault removes."""
    if not KINDS[fault.kind].of_node:
        return {fault.rank}
    return {rank for rank, node in oracle.node_of.items() if node == oracle.node_of[fault.rank]}


def run_loss(setting: Setting, loss: Loss, name: str, oracle: Oracle) -> None:
    """Run a world that must survive the loss; record the problems."""
    folder, start_s = RunFolder(Path("runs") / name), time.monotonic()
    shutil.rmtree(folder.path, ignore_errors=True)
    faults = [loss.fault, *loss.others]
    words = [*setting.program, "--set", f"name={name}", "--set", "comm.on_loss=shrink"]
    if any(fault.kind == "stop" for fault in faults):
        words += ["--set", f"train.timeout_s={_STOP_TIMEOUT_S}"]
    with tempfile.TemporaryDirectory(prefix="frog-trial-") as scratch, ExitStack() as stack:
        path = Path(scratch) / "faults.toml"
        write_faults(path, faults)
        joining = stack.enter_context(_start_joining(loss, folder, path)) if loss.joins else None
        launch = Launch(setting, words, 0, Path(scratch), faults_env(path))
        launch.run(folder)
        loss.code, loss.output = launch.code, launch.output
        loss.problems += launch.problems + ([f"exit code {launch.code}"] if launch.code else [])
        if joining is not None:
            loss.problems += _joining_problems(loss, joining)
        met, loss.where = met_faults(path), where_met(path, 0)
    loss.problems += [f"fault never occurred: {fault}" for number, fault in enumerate(faults) if number not in met]
    run = read_run(folder)
    wrong = outcome_problems(run, oracle)
    loss.problems += wrong
    loss.recovered = not wrong
    loss.problems += member_problems(loss, run, oracle)
    loss.seconds = time.monotonic() - start_s


def _start_joining(loss: Loss, folder: RunFolder, faults: Path) -> Program:
    scratch, marks = faults.with_name("joining"), marks_folder(faults)
    scratch.mkdir()
    marks.mkdir()
    signs = str(loss.fault.signs) if loss.joining_dies else ""
    words = [str(folder.path), signs, str(marks / "0.0")]
    return Program([sys.executable, "-P", "-c", _JOINING, *words], scratch, {"OMP_NUM_THREADS": "1"})


def _joining_problems(loss: Loss, joining: Program) -> list[str]:
    code, expected = joining.wait(_LEFT_S), -signal.SIGKILL if loss.joining_dies else 0
    loss.output += joining.output
    return [] if code == expected else [f"the joining rank's exit code {code}, not {expected}"]


def outcome_problems(run: RecordedRun, oracle: Oracle) -> list[str]:
    """Compare a run's samples and losses with the undisturbed run's, and the weights of its ranks with each other."""
    record, calm = run.record, oracle.record
    if record is None or record.status != "completed":
        return [f"incomplete: {record.status if record else 'no record'}"]
    problems = [] if record.order_sha256 == calm.order_sha256 else ["used other samples"]
    reported: dict[int, list[float | None]] = {}  # from all ranks: the first may be lost
    for event in (event for said in run.ranks.values() for event in said.of(StepEvent)):
        reported.setdefault(event.step, []).append(event.loss_mean)
    far = [
        step for step, loss in oracle.losses.items() if not all(_close(own, loss) for own in reported.get(step, [None]))
    ]
    if far:
        problems.append(f"losses differ at steps {', '.join(map(str, far))}")
    if calm.eval is not None and not _close(record.eval.loss if record.eval else None, calm.eval.loss):
        problems.append(f"the held-out loss differs: {record.eval}, not {calm.eval}")
    return problems


def _close(loss: float | None, expected: float | None) -> bool:
    return loss is not None and expected is not None and abs(loss - expected) <= _ATOL


def member_problems(loss: Loss, run: RecordedRun, oracle: Oracle) -> list[str]:
    """Check that all members report the same changes, the right ranks remain, and their weights are equal."""
    reported = sorted((e for said in run.ranks.values() for e in said.of(MembershipEvent)), key=lambda e: e.epoch)
    by_epoch = {epoch: list(events) for epoch, events in itertools.groupby(reported, key=lambda e: e.epoch)}
    loss.changes = tuple(max(events, key=lambda e: len(e.lost + e.joined)) for events in by_epoch.values())
    loss.left_s = max((e.took_ns / 1e9 for e in reported), default=None)
    problems = [
        f"the members of epoch {epoch} report different changes"
        for epoch, events in by_epoch.items()
        if len({(e.step, tuple(e.members)) for e in events}) > 1
    ]
    last = loss.changes[-1].members if loss.changes else [*oracle.node_of]
    silent = {*last} - {e.identity for e in by_epoch[max(by_epoch)]} if by_epoch else set()
    problems += [f"rank {identity} of the last world did not report it" for identity in sorted(silent)]
    own, new = {*last} & {*oracle.node_of}, {*last} - {*oracle.node_of}
    if own not in _may_be_left(loss, oracle) or len(new) != (loss.joins and not loss.joining_dies):
        problems.append(f"remaining ranks: {sorted(last)}")
    ends = [run.ranks[rank].of(EndEvent) if rank in run.ranks else [] for rank in range(len(last))]
    hashes = {end[-1].weights_sha256 if end else None for end in ends}
    if run.record is not None and hashes != {run.record.weights_sha256}:
        problems.append(f"{len(hashes)} different weights at the end of {len(last)} ranks")
    return problems


def _may_be_left(loss: Loss, oracle: Oracle) -> list[set[int]]:
    """Return the possible sets of remaining ranks: either half of a cut network; lost connections may go unnoticed in
    the
    last step."""
    faults = [fault for fault in (loss.fault, *loss.others) if KINDS[fault.kind].ends and fault.rank in oracle.node_of]
    gone = set().union(*(_gone(fault, oracle) for fault in faults))
    rest = {*oracle.node_of} - gone
    kind, last = KINDS[loss.fault.kind], loss.fault.step == oracle.record.step
    if kind.severs and kind.of_node:
        return [rest, gone]
    return [rest, rest | {loss.fault.rank}] if kind.severs and last else [rest]
