"""Campaigns of runs that survive losses: the planned losses, and the problems that they find."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Harness, set_words
from msgspec import convert
from run_files import record_json

from frog.cli import main
from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault
from frog.core.errors import UsageError
from frog.core.runs import RankEvents, RecordedRun
from frog.core.runs.event_schema import EndEvent, MembershipEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import Record
from frog.core.runs.vocabulary import PHASES
from frog.launch.nodes import Nodes
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


def test_survival_checks_the_results_of_a_run() -> None:
    step = convert(
        dict.fromkeys(StepEvent.__struct_fields__, 0)
        | {"step": 1, "loss_mean": 4.0, "skipped": False, "sample_ids": []},
        StepEvent,
        strict=False,
    )
    assert outcome_problems(run_of([step]), ORACLE) == []
    assert outcome_problems(run_of([]), ORACLE) == ["losses differ at steps 1"]
    assert outcome_problems(run_of([step], order_sha256="p"), ORACLE) == ["used other samples"]
    assert outcome_problems(run_of([step], status="failed"), ORACLE) == ["incomplete: failed"]


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
