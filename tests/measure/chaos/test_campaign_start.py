"""A campaign from its options to its trials, with a launch that only writes to the run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_campaign import DEMO, KILL, ORACLE

from frog.cli import main
from frog.core.config import load_run_config
from frog.core.errors import LaunchError, RunError
from frog.core.runs.folder import RunFolder
from frog.launch.nodes import Nodes, parse_nodes
from frog.measure.chaos import campaign
from frog.measure.chaos.campaign import Campaign, SurvivalCampaign, choose_kinds, draw_restarts
from frog.measure.chaos.oracle import Oracle
from frog.measure.chaos.survival import Loss, plan_all_losses, plan_losses
from frog.measure.chaos.trial import Setting, Verdict

SETTING = Setting(("train", "tiny.toml"), ("--nproc", "2"), 5.0, 10.0)


class Started:
    """The campaign that a command starts; it runs nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.campaign: Campaign
        self.kinds: list[str] = []
        self.may_restart: Callable[[str], bool]

        def run(campaign: Campaign, oracle: Oracle, kinds: list[str], may_restart: Callable[[str], bool]) -> int:
            assert oracle is ORACLE
            self.campaign, self.kinds, self.may_restart = campaign, kinds, may_restart
            return 5

        monkeypatch.setattr(Campaign, "run_oracle", lambda _: ORACLE)
        monkeypatch.setattr(Campaign, "run", run)

    def command(self, *words: str, number: str = "3") -> Setting:
        assert main(["chaos", "--campaign", number, *words, "--", "train", str(DEMO)]) == 5
        return self.campaign.setting


