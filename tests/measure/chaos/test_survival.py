"""Campaigns of runs that survive losses: the planned losses, and the problems that they find."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import Harness, set_words
from msgspec import convert
from run_files import record_json

from frog.cli import main
from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault, marks_folder
from frog.core.errors import UsageError
from frog.core.runs import RankEvents, RecordedRun
from frog.core.runs.event_schema import EndEvent, MembershipEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import Record
from frog.core.runs.vocabulary import PHASES
from frog.launch.nodes import Nodes
from frog.measure.chaos import survival
from frog.measure.chaos.campaign import SurvivalCampaign, choose_kinds
from frog.measure.chaos.oracle import Oracle, Place
from frog.measure.chaos.survival import Loss, member_problems, outcome_problems, plan_all_losses, plan_losses
from frog.measure.chaos.trial import Setting

RECORD = convert(record_json(weights_sha256="w", order_sha256="o", step=3, loss=1.0), Record)
ORACLE = Oracle(
    RECORD,
    {1: 4.0},
    dict.fromkeys(range(4), 0),
    tuple(Place(r, s, p, 0, True, None) for r in range(4) for s in (1, 2, 3) for p in PHASES),
)
KILL = Fault("kill", 2, 2, "reduce")
LOSSES = [name for name, kind in KINDS.items() if kind.survivable]


def test_survival_draws_only_losses_and_nodes_only_if_others_remain() -> None:
    one, two = (choose_kinds(None, Nodes(n, n, 4 // n), n == 2, shrinks=True) for n in (1, 2))
    assert set(two) == set(LOSSES)
    assert set(two) - set(one) == {name for name in LOSSES if KINDS[name].of_node} != set()
    with pytest.raises(UsageError, match="nan: impossible in this world"):
        choose_kinds("nan", Nodes(1, 1, 4), network=False, shrinks=True)
    with pytest.raises(UsageError, match="a world of 2"):
        choose_kinds(None, Nodes(1, 1, 2), network=False, shrinks=True)


def test_survival_plans_all_five_scenes() -> None:
    planned = plan_losses(ORACLE.draw(["kill", "midway"], 20, seed=1), ORACLE, seed=1)
    assert planned == plan_losses(ORACLE.draw(["kill", "midway"], 20, seed=1), ORACLE, seed=1)
    alone, of_the_first, two, joins, of_who_joins = (planned[scene::5] for scene in range(5))
    assert all(not loss.others for loss in (*alone, *of_the_first))
    assert {loss.fault.rank for loss in of_the_first} == {0}
    assert all(other.step == loss.fault.step and other.rank != loss.fault.rank for loss in two for other in loss.others)
    assert all(loss.joins and not loss.joining_dies and loss.fault.rank < 4 for loss in joins)
    assert all(loss.joining_dies and loss.fault.rank == 4 for loss in of_who_joins)
    assert all(0 <= loss.fault.signs <= 4 for loss in planned if loss.fault.step == 3)


def test_survival_all_has_every_kind_in_every_phase_and_scene() -> None:
    kinds = ["raise", "kill", "midway", "stop", "port"]
    planned = plan_all_losses(kinds, ORACLE, seed=1)
    alone = planned[: -4 * len(kinds)]
    assert all(not loss.others and not loss.joins for loss in alone)
    found = Counter((loss.fault.kind, loss.fault.phase) for loss in alone)
    assert found == {(kind, phase): 3 if kind == "midway" else 1 for kind in kinds for phase in PHASES}
    midway = [loss.fault for loss in alone if loss.fault.kind == "midway"]
    assert {fault.sent_bytes for fault in midway} == {None}
    apart = plan_all_losses(["midway"], replace(ORACLE, node_of={rank: rank for rank in range(4)}), seed=1)
    assert {loss.fault.sent_bytes for loss in apart if not loss.joining_dies} == {0, 1, 31, 4096}
    of_the_first, two, joins = (planned[len(alone) :][5 * scene :][:5] for scene in range(3))
    assert {loss.fault.kind for loss in two} == {loss.fault.kind for loss in joins} == {*kinds}
    assert all(loss.fault.rank == 0 for loss in of_the_first)
    assert all(loss.others and not loss.joins for loss in two)
    assert all(loss.joining_dies for loss in planned[-len(kinds) :])


def test_table_shows_where_a_rank_was_killed() -> None:
    loss = Loss(KILL, 0, where="in all_reduce, with 31 of 4128 bytes of a message sent")
    campaign = SurvivalCampaign(Setting((), (), 1, 1), None, 1, Path("out"), None, [loss, Loss(KILL, 0)])
    assert "      + killed in all_reduce, with 31 of 4128 bytes" in campaign.table()
    assert campaign.summary().endswith("killed midway: in all_reduce 1")


def change(identity: int, members: tuple[int, ...] = (0, 1, 3), step: int = 1) -> MembershipEvent:
    lost = [rank for rank in range(4) if rank not in members]
    return MembershipEvent(
        step=step, epoch=1, identity=identity, members=[*members], lost=lost, joined=[], took_ns=10**8
    )


def run_of(*said: list[Any], **changes: Any) -> RecordedRun:
    run = RecordedRun(RunFolder.__new__(RunFolder), None, replace_record(**changes), [], [])
    run.ranks = {rank: RankEvents(events=events, rank=rank) for rank, events in enumerate(said)}
    return run


def replace_record(**changes: Any) -> Record:
    return convert(
        record_json(**{"weights_sha256": "w", "order_sha256": "o", "step": 3, "loss": 1.0, **changes}), Record
    )


def end(weights: str | None = "w") -> EndEvent:
    return EndEvent(step=3, status="completed", weights_sha256=weights)


GOOD = ([change(0), end()], [change(1), end()], [change(3), end()], [])


@pytest.mark.parametrize(
    ("said", "fault", "words"),
    [
        (GOOD, KILL, []),
        (GOOD, replace(KILL, rank=1), ["remaining ranks: [0, 1, 3]"]),
        (([change(0), end()], [change(1), end("v")], [change(3), end()], []), KILL, ["2 different weights at the end"]),
        (([change(0), end()], [change(1), end()], [change(3)], []), KILL, ["2 different weights at the end"]),
        (([change(0), end()], [end()], [change(3), end()], []), KILL, ["rank 1 of the last world did not report it"]),
        (
            ([change(0), end()], [change(1, step=2), end()], [change(3), end()], []),
            KILL,
            ["the members of epoch 1 report different changes"],
        ),
        (([end()], [end()], [end()], [end()]), KILL, ["remaining ranks: [0, 1, 2, 3]"]),
    ],
)
def test_survival_checks_the_reports_of_members(said: tuple[list[Any], ...], fault: Fault, words: list[str]) -> None:
    found = member_problems(Loss(fault, 0), run_of(*said), ORACLE)
    assert len(found) == len(words)
    assert all(word in problem for word, problem in zip(words, found, strict=True))


def step(number: int, loss: float | None) -> StepEvent:
    content = dict.fromkeys(StepEvent.__struct_fields__, 0) | {"step": number, "loss_mean": loss}
    return convert(content | {"skipped": False, "sample_ids": []}, StepEvent, strict=False)


@pytest.mark.parametrize(
    ("said", "changes", "problems"),
    [
        (([step(1, 4.0)],), {}, []),
        (([step(1, 4.000009)], [step(1, 3.999991)]), {}, []),
        (([step(1, 4.000011)],), {}, ["losses differ at steps 1"]),
        (([step(1, 4.0)], [step(1, 3.999989)]), {}, ["losses differ at steps 1"]),  # any rank counts
        (([step(1, None)],), {}, ["losses differ at steps 1"]),
        (([],), {}, ["losses differ at steps 1"]),
        (([step(2, 4.0)],), {}, ["losses differ at steps 1"]),
        (([step(1, 4.0)],), {"order_sha256": "p"}, ["used other samples"]),
        (([step(1, 4.0)],), {"status": "failed"}, ["incomplete: failed"]),
    ],
)
def test_survival_checks_the_results_of_a_run(
    said: tuple[list[Any], ...], changes: dict[str, Any], problems: list[str]
) -> None:
    assert outcome_problems(run_of(*said, **changes), ORACLE) == problems


@pytest.mark.parametrize(
    ("calm", "own", "differs"),
    [(2.0, 2.000009, False), (2.0, 2.000011, True), (2.0, None, True), (None, 2.0, False), (None, None, False)],
)
def test_survival_compares_the_held_out_loss(calm: float | None, own: float | None, differs: bool) -> None:
    def score(loss: float | None) -> dict[str, Any] | None:
        return None if loss is None else {"loss": loss, "perplexity": 1.0, "bits_per_byte": 1.0, "tokens": 9}

    oracle = replace(ORACLE, record=replace_record(eval=score(calm)))
    problems = outcome_problems(run_of([step(1, 4.0)], eval=score(own)), oracle)
    assert [problem.partition(":")[0] for problem in problems] == ["the held-out loss differs"] * differs


def test_survival_names_every_step_whose_loss_differs() -> None:
    oracle = replace(ORACLE, losses={1: 4.0, 2: 3.0, 3: 2.0})
    run = run_of([step(1, 4.1), step(2, 3.0), step(3, 2.1)])
    assert outcome_problems(run, oracle) == ["losses differ at steps 1, 3"]
    run.record = None
    assert outcome_problems(run, oracle) == ["incomplete: no record"]


# ---- what may remain -------------------------------------------------------------------------------------------------

PAIRS = replace(ORACLE, node_of={0: 0, 1: 0, 2: 1, 3: 1})


@pytest.mark.parametrize(
    ("loss", "oracle", "remaining"),
    [
        (Loss(KILL, 0), ORACLE, [{0, 1, 3}]),
        (Loss(KILL, 0, others=(Fault("kill", 1, 2, "reduce"),)), ORACLE, [{0, 3}]),
        (Loss(KILL, 0, others=(Fault("slow", 1, 2, "data"),)), ORACLE, [{0, 1, 3}]),  # a slow rank remains
        (Loss(Fault("midway", 4, 0, "data"), 0, joins=True), ORACLE, [{0, 1, 2, 3}]),  # the joining rank is not one
        (Loss(Fault("node", 2, 2, "reduce"), 0), PAIRS, [{0, 1}]),
        (Loss(Fault("cut", 2, 2, "reduce"), 0), PAIRS, [{0, 1}, {2, 3}]),
        (Loss(Fault("port", 2, 2, "reduce"), 0), ORACLE, [{0, 1, 3}]),
        (Loss(Fault("port", 2, 3, "reduce"), 0), ORACLE, [{0, 1, 3}, {0, 1, 2, 3}]),  # in the last step
        (Loss(Fault("kill", 2, 3, "reduce"), 0), ORACLE, [{0, 1, 3}]),
    ],
)
def test_ranks_that_may_remain(loss: Loss, oracle: Oracle, remaining: list[set[int]]) -> None:
    assert survival._may_be_left(loss, oracle) == remaining


def joined(identity: int, *, epoch: int = 2, took_ns: int = 3 * 10**9) -> MembershipEvent:
    return MembershipEvent(
        step=2, epoch=epoch, identity=identity, members=[0, 1, 3, 4], lost=[], joined=[4], took_ns=took_ns
    )


@pytest.mark.parametrize(
    ("joins", "dies", "problems"),
    [
        (True, False, []),
        (False, False, ["remaining ranks: [0, 1, 3, 4]"]),
        (True, True, ["remaining ranks: [0, 1, 3, 4]"]),
    ],
)
def test_joining_rank_must_be_a_member_unless_it_dies(joins: bool, dies: bool, problems: list[str]) -> None:
    said = tuple([*([change(identity)] if identity != 4 else []), joined(identity), end()] for identity in (0, 1, 3, 4))
    loss = Loss(KILL, 0, joins=joins, joining_dies=dies)
    assert member_problems(loss, run_of(*said), ORACLE) == problems
    assert [event.epoch for event in loss.changes] == [1, 2]
    assert loss.left_s == 3.0
    assert (loss.seen, loss.continuation) == ("lost 2; joined 4", "4 after step 2")


def test_report_that_knows_most_is_shown() -> None:
    said = ([change(0), end()], [change(1), end()], [change(3, members=(0, 1, 2, 3)), end()])
    loss = Loss(KILL, 0)
    member_problems(loss, run_of(*said), ORACLE)
    assert [event.lost for event in loss.changes] == [[2]]
    assert loss.left_s == 0.1
    nothing = Loss(KILL, 0)
    member_problems(nothing, run_of([end()]), ORACLE)
    assert (nothing.changes, nothing.left_s, nothing.seen, nothing.continuation) == ((), None, "", "")


def test_weights_of_all_remaining_ranks_are_compared() -> None:
    for weights, words in ((("w", "w", "w"), []), (("v", "v", "v"), ["1 different weights at the end of 3 ranks"])):
        said = tuple([change(identity), end(each)] for identity, each in zip((0, 1, 3), weights, strict=True))
        assert member_problems(Loss(KILL, 0), run_of(*said), ORACLE) == words


def test_further_events_of_a_loss_are_shown() -> None:
    other = Fault("kill", 1, 2, "reduce")
    assert Loss(KILL, 0).extras == []
    assert Loss(KILL, 0, others=(other,), joins=True, where="in all_reduce").extras == [
        "killed in all_reduce",
        "kill rank=1 step=2 phase=reduce",
        "another rank joins",
    ]


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "most"), [(2, 12), (3, 4)])
def test_midway_kills_are_early_in_the_middle_and_late(step: int, most: int) -> None:
    fault = Fault("midway", 1, step, "reduce")
    planned = plan_losses([fault] * 300, ORACLE, seed=1, scenes=[0] * 300)
    for part in range(3):
        signs = {loss.fault.signs for loss in planned[part::3]}
        assert signs == set(range(most * part // 3, most * (part + 1) // 3 + 1))
    assert {replace(loss.fault, signs=fault.signs, sent_bytes=fault.sent_bytes) for loss in planned} == {fault}


def test_scenes_of_a_plan_have_their_faults() -> None:
    kill = Fault("kill", 1, 2, "reduce", micro=1)
    alone, first, two, joins, joining = plan_losses([kill] * 5, ORACLE, seed=1)
    assert (alone, first) == (Loss(kill, 0), Loss(replace(kill, rank=0), 0))
    (other,) = two.others
    assert (other.rank in {0, 2, 3}, replace(other, rank=1)) == (True, kill)
    slow = Fault("slow", joins.others[0].rank, 1, "data", times=9, seconds=1.5)
    assert (slow.rank in {0, 2, 3}, joins) == (True, Loss(kill, 0, others=(slow,), joins=True))
    dies = joining.fault
    assert dies == Fault("midway", 4, 0, "data", signs=dies.signs)
    assert joining == Loss(dies, 0, others=joining.others, joins=True, joining_dies=True)
    many = plan_losses([kill] * 500, ORACLE, seed=1, scenes=[4] * 500)
    assert {loss.fault.signs for loss in many} == set(range(25))
    assert {loss.others[0].rank for loss in many} == {0, 2, 3}


def test_lost_node_leaves_the_other_nodes_and_a_cut_is_always_alone() -> None:
    for kind in ("node", "cut"):
        planned = plan_losses([Fault(kind, 1, 2, "reduce")] * 200, PAIRS, seed=1, scenes=[3] * 200)
        if kind == "cut":
            assert {(loss.others, loss.joins) for loss in planned} == {((), False)}
        else:
            assert {loss.others[0].rank for loss in planned} == {2, 3}


# ---- one trial, with a launch that only leaves files -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "met", "problems"),
    [
        ("kill", 0, {0: 1.0}, []),
        ("stop", 0, {0: 1.0}, []),
        ("kill", 7, {0: 1.0}, ["left a port", "exit code 7"]),
        ("kill", 0, {}, ["fault never occurred: kill rank=2 step=2 phase=reduce"]),
    ],
)
def test_trial_of_a_loss_has_the_settings_and_problems(
    kind: str, code: int, met: dict[int, float], problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[list[str], int, dict[str, str]]] = []

    class Launched:
        def __init__(self, setting: Setting, words: list[str], restarts: int, scratch: Path, env: dict[str, str]):
            launched.append((words, restarts, env))
            self.code, self.output, self.problems = code, "said", ["left a port"] if code else []

        def run(self, folder: RunFolder) -> None:
            assert not folder.path.exists()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x/old").mkdir(parents=True)
    monkeypatch.setattr(survival, "Launch", Launched)
    monkeypatch.setattr(survival, "met_faults", lambda path: met)
    monkeypatch.setattr(survival, "where_met", lambda path, number: f"in place {number}")
    said = tuple([step(1, 4.0), change(identity), end()] for identity in (0, 1, 3))
    monkeypatch.setattr(survival, "read_run", lambda folder: run_of(*said))
    loss = Loss(replace(KILL, kind=kind), 0)
    survival.run_loss(Setting(("train", "t.toml"), (), 1, 1), loss, "x", ORACLE)
    words = ["train", "t.toml", "--set", "name=x", "--set", "comm.on_loss=shrink"]
    words += ["--set", "train.timeout_s=3"] if kind == "stop" else []
    ((told, restarts, env),) = launched
    assert (told, restarts) == (words, 0)
    assert env["FROG_OBSERVER"].startswith("frog.measure.chaos.chaos_rank:/")
    assert (loss.problems, loss.code, loss.output) == (problems, code, "said")
    assert (loss.recovered, loss.where, loss.left_s) == (True, "in place 0", 0.1)
    assert 0 < loss.seconds < 60


@pytest.mark.parametrize(
    ("dies", "code", "problems"),
    [
        (False, 0, []),
        (False, 1, ["the joining rank's exit code 1, not 0"]),
        (True, -9, []),
        (True, 0, ["the joining rank's exit code 0, not -9"]),
        (False, None, ["the joining rank's exit code None, not 0"]),
    ],
)
def test_joining_rank_ends_well_or_as_it_is_killed(dies: bool, code: int | None, problems: list[str]) -> None:
    waited: list[float] = []
    joining: Any = SimpleNamespace(wait=lambda seconds: waited.append(seconds) or code, output=" and more")
    loss = Loss(KILL, 0, joins=True, joining_dies=dies, output="said")
    assert survival._joining_problems(loss, joining) == problems
    assert (loss.output, waited) == ("said and more", [60.0])


@pytest.mark.parametrize("dies", [False, True])
def test_joining_rank_is_started_next_to_the_run_and_its_end_is_checked(
    dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    environments: list[Any] = []

    class Joining:
        output = " joined"

        def __init__(self, words: list[str], scratch: Path, env: dict[str, str]) -> None:
            assert (scratch.is_dir(), scratch.name) == (True, "joining")
            assert scratch.with_name("faults.toml").exists()
            started.append(words)
            environments.append(env)

        def __enter__(self) -> Joining:
            return self

        def __exit__(self, *_: object) -> None:
            started.append(["ended"])

        def wait(self, seconds: float) -> int:
            return 3

    class Launched:
        def __init__(self, *_: object) -> None:
            self.code, self.output, self.problems = 0, "said", list[str]()

        def run(self, folder: RunFolder) -> None:
            assert len(started) == 1  # it already runs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(survival, "Program", Joining)
    monkeypatch.setattr(survival, "Launch", Launched)
    monkeypatch.setattr(survival, "met_faults", lambda path: {0: 1.0, 1: 1.0})
    said = tuple([step(1, 4.0), change(identity), joined(identity), end()] for identity in (0, 1, 3, 4))
    monkeypatch.setattr(survival, "read_run", lambda folder: run_of(*said))
    fault = Fault("midway", 4, 0, "data", signs=9) if dies else KILL
    loss = Loss(fault, 0, others=(Fault("slow", 1, 1, "data"),), joins=True, joining_dies=dies)
    survival.run_loss(Setting(("train",), (), 1, 1), loss, "x", ORACLE)
    words, ended = started
    mark = Path(words[-1])
    assert words[:4] == [sys.executable, "-P", "-c", survival._JOINING]
    assert words[4:6] == ["runs/x", "9" if dies else ""]
    assert (mark.name, mark.parent.name) == ("0.0", marks_folder(Path("faults.toml")).name)
    assert (environments, ended) == ([{"OMP_NUM_THREADS": "1"}], ["ended"])
    assert loss.problems[0] == f"the joining rank's exit code 3, not {-9 if dies else 0}"
    assert (loss.output, loss.recovered) == ("said joined", True)


def test_on_loss_without_campaign_suggests_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--fault", "kill rank=1 step=1", "--on-loss", "shrink"]) == 2
    assert "--set comm.on_loss=shrink" in capsys.readouterr().err


def test_survivable_kinds_end_the_rank_or_its_connections() -> None:
    assert {"raise", "kill", "midway", "stop", "port", "node", "cut"} <= set(LOSSES)
    assert all(KINDS[name].ends for name in LOSSES)
    assert not any(KINDS[name].alters_collective or KINDS[name].spoils_gradient for name in LOSSES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_small_survival_campaign_passes(harness: Harness) -> None:
    program = ["train", "run.toml", *set_words("train.steps=3", "checkpoint.every=1", "train.timeout_s=30")]
    words = ["--campaign", "3", "--seed", "1", "--kinds", "kill,midway", "--on-loss", "shrink", "--out", "shrink.txt"]
    done = harness.run("frog", "chaos", *words, "--nproc", "4", "--", *program, limit_s=1140)
    table = (harness.root / "shrink.txt").read_text()
    assert "3 of 3 faults tested: 3 handled correctly, 0 not" in table, done.stdout
    assert "continued with the undisturbed run's samples and losses: 3 of 3" in table
