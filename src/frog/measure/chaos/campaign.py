"""A campaign: faults drawn from a seed, each injected into a separate world and checked against the undisturbed run."""

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

from frog.core.config.fault_kinds import KINDS
from frog.core.errors import FrogError, LaunchError, UsageError
from frog.core.files import write_atomic
from frog.core.runs.folder import RunFolder, check_output
from frog.core.schema import shortened
from frog.core.units import parse_whole
from frog.launch.launch_commands import read_world
from frog.launch.nodes import Nodes
from frog.measure.chaos.oracle import Oracle, read_oracle
from frog.measure.chaos.sandbox import FOLDER, Sandbox, read_sandbox
from frog.measure.chaos.survival import Loss, plan_all_losses, plan_losses, run_loss
from frog.measure.chaos.trial import Launch, Setting, Verdict, run_trial

_HEAD = ("  no", f"{'fault':<42}", "exit", "left s", f"{'found':<38}", f"{'continued':<19}", " sec", "verdict")


def run_campaign(args: argparse.Namespace, program: Sequence[str]) -> int:
    """Run `frog chaos --campaign N|all`; return exit code 1 if any trial failed its checks."""
    count = read_count(args.campaign)
    if args.restarts is not None:
        raise UsageError("a campaign restarts every other world on its own", "omit --restarts or --campaign")
    if args.replace:
        raise UsageError("--replace cannot be combined with --campaign", "omit one of them")
    shrinks = args.on_loss == "shrink"
    if args.nproc is None and args.nodes is None:
        args.nproc = 4 if shrinks else 2
    nodes, options = read_world(args)
    kinds = choose_kinds(args.kinds, nodes, options.network is not None, shrinks)
    sandbox = read_sandbox(program)
    if sandbox.resumes:
        raise UsageError("all runs of a campaign start at step 0", "omit --resume or --campaign")
    setting, out = make_setting(args, sandbox), args.out or FOLDER / f"seed-{args.seed}.txt"
    check_output(out)
    make = SurvivalCampaign if shrinks else Campaign
    campaign = make(setting, count, args.seed, out, args.kinds)
    print(f"the undisturbed run: runs/{campaign.oracle_name}", flush=True)
    with _sigterm_is_ctrl_c():
        oracle = campaign.run_oracle()
        return campaign.run(oracle, kinds, may_restart=lambda kind: can_restart(kind, nodes))


def read_count(words: str) -> int | None:
    """Parse the number of faults of a campaign; None: all possible faults."""
    if words == "all":
        return None
    number = parse_whole(words)
    if not number:
        raise UsageError(f"--campaign {shortened(words)}: expected a number of faults, at least 1, or all")
    return number


def choose_kinds(requested: str | None, nodes: Nodes, network: bool, shrinks: bool = False) -> list[str]:
    """Return the kinds that a campaign draws from: those named, or every kind that is possible in such a world.

    shrinks: only losses that leave other ranks.
    """
    size = nodes.most * nodes.ranks
    if shrinks and size < 3:
        raise UsageError(f"--on-loss shrink: a world of {size}: one remaining rank is not a majority", "use --nproc 4")
    possible = [name for name, kind in KINDS.items() if kind.missing(size, network, shrinks) is None]
    if shrinks:
        possible = [name for name in possible if KINDS[name].survivable and (nodes.several or not KINDS[name].of_node)]
    if requested is None:
        return possible
    names = requested.split(",")
    if wrong := [name for name in names if name not in possible]:
        raise UsageError(f"--kinds: {', '.join(wrong)}: impossible in this world", f"use {', '.join(possible)}")
    return names


def can_restart(kind: str, nodes: Nodes) -> bool:
    """True if the launcher can restart after it: not without its only node, nor if a cut is permanent."""
    if not KINDS[kind].of_node:
        return True
    return nodes.elastic if KINDS[kind].severs else nodes.several


def make_setting(args: argparse.Namespace, sandbox: Sandbox) -> Setting:
    """Return the settings shared by all trials; one thread per rank by default, since many worlds run."""
    world = ["--nodes", args.nodes] if args.nodes else ["--nproc", str(args.nproc)]
    world += ["--threads", str(args.threads or 1), *(["--network", args.network] if args.network else [])]
    return Setting(sandbox.program, world, args.deadline, sandbox.config.train.timeout_s)


