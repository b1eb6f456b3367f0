"""A campaign: faults drawn from a seed, each met by a world of its own and held against the undisturbed run."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import ClassVar

from frog.chaos.oracle import Oracle, read_oracle
from frog.chaos.sandbox import FOLDER, Sandbox, read_sandbox
from frog.chaos.survival import Loss, plan_all_losses, plan_losses, run_loss
from frog.chaos.trial import Launch, Setting, Verdict, run_trial
from frog.config.fault_kinds import KINDS
from frog.core.errors import FrogError, LaunchError, UsageError
from frog.core.files import write_atomic
from frog.launch.commands import read_world
from frog.launch.nodes import Nodes
from frog.runs.folder import RunFolder, check_output

_HEAD = ("  no", f"{'fault':<42}", "exit", "left s", f"{'found':<38}", f"{'went on':<19}", " sec", "verdict")


def run_campaign(args: argparse.Namespace, program: Sequence[str]) -> int:
    """`frog chaos --campaign N|all`: exit code 1 if one trial was not as it must be."""
    count = read_count(args.campaign)
    if args.restarts is not None:
        raise UsageError("a campaign restarts every other world by itself", "leave --restarts out, or --campaign")
    if args.replace:
        raise UsageError("who is lost in a campaign is not replaced", "leave --replace out, or --campaign")
    shrinks = args.on_loss == "shrink"
    if args.nproc is None and args.nodes is None:
        args.nproc = 4 if shrinks else 2
    nodes, options = read_world(args)
    kinds = choose_kinds(args.kinds, nodes, options.network is not None, shrinks)
    sandbox = read_sandbox(program)
    if sandbox.resumes:
        raise UsageError("a campaign's runs all begin at step 0", "leave --resume out, or --campaign")
    setting, out = make_setting(args, sandbox), args.out or FOLDER / f"seed-{args.seed}.txt"
    check_output(out)
    make = SurvivalCampaign if shrinks else Campaign
    campaign = make(setting, count, args.seed, out, args.kinds)
    print(f"the undisturbed run: runs/{campaign.oracle_name}", flush=True)
    with _sigterm_is_ctrl_c():
        oracle = campaign.run_oracle()
        return campaign.run(oracle, kinds, may_restart=lambda kind: can_restart(kind, nodes))


def read_count(words: str) -> int | None:
    """How many faults a campaign draws; None: all that there can be."""
    if words == "all":
        return None
    if not words.isdecimal() or int(words) < 1:
        raise UsageError(f"--campaign {words}: a number of faults, at least 1, or all")
    return int(words)


def choose_kinds(requested: str | None, nodes: Nodes, network: bool, shrinks: bool = False) -> list[str]:
    """The kinds that a campaign draws from: those named, or all that can be in such a world.

    shrinks: only the losses after which others are left.
    """
    size = nodes.most * nodes.ranks
    if shrinks and size < 3:
        raise UsageError(f"--on-loss shrink: a world of {size}: of one left alone nobody can agree", "take --nproc 4")
    possible = [name for name, kind in KINDS.items() if kind.missing(size, network, shrinks) is None]
    if shrinks:
        possible = [name for name in possible if KINDS[name].survivable and (nodes.several or not KINDS[name].of_node)]
    if requested is None:
        return possible
    names = requested.split(",")
    if wrong := [name for name in names if name not in possible]:
        raise UsageError(f"--kinds: {', '.join(wrong)}: cannot be in this world", f"of {', '.join(possible)}")
    return names


def can_restart(kind: str, nodes: Nodes) -> bool:
    """Whether the launcher can go on after it: not without its only node, nor with all if one is cut off for good."""
    if not KINDS[kind].of_node:
        return True
    return nodes.elastic if KINDS[kind].severs else nodes.several


def make_setting(args: argparse.Namespace, sandbox: Sandbox) -> Setting:
    """What the trials have in common: one thread a rank unless asked otherwise, since many worlds are run."""
    world = ["--nodes", args.nodes] if args.nodes else ["--nproc", str(args.nproc)]
    world += ["--threads", str(args.threads or 1), *(["--network", args.network] if args.network else [])]
    return Setting(sandbox.program, world, args.deadline, sandbox.config.train.timeout_s)


@dataclass
class Campaign:
    """The trials so far, and the file that always holds all of them."""

    words: ClassVar[str] = ""
    """What else was typed."""
    recovered: ClassVar[str] = "recovered to the undisturbed run's weights"
    took: ClassVar[str] = "from fault to all gone"

    setting: Setting
    count: int | None
    """None: every kind in every phase, at every step where nobody goes on by himself."""
    seed: int
    out: Path
    kinds: str | None = None
    """The kinds that were asked for; None: all that can be."""
    verdicts: list[Verdict] = field(default_factory=list)
    num_faults: int = 0

    @property
    def oracle_name(self) -> str:
        return f"chaos-{self.seed}-undisturbed"

    def run_oracle(self) -> Oracle:
        """Run without a fault. Raises LaunchError if even that fails."""
        folder = RunFolder(Path("runs") / self.oracle_name)
        shutil.rmtree(folder.path, ignore_errors=True)
        words = [*self.setting.program, "--set", f"name={self.oracle_name}"]
        with tempfile.TemporaryDirectory(prefix="frog-trial-") as scratch:
            launch = Launch(self.setting, words, 0, Path(scratch), {})
            launch.run(folder)
        if launch.code or launch.problems:
            report = "\n".join([*launch.problems, *launch.output.splitlines()[-10:]])
            raise LaunchError(f"the undisturbed run failed with exit code {launch.code}\n{report}")
        return read_oracle(folder)

    def run(self, oracle: Oracle, kinds: Sequence[str], may_restart: Callable[[str], bool]) -> int:
        """Run all trials; what was done so far is in the table also if it is stopped."""
        planned = self.plan(kinds, oracle, may_restart)
        self.num_faults = len(planned)
        print("  ".join(_HEAD), flush=True)
        try:
            for number, verdict in enumerate(planned, 1):
                name = f"chaos-{self.seed}-{number:03d}"
                try:
                    self.meet(verdict, name, oracle)
                except FrogError as error:  # of a folder that cannot be read: a finding too
                    verdict.problems.append(str(error))
                self.verdicts.append(verdict)
                print(row(number, verdict), flush=True)
                write_atomic(self.out, self.table())
                self._tidy(RunFolder(Path("runs") / name), verdict)
        except KeyboardInterrupt:
            print(f"\nstopped: {self.summary()}\ntable: {self.out}", flush=True)
            raise
        print(f"\n{self.summary()}\ntable: {self.out}", flush=True)
        return 1 if any(verdict.problems for verdict in self.verdicts) else 0

    def plan(self, kinds: Sequence[str], oracle: Oracle, may_restart: Callable[[str], bool]) -> Sequence[Verdict]:
        """The trials to come."""
        faults = (
            oracle.everywhere(kinds, self.seed) if self.count is None else oracle.draw(kinds, self.count, self.seed)
        )
        restarts = draw_restarts([fault.kind for fault in faults], self.seed, may_restart)
        return [Verdict(fault, again) for fault, again in zip(faults, restarts, strict=True)]

    def meet(self, verdict: Verdict, name: str, oracle: Oracle) -> None:
        """Run one."""
        run_trial(self.setting, verdict, name, oracle)

    def _tidy(self, folder: RunFolder, verdict: Verdict) -> None:
        """The run of a trial that was as it must be is of no further use; of another, what was said is kept with it."""
        if not verdict.problems:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif folder.path.is_dir():
            (folder.path / "chaos.txt").write_text("\n".join([*verdict.problems, "", verdict.output]))

    def table(self) -> str:
        """Every trial in a line, what was not as it must be under it, and the summary."""
        rows = [row(number, verdict) for number, verdict in enumerate(self.verdicts, 1)]
        world = " ".join(self.setting.world)
        args = f"--campaign {self.count or 'all'} --seed {self.seed}{self.words}"
        args += f" --kinds {self.kinds}" if self.kinds else ""
        world += f" --deadline {self.setting.deadline_s:g}"
        title = f"frog chaos {args} {world} -- {' '.join(self.setting.program)}"
        return "\n".join([title, "", "  ".join(_HEAD), *rows, "", self.summary(), ""])

    def summary(self) -> str:
        """How many were as they must be, of each kind, and how long it took."""
        done = len(self.verdicts)
        if not done:
            return "0 faults"
        bad = [verdict for verdict in self.verdicts if verdict.problems]
        of, bad_of = (Counter(v.fault.kind for v in verdicts) for verdicts in (self.verdicts, bad))
        kinds = ", ".join(f"{kind} {of[kind] - bad_of[kind]}/{of[kind]}" for kind in KINDS if of[kind])
        phases = Counter(verdict.fault.phase for verdict in self.verdicts)
        left = [verdict.left_s for verdict in self.verdicts if verdict.left_s is not None]
        seconds = [verdict.seconds for verdict in self.verdicts]
        lines = [
            f"{done} of {self.num_faults} faults met: {done - len(bad)} as they must be, {len(bad)} not",
            f"{self.recovered}: {sum(v.recovered for v in self.verdicts)} of {done}",
            f"kinds: {kinds}",
            f"phases: {', '.join(f'{phase} {number}' for phase, number in phases.most_common())}",
            f"a trial took {statistics.median(seconds):.1f} s (median), {sum(seconds) / 60:.0f} min in all",
        ]
        if left:
            lines.append(f"{self.took}: {statistics.median(left):.1f} s (median), {max(left):.1f} s at most")
        return "\n".join(lines)


class SurvivalCampaign(Campaign):
    """Of runs that go on by themselves: `--on-loss shrink`."""

    words = " --on-loss shrink"
    recovered = "went on by themselves to the undisturbed run's samples and losses"
    took = "from when a loss was known to a new world"

    def plan(self, kinds: Sequence[str], oracle: Oracle, may_restart: Callable[[str], bool]) -> Sequence[Verdict]:
        if self.count is None:
            return plan_all_losses(kinds, oracle, self.seed)
        return plan_losses(oracle.draw(kinds, self.count, self.seed), oracle, self.seed)

    def meet(self, verdict: Verdict, name: str, oracle: Oracle) -> None:
        assert isinstance(verdict, Loss)
        run_loss(self.setting, verdict, name, oracle)

    def summary(self) -> str:
        found = Counter(v.where.partition(",")[0] for v in self.verdicts if isinstance(v, Loss) and v.where)
        places = ", ".join(f"{where} {number}" for where, number in found.most_common())
        return super().summary() + (f"\nkilled midway: {places}" if found else "")


def draw_restarts(kinds: Sequence[str], seed: int, may_restart: Callable[[str], bool]) -> list[int]:
    """For every other fault of a kind the launcher starts the world again; for the rest, a user resumes the run."""
    generator = random.Random(f"{seed} restarts")
    turn = {kind: generator.randrange(2) for kind in KINDS}
    restarts = []
    for kind in kinds:
        turn[kind] = 1 - turn[kind]
        restarts.append(turn[kind] if may_restart(kind) else 0)
    return restarts


def row(number: int, verdict: Verdict) -> str:
    """A trial in a line, and under it what was not as it must be."""
    fault = verdict.fault
    cells = (
        f"{number:4}",
        f"{fault!s:<42}",
        f"{'' if verdict.code is None else verdict.code:>4}",
        f"{'' if verdict.left_s is None else format(verdict.left_s, '.1f'):>6}",
        f"{verdict.seen:<38}",
        f"{verdict.went_on:<19}",
        f"{verdict.seconds:4.0f}",
        "ok" if not verdict.problems else "NOT as it must be",
    )
    beside = [f"{'':6}+ {words}" for words in verdict.beside]
    return "\n".join(["  ".join(cells), *beside, *(f"{'':6}- {problem}" for problem in verdict.problems)])


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """While inside, SIGTERM interrupts as Ctrl-C does, so that what was done so far is kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