@pytest.mark.parametrize(
    ("words", "world", "kinds"),
    [
        ([], "--nproc 2 --threads 1", choose_kinds(None, Nodes(1, 1, 2), network=False)),
        (["--on-loss", "shrink"], "--nproc 4 --threads 1", choose_kinds(None, Nodes(1, 1, 4), False, shrinks=True)),
        (["--nproc", "3", "--threads", "2", "--kinds", "slow,kill"], "--nproc 3 --threads 2", ["slow", "kill"]),
        (["--nodes", "1:2x2"], "--nodes 1:2x2 --threads 1", choose_kinds(None, Nodes(1, 2, 2), network=False)),
        (
            ["--nodes", "2x2", "--network", "rate=10mbit"],
            "--nodes 2x2 --threads 1 --network rate=10mbit",
            choose_kinds(None, Nodes(2, 2, 2), network=True),
        ),
    ],
)
def test_world_and_kinds_of_a_campaign_follow_its_options(
    words: list[str],
    world: str,
    kinds: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    started = Started(monkeypatch)
    setting = started.command(*words)
    assert (" ".join(setting.world), setting.program) == (world, ("train", str(DEMO)))
    assert (setting.deadline_s, setting.timeout_s) == (15.0, load_run_config(DEMO).train.timeout_s)
    assert started.kinds == kinds
    assert type(started.campaign) is (SurvivalCampaign if "shrink" in words else Campaign)
    assert (started.campaign.count, started.campaign.seed) == (3, 1)
    assert started.campaign.out == Path("chaos/seed-1.txt")
    assert started.campaign.kinds == ("slow,kill" if "--kinds" in words else None)
    assert capsys.readouterr().out == "the undisturbed run: runs/chaos-1-undisturbed\n"


def test_campaign_of_all_faults_has_its_own_seed_file_and_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = Started(monkeypatch)
    setting = started.command("--seed", "7", "--out", "mine.txt", "--deadline", "9", number="all")
    assert (started.campaign.count, started.campaign.seed, started.campaign.out) == (None, 7, Path("mine.txt"))
    assert setting.deadline_s == 9.0
    started.command("--seed", "8")
    assert started.campaign.out == Path("chaos/seed-8.txt")


@pytest.mark.parametrize(("nodes", "restarting"), [("1x2", {"kill"}), ("2x1", {"kill", "node"}),
                                                  ("1:2x1", {"kill", "node", "cut"})])  # fmt: skip
def test_launcher_restarts_after_what_leaves_it_nodes(
    nodes: str, restarting: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = Started(monkeypatch)
    network = ["--network", "rate=10mbit"] if parse_nodes(nodes).several else []
    started.command("--nodes", nodes, *network)
    assert {kind for kind in ("kill", "node", "cut") if started.may_restart(kind)} == restarting


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--campaign", "1", "--replace", "1"], "--replace cannot be combined with --campaign"),
        (["--campaign", "1", "--fault", "kill rank=0 step=1"], "a campaign draws its own faults"),
        (["--campaign", "1", "--faults", "some.toml"], "a campaign draws its own faults"),
        (["--resume-test", "out"], "--resume-test is for programs that are not Frog's"),
        (["--resume-args=--resume"], "--resume-test is for programs that are not Frog's"),
        (["--simulate-gpus", "1"], "--simulate-gpus is for programs that are not Frog's"),
        ([], "no fault specified"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Started(monkeypatch)
    assert main(["chaos", "--nproc", "2", *words, "--", "train", str(DEMO)]) == 2
    assert said in capsys.readouterr().err


def test_faults_of_options_and_of_a_file_are_injected_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("frog.launch.world.run_world", lambda *_: 0)
    Path("faults.toml").write_text('[[fault]]\nkind = "stop"\nrank = 1\nstep = 2\n')
    words = ["--fault", "kill rank=0 step=1", "--faults", "faults.toml", "--nproc", "2"]
    assert main(["chaos", *words, "--", "train", str(DEMO)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "fault never occurred: kill rank=0 step=1 phase=reduce",
        "fault never occurred: stop rank=1 step=2 phase=reduce",
    ]


@pytest.mark.parametrize(
    ("size", "possible"), [(1, {"kill"}), (2, {"kill", "port"}), (3, {"kill", "port"})], ids=["alone", "two", "three"]
)
def test_named_kinds_must_be_possible_in_the_world(size: int, possible: set[str]) -> None:
    kinds = choose_kinds(None, Nodes(1, 1, size), network=False)
    assert {"kill", "port", "cut"} & {*kinds} == possible
    assert choose_kinds("kill,nan", Nodes(1, 1, size), network=False) == ["kill", "nan"]


def test_three_ranks_are_the_fewest_of_which_two_can_continue() -> None:
    assert "kill" in choose_kinds(None, Nodes(1, 1, 3), network=False, shrinks=True)
    assert "kill" in choose_kinds(None, Nodes(1, 3, 1), network=False, shrinks=True)


# ---- the undisturbed run, and the trials -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "problems", "said"),
    [
        (0, [], None),
        (7, [], "the undisturbed run failed with exit code 7\n" + "\n".join(f"line {n}" for n in range(2, 12))),
        (0, ["left behind: a"], "the undisturbed run failed with exit code 0\nleft behind: a\nline 2\n"),
    ],
)
def test_undisturbed_run_must_end_well(
    code: int, problems: list[str], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[Sequence[str], int, dict[str, str]]] = []

    class Launched:
        def __init__(self, setting: Setting, words: list[str], restarts: int, scratch: Path, env: dict[str, str]):
            launched.append((words, restarts, env))
            self.code, self.problems = code, problems
            self.output = "\n".join(f"line {number}" for number in range(12))

        def run(self, folder: RunFolder) -> None:
            assert (folder.path, folder.path.exists()) == (Path("runs/chaos-7-undisturbed"), False)

    monkeypatch.chdir(tmp_path)
    Path("runs/chaos-7-undisturbed").mkdir(parents=True)
    monkeypatch.setattr(campaign, "Launch", Launched)
    monkeypatch.setattr(campaign, "read_oracle", lambda folder: ORACLE)
    undisturbed = Campaign(SETTING, 3, 7, tmp_path / "table.txt")
    if said is None:
        assert undisturbed.run_oracle() is ORACLE
    else:
        with pytest.raises(LaunchError) as caught:
            undisturbed.run_oracle()
        assert caught.value.what.startswith(said)
    assert launched == [(["train", "tiny.toml", "--set", "name=chaos-7-undisturbed"], 0, {})]


KINDS = ["kill", "stop", "slow"]


@pytest.mark.parametrize("count", [5, None])
def test_trials_have_the_drawn_faults_and_their_restarts(count: int | None, tmp_path: Path) -> None:
    planned = Campaign(SETTING, count, 7, tmp_path / "t").plan(KINDS, ORACLE, lambda kind: kind != "stop")
    faults = ORACLE.everywhere(KINDS, 7) if count is None else ORACLE.draw(KINDS, count, 7)
    assert [verdict.fault for verdict in planned] == faults
    assert [verdict.restarts for verdict in planned] == draw_restarts(
        [fault.kind for fault in faults], 7, lambda kind: kind != "stop"
    )


@pytest.mark.parametrize("count", [5, None])
def test_trials_of_surviving_runs_are_losses(
    count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[Any, ...]] = []
    monkeypatch.setattr(campaign, "run_loss", lambda *args: met.append(args))
    survival = SurvivalCampaign(SETTING, count, 7, tmp_path / "t")
    planned = survival.plan(["kill", "midway"], ORACLE, lambda kind: True)
    if count is None:
        assert planned == plan_all_losses(["kill", "midway"], ORACLE, 7)
    else:
        assert planned == plan_losses(ORACLE.draw(["kill", "midway"], count, 7), ORACLE, 7)
    survival.meet(planned[0], "x", ORACLE)
    assert met == [(SETTING, planned[0], "x", ORACLE)]
    assert survival.table().startswith(f"frog chaos --campaign {count or 'all'} --seed 7 --on-loss shrink --nproc 2 ")


def test_trial_of_a_campaign_injects_one_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[Any, ...]] = []
    monkeypatch.setattr(campaign, "run_trial", lambda *args: met.append(args))
    verdict = Verdict(KILL, 1)
    Campaign(SETTING, 1, 7, tmp_path / "t").meet(verdict, "x", ORACLE)
    assert met == [(SETTING, verdict, "x", ORACLE)]


def test_places_of_kills_and_phases_are_counted(tmp_path: Path) -> None:
    places = ["in all_reduce, before it received", "in all_reduce, with 1 byte", "while joining", ""]
    verdicts: list[Verdict] = [Loss(KILL, 0, where=where) for where in places]
    survival = SurvivalCampaign(SETTING, None, 7, tmp_path / "t", verdicts=verdicts, num_faults=9)
    lines = survival.summary().splitlines()
    assert lines[0] == "4 of 9 faults tested: 4 handled correctly, 0 not"
    assert lines[2:4] == ["kinds: kill 4/4", "phases: reduce 4"]
    assert lines[-1] == "killed midway: in all_reduce 2, while joining 1"


def test_kind_without_a_place_is_an_error() -> None:
    with pytest.raises(RunError, match="nan: no place in the undisturbed run allows it"):
        Oracle(ORACLE.record, {}, {0: 0}, ORACLE.places[:1]).draw(["nan"], 1, 1)


def test_sigterm_interrupts_a_campaign_like_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), campaign._sigterm_is_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