@dataclass
class Campaign:
    """The trials so far, and the file that always contains all of them."""

    words: ClassVar[str] = ""
    """Further options on the command line."""
    recovered: ClassVar[str] = "recovered to the undisturbed run's weights"
    took: ClassVar[str] = "from the fault to the last exit"

    setting: Setting
    count: int | None
    """None: every kind in every phase; at every step too, unless the runs survive losses."""
    seed: int
    out: Path
    kinds: str | None = None
    """The requested kinds; None: every possible kind."""
    verdicts: list[Verdict] = field(default_factory=list)
    num_faults: int = 0

    @property
    def oracle_name(self) -> str:
        return f"chaos-{self.seed}-undisturbed"

    def run_oracle(self) -> Oracle:
        """Run without a fault. Raises LaunchError if that fails."""
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
        """Run all trials; the table contains the finished ones even if this is interrupted."""
        planned = self.plan(kinds, oracle, may_restart)
        self.num_faults = len(planned)
        print("  ".join(_HEAD), flush=True)
        try:
            for number, verdict in enumerate(planned, 1):
                name = f"chaos-{self.seed}-{number:03d}"
                try:
                    self.meet(verdict, name, oracle)
                except FrogError as error:  # for example an unreadable folder, which counts as a finding
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
        """Return the trials to run."""
        faults = (
            oracle.everywhere(kinds, self.seed) if self.count is None else oracle.draw(kinds, self.count, self.seed)
        )
        restarts = draw_restarts([fault.kind for fault in faults], self.seed, may_restart)
        return [Verdict(fault, again) for fault, again in zip(faults, restarts, strict=True)]

    def meet(self, verdict: Verdict, name: str, oracle: Oracle) -> None:
        """Run one trial."""
        run_trial(self.setting, verdict, name, oracle)

    def _tidy(self, folder: RunFolder, verdict: Verdict) -> None:
        """Delete the run of a successful trial; for a failed one, save its problems and output in the run folder."""
        if not verdict.problems:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif folder.path.is_dir():
            (folder.path / "chaos.txt").write_text("\n".join([*verdict.problems, "", verdict.output]))

    def table(self) -> str:
        """Return the table: one line per trial, its problems below it, and the summary."""
        rows = [row(number, verdict) for number, verdict in enumerate(self.verdicts, 1)]
        world = " ".join(self.setting.world)
        args = f"--campaign {self.count or 'all'} --seed {self.seed}{self.words}"
        args += f" --kinds {self.kinds}" if self.kinds else ""
        world += f" --deadline {self.setting.deadline_s:g}"
        title = f"frog chaos {args} {world} -- {' '.join(self.setting.program)}"
        return "\n".join([title, "", "  ".join(_HEAD), *rows, "", self.summary(), ""])

    def summary(self) -> str:
        """Summarize how many trials passed, by kind, and how long they took."""
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
            f"{done} of {self.num_faults} faults tested: {done - len(bad)} handled correctly, {len(bad)} not",
            f"{self.recovered}: {sum(v.recovered for v in self.verdicts)} of {done}",
            f"kinds: {kinds}",
            f"phases: {', '.join(f'{phase} {number}' for phase, number in phases.most_common())}",
            f"time per trial: {statistics.median(seconds):.1f} s (median), {sum(seconds) / 60:.0f} min in total",
        ]
        if left:
            lines.append(f"{self.took}: {statistics.median(left):.1f} s (median), {max(left):.1f} s at most")
        return "\n".join(lines)


class SurvivalCampaign(Campaign):
    """A campaign of runs that survive losses: `--on-loss shrink`."""

    words = " --on-loss shrink"
    recovered = "continued with the undisturbed run's samples and losses"
    took = "from the detection of a loss to the new world"

    def plan(self, kinds: Sequence[str], oracle: Oracle, may_restart: Callable[[str], bool]) -> Sequence[Verdict]:
        if self.count is None:
            return plan_all_losses(kinds, oracle, self.seed)
        return plan_losses(oracle.draw(kinds, self.count, self.seed), oracle, self.seed)

    def meet(self, verdict: Verdict, name: str, oracle: Oracle) -> None:
        assert isinstance(verdict, Loss)
        run_loss(self.setting, verdict, name, oracle)

    def summary(self) -> str:
        num_kills = Counter(v.where.partition(",")[0] for v in self.verdicts if isinstance(v, Loss) and v.where)
        places = ", ".join(f"{where} {number}" for where, number in num_kills.most_common())
        return super().summary() + (f"\nkilled midway: {places}" if num_kills else "")


def draw_restarts(kinds: Sequence[str], seed: int, may_restart: Callable[[str], bool]) -> list[int]:
    """Decide which trials the launcher restarts: every second one of each kind; a user resumes the others."""
    generator = random.Random(f"{seed} restarts")
    turn = {kind: generator.randrange(2) for kind in KINDS}
    restarts = []
    for kind in kinds:
        turn[kind] = 1 - turn[kind]
        restarts.append(turn[kind] if may_restart(kind) else 0)
    return restarts


def row(number: int, verdict: Verdict) -> str:
    """Format a trial as one line, with its problems below it."""
    fault = verdict.fault
    cells = (
        f"{number:4}",
        f"{fault!s:<42}",
        f"{'' if verdict.code is None else verdict.code:>4}",
        f"{'' if verdict.left_s is None else format(verdict.left_s, '.1f'):>6}",
        f"{verdict.seen:<38}",
        f"{verdict.continuation:<19}",
        f"{verdict.seconds:4.0f}",
        "ok" if not verdict.problems else "NOT ok",
    )
    extras = [f"{'':6}+ {words}" for words in verdict.extras]
    return "\n".join(["  ".join(cells), *extras, *(f"{'':6}- {problem}" for problem in verdict.problems)])


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C in this block, so that the finished trials are kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
