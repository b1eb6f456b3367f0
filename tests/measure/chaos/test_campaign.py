"""Campaigns: their faults are drawn from a seed, and they fail if any trial fails its checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Harness, set_words
from msgspec import convert
from run_files import event, record_json, run_json, segment

from frog.cli import main
from frog.core.config import load_run_config, to_dict
from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault, Scene, marks_folder
from frog.core.errors import LaunchError, RunError, UsageError
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import Record
from frog.core.runs.vocabulary import PHASES
from frog.launch.nodes import Nodes
from frog.measure.chaos.campaign import Campaign, can_restart, choose_kinds, draw_restarts, read_count
from frog.measure.chaos.oracle import (
    Oracle,
    Place,
    diagnosis_problems,
    read_oracle,
    recovery_problems,
    resume_problems,
    resumed_from,
)
from frog.measure.chaos.sandbox import met_faults, read_sandbox, where_met
from frog.measure.chaos.trial import Launch, Setting, Verdict, word_problems
from frog.observe.diagnose.diagnosis import Diagnosis

DEMO = Path(__file__).parents[3] / "config" / "demo.toml"
OPS = {"reduce": "all_reduce", "evaluate": "all_reduce", "checkpoint": "all_gather"}
RECORD = record_json(weights_sha256="w", order_sha256="o", step=4, loss=1.0)
ORACLE = Oracle(
    convert(RECORD, Record),
    {1: 4.0, 2: 3.0},
    {0: 0, 1: 0},
    tuple(Place(r, s, p, 0, p in OPS, OPS.get(p)) for r in (0, 1) for s in (1, 2, 3, 4) for p in PHASES),
)


# ---- drawing ---------------------------------------------------------------------------------------------------------


def test_seed_determines_the_faults() -> None:
    kinds = choose_kinds(None, Nodes(1, 1, 2), network=False)
    faults = ORACLE.draw(kinds, 130, seed=1)
    assert faults == ORACLE.draw(kinds, 130, seed=1)
    assert faults != ORACLE.draw(kinds, 130, seed=2)
    assert faults[:40] == ORACLE.draw(kinds, 40, seed=1)


def test_draws_cover_every_kind_step_rank_and_phase() -> None:
    kinds = choose_kinds(None, Nodes(1, 1, 2), network=False)
    faults = ORACLE.draw(kinds, 20 * len(kinds), seed=1)
    assert Counter(fault.kind for fault in faults) == dict.fromkeys(kinds, 20)
    assert {fault.rank for fault in faults} == {0, 1}
    assert {fault.step for fault in faults} == {1, 2, 3, 4}
    assert {fault.phase for fault in faults} == set(PHASES)
    scene = Scene(world_size=2, steps=4, checkpoint_every=1, eval_every=1)
    assert [problem for fault in faults for problem in scene.problems(fault)] == []
    assert {fault.phase for fault in faults if fault.kind == "missing"} == {"reduce", "evaluate", "checkpoint"}


def test_campaign_all_has_every_kind_at_every_step_in_every_phase() -> None:
    kinds = choose_kinds(None, Nodes(1, 1, 2), network=False)
    faults = ORACLE.everywhere(kinds, seed=1)
    of = Counter(fault.kind for fault in faults)
    assert (of["kill"], of["missing"], of["nan"], of["torn"]) == (4 * 8, 4 * 3, 4 * 2, 4)
    assert max(Counter((fault.kind, fault.step, fault.phase) for fault in faults).values()) == 1
    assert {fault.rank for fault in faults if fault.kind == "kill"} == {0, 1}
    assert faults == ORACLE.everywhere(kinds, seed=1)


@pytest.mark.parametrize("words", ["0", "-3", "some", "1.5"])
def test_campaign_size_is_a_number_or_all(words: str) -> None:
    with pytest.raises(UsageError, match="expected a number of faults, at least 1, or all"):
        read_count(words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--restarts", "1"], "restarts every other world on its own"),
        (["--", "train", "--resume", "runs/own"], "all runs of a campaign start at step 0"),
    ],
)
def test_campaign_rejects_options_that_it_would_ignore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """A campaign would train a user's own run to its end to use it as the undisturbed run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "own").mkdir(parents=True)
    write_json(tmp_path / "runs" / "own" / "run.json", run_json(config=to_dict(load_run_config(DEMO))))
    assert main(["chaos", "--campaign", "1", *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs" / "chaos-1-undisturbed").exists()


@pytest.mark.parametrize("met", [False, True])
def test_command_suggests_diagnosis_only_if_the_fault_occurred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], met: bool
) -> None:
    def fail(nodes: object, program: object, options: Any) -> int:
        if met:
            marks = marks_folder(Path(options.extra_env["FROG_OBSERVER"].partition(":")[2]))
            marks.mkdir()
            (marks / "0.0").touch()
        raise LaunchError("the world ended")

    monkeypatch.setattr("frog.launch.world.run_world", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["chaos", "--fault", "kill rank=1 step=1", "--nproc", "2", "--", "train", str(DEMO)]) != 0
    told = capsys.readouterr().err
    assert ("frog diagnose latest" in told) == met
    assert ("never occurred" in told) != met


@pytest.mark.parametrize(
    ("code", "met", "expected"), [(0, (0, 1), 0), (0, (0,), 1), (0, (), 1), (7, (0, 1), 7), (7, (), 7)]
)
def test_exit_code_is_the_worlds_or_1_if_a_fault_never_occurred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, met: tuple[int, ...], expected: int
) -> None:
    def run_world(nodes: object, program: object, options: Any) -> int:
        marks = marks_folder(Path(options.extra_env["FROG_OBSERVER"].partition(":")[2]))
        marks.mkdir()
        for number in met:
            (marks / f"{number}.0").touch()
        return code

    monkeypatch.setattr("frog.launch.world.run_world", run_world)
    monkeypatch.chdir(tmp_path)
    faults = ["--fault", "kill rank=1 step=1", "--fault", "kill rank=0 step=2"]
    assert main(["chaos", *faults, "--nproc", "2", "--", "train", str(DEMO)]) == expected


def test_campaign_has_seed_1_and_short_deadlines_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("frog.measure.chaos.campaign.run_campaign", lambda args, program: seen.append(args) or 0)
    assert main(["chaos", "--campaign", "2"]) == 0
    assert main(["chaos", "--campaign", "2", "--seed", "5", "--deadline", "9"]) == 0
    assert [(args.seed, args.deadline) for args in seen] == [(1, 15.0), (5, 9.0)]


def test_campaign_draws_only_kinds_possible_in_the_world() -> None:
    assert "cut" not in choose_kinds(None, Nodes(1, 1, 2), network=False)
    assert "port" not in choose_kinds(None, Nodes(1, 1, 1), network=False)
    assert set(choose_kinds(None, Nodes(2, 2, 1), network=True)) == {
        name for name, kind in KINDS.items() if kind.needs != "own_backend"
    }
    with pytest.raises(UsageError, match="cut, kil"):
        choose_kinds("kill,cut,kil", Nodes(1, 1, 2), network=False)


def test_every_second_fault_of_a_kind_restarts() -> None:
    kinds = ["kill", "node", "stop"] * 4
    restarts = draw_restarts(kinds, 1, lambda kind: kind != "node")
    assert Counter(zip(kinds, restarts, strict=True)) == {
        ("kill", 0): 2,
        ("kill", 1): 2,
        ("node", 0): 4,
        ("stop", 0): 2,
        ("stop", 1): 2,
    }


def test_restarts_alternate_from_either_side_whatever_the_seed() -> None:
    drawn = [draw_restarts(["kill", "kill", "stop"], seed, lambda kind: True) for seed in range(40)]
    assert {tuple(restarts[:2]) for restarts in drawn} == {(0, 1), (1, 0)}
    assert {restarts[2] for restarts in drawn} == {0, 1}


@pytest.mark.parametrize(
    ("words", "is_run"),
    [
        (["train", "RUN"], True),
        (["my/train.py", "RUN"], True),
        (["my.py", "RUN", "train.py"], False),
        (["trainer", "RUN"], False),
        (["prove", "train"], False),
    ],
)
def test_faults_need_a_command_that_trains(words: list[str], is_run: bool) -> None:
    words = [str(DEMO) if word == "RUN" else word for word in words]
    if is_run:
        found = read_sandbox(words)
        assert (found.program, found.config, found.resumes) == (tuple(words), load_run_config(DEMO), False)
    else:
        with pytest.raises(UsageError) as caught:
            read_sandbox(words)
        assert caught.value.what == f"{words[0]}: faults need a training run"


@pytest.mark.parametrize(
    ("settings", "native", "own_backend"),
    [
        ([], False, False),
        (["comm.backend=frog"], False, True),
        (["comm.on_loss=shrink", "comm.backend=frog"], False, True),
        (["strategy.implementation=torch"], True, False),
    ],
)
def test_scene_of_faults_is_that_of_the_run(settings: list[str], native: bool, own_backend: bool) -> None:
    words = ["train", str(DEMO), *set_words(*settings)]
    sandbox = read_sandbox(words)
    train = sandbox.config.train
    assert sandbox.scene(Nodes(1, 3, 2), True) == Scene(
        world_size=6,
        steps=train.steps,
        checkpoint_every=sandbox.config.checkpoint.every,
        eval_every=sandbox.config.eval.every,
        grad_accum=train.grad_accum,
        network=True,
        native=native,
        own_backend=own_backend,
    )


def test_marks_of_faults_give_their_first_times_and_places(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    assert (met_faults(path), where_met(path, 0)) == ({}, "")
    marks_folder(path).mkdir()
    for name, at_s in (("1.0", 50), ("1.1", 20), ("10.0", 70)):
        (marks_folder(path) / name).write_text(f"in {name}")
        os.utime(marks_folder(path) / name, (at_s, at_s))
    assert met_faults(path) == {1: 50.0, 10: 70.0}
    assert [where_met(path, number) for number in (0, 1, 10)] == ["", "in 1.0", "in 10.0"]


def test_launcher_does_not_restart_after_an_unrecoverable_loss() -> None:
    fixed, elastic = Nodes(2, 2, 1), Nodes(1, 2, 1)
    assert can_restart("kill", Nodes(1, 1, 2))
    assert not can_restart("node", Nodes(1, 1, 2))
    assert can_restart("node", fixed)
    assert not can_restart("cut", fixed)
    assert can_restart("cut", elastic)


# ---- the checks, on synthetic run folders ----------------------------------------------------------------------------


def folder_of(path: Path, events: list[dict[str, Any]], **record: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.events.mkdir(parents=True)
    folder.rank_events(0).write_text("".join(json.dumps(event) + "\n" for event in events))
    write_json(folder.record_json, {**RECORD, **record})
    segments = [segment(world_size=2)] * sum(e["event"] == "start" for e in events)
    write_json(folder.run_json, run_json(segments=segments))
    return folder


def start(step: int) -> dict[str, Any]:
    return event("start", step=step)


def commit(step: int) -> dict[str, Any]:
    return event("commit", step=step)


KILL = Fault("kill", 1, 3, "reduce")
NODE = Fault("node", 1, 0, "evaluate")
CORRUPT = Fault("corrupt", 1, 2, "checkpoint")


@pytest.mark.parametrize(
    ("fault", "events", "words"),
    [
        (KILL, [start(0), commit(1), commit(2), start(2)], None),
        (KILL, [start(0), commit(1), start(2)], None),  # complete, but rank 0 was killed before it recorded that
        (
            KILL,
            [start(0), commit(1), commit(2), start(0)],
            "started at step 0, although the checkpoint of step 2 was complete",
        ),
        (KILL, [start(0), commit(1), commit(2), start(1)], "started at step 1"),
        (KILL, [start(0), commit(1)], "did not restart"),
        (CORRUPT, [start(0), commit(1), commit(2), start(1)], None),
        (CORRUPT, [start(0), commit(1), commit(2), start(2)], "resumed from step 2, whose checkpoint was damaged"),
        (CORRUPT, [start(0), commit(1), commit(2), start(0)], "although the checkpoint of step 1 was complete"),
    ],
)
def test_campaign_checks_the_step_at_which_a_run_resumes(
    fault: Fault, events: list[dict[str, Any]], words: str | None, tmp_path: Path
) -> None:
    problems = resume_problems(fault, folder_of(tmp_path / "run", events))
    assert problems == [] if words is None else words in problems[0]


def test_start_counts_although_rank_0_was_killed_before_its_first_event(tmp_path: Path) -> None:
    """Rank 0 recorded only the second start; the launcher recorded both."""
    folder = RunFolder(tmp_path / "run")
    folder.events.mkdir(parents=True)
    folder.rank_events(0).write_text(json.dumps(event("start", step=0, pid=2, unix_ns=9)) + "\n")
    world = {"event": "world", "attempt": 0, "node": 0, "node_rank": 0, "ranks": [0], "world_size": 1}
    world |= {"master_addr": "127.0.0.1", "master_port": 1}
    launcher = [
        told
        for launch in (1, 2)
        for told in (event("launch", unix_ns=launch), {**world, "unix_ns": launch, "pids": [launch]})
    ]
    folder.launcher_events.write_text("".join(json.dumps(each) + "\n" for each in launcher))
    assert resume_problems(NODE, folder) == []
    assert resumed_from(folder) == 0


def test_diagnosis_needs_no_step_if_the_rank_recorded_no_event() -> None:
    found = Diagnosis("node", "", rank=0, node_rank=0)
    one_node = replace(ORACLE, node_of={0: 0, 1: 0})
    assert problems_of(NODE, found, one_node) == []
    assert problems_of(replace(NODE, step=1), found, one_node) != []


def test_campaign_checks_the_results_of_a_run(tmp_path: Path) -> None:
    def problems(name: str, **record: Any) -> list[str]:
        return recovery_problems(ORACLE, folder_of(tmp_path / name, [start(0), start(2)], **record))

    assert problems("same") == []
    assert problems("weights", weights_sha256="other") == ["weights differ"]
    assert problems("order", order_sha256="other") == ["used other samples"]
    assert problems("failed", status="failed") == ["incomplete: failed"]
    assert recovery_problems(ORACLE, RunFolder(tmp_path / "absent")) == ["incomplete: no record"]


def test_world_of_another_size_may_differ_only_by_rounding(tmp_path: Path) -> None:
    def problems(name: str, loss: float) -> list[str]:
        steps = [event("step", step=1, loss_mean=4.0), event("step", step=2, loss_mean=loss)]
        folder = folder_of(tmp_path / name, [start(0), *steps], weights_sha256="other")
        write_json(folder.run_json, run_json(segments=[segment(world_size=2), segment(world_size=1)]))
        return recovery_problems(ORACLE, folder)

    assert problems("rounded", 3.0000299) == []  # 1e-5 of 3
    assert problems("below", 2.9999701) == []
    assert problems("far", 3.0000301) == ["losses differ at steps 2"]


GRADIENT = "all_reduce of 4096 bytes over dp"


def problems_of(fault: Fault, found: Diagnosis, oracle: Oracle = ORACLE, /, **changes: Any) -> list[str]:
    return diagnosis_problems(fault, replace(found, **changes), oracle)


def test_campaign_compares_the_diagnosis_with_the_fault() -> None:
    found = Diagnosis("kill", "", rank=1, step=3, phase="reduce", collective=GRADIENT)
    assert problems_of(KILL, found) == []
    for change in ({"fault": "stop"}, {"rank": 0}, {"step": 2}, {"phase": "data"}, {"rank": None}):
        assert len(problems_of(KILL, found, **change)) == 1, change


def test_campaign_expects_of_a_diagnosis_only_what_the_evidence_shows() -> None:
    port = Fault("port", 1, 3, "zero")
    seen = Diagnosis("port", "", rank=0, step=3, phase="evaluate", collective=GRADIENT)
    assert problems_of(port, seen) == []
    assert problems_of(port, seen, rank=None) != []
    assert problems_of(port, seen, replace(ORACLE, node_of={0: 0, 1: 0, 2: 0})) != []
    assert problems_of(port, seen, phase="zero") != []


def test_rank_slow_only_in_the_last_step_may_be_a_secondary_finding() -> None:
    slow = Diagnosis("slow", "", rank=1, step=4, phase="data")
    healthy = Diagnosis("none", "", step=4, also=(slow,))
    assert problems_of(Fault("slow", 1, 4, "data"), healthy) == []
    assert problems_of(Fault("slow", 1, 3, "data"), replace(healthy, also=(replace(slow, step=3),))) != []


def test_diagnosis_of_a_node_names_the_node_and_one_of_its_ranks() -> None:
    pairs = replace(ORACLE, node_of={0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2})
    node = Fault("node", 1, 3, "zero")
    seen = Diagnosis("node", "", rank=0, node_rank=0, step=3, phase="data", collective=GRADIENT)
    assert problems_of(node, seen, pairs) == []
    for change in ({"node_rank": 1}, {"rank": 2}, {"rank": None}, {"step": 2}, {"collective": None}):
        assert len(problems_of(node, seen, pairs, **change)) == 1, change
    assert problems_of(node, seen, collective=None) == []  # it was the only node: no other rank waited
    cut = Fault("cut", 1, 3, "reduce")
    seen = replace(seen, fault="cut", phase="reduce")
    assert problems_of(cut, seen, pairs) == []
    assert problems_of(cut, seen, pairs, rank=None) != []
    assert problems_of(cut, seen, pairs, node_rank=2) != []
    two = replace(ORACLE, node_of={0: 0, 1: 1})  # each of two nodes sees the other one leave
    assert problems_of(cut, seen, two, rank=None, node_rank=None) == []
    assert problems_of(Fault("node", 1, 3, "reduce"), replace(seen, fault="node", rank=1, node_rank=1), two) == []
    assert problems_of(
        Fault("node", 1, 3, "reduce"), replace(seen, fault="node", rank=1, node_rank=1, collective=None), two
    ) == ["diagnosis: no collective, although others waited in one"]


def test_diagnosis_must_name_the_collective() -> None:
    found = Diagnosis("kill", "", rank=1, step=3, phase="reduce")
    assert problems_of(KILL, found) == ["diagnosis: no collective, although others waited in one"]
    samples = Fault("missing", 1, 3, "checkpoint")
    seen = replace(found, fault="missing", phase="checkpoint", collective="all_gather of 256 bytes over world")
    assert problems_of(samples, seen) == []
    assert problems_of(samples, seen, collective=GRADIENT) == [f"diagnosis: collective {GRADIENT}, not all_gather"]
    extra = Fault("extra", 1, 3, "checkpoint")
    assert problems_of(extra, seen, fault="extra") != []
    assert problems_of(extra, seen, fault="extra", collective="all_reduce of 4 bytes over world") == []


def test_diagnosis_needs_no_collective_for_the_last_checkpoint() -> None:
    """The checkpoint's own collective has finished before the damage."""
    for step, problems in ((3, ["diagnosis: no collective, although others waited in one"]), (4, [])):
        found = Diagnosis("torn", "", rank=1, step=step, phase="checkpoint")
        assert problems_of(Fault("torn", 1, step, "checkpoint"), found) == problems


def test_collectives_inside_torch_cannot_be_altered(tmp_path: Path) -> None:
    """DDP's all-reduces in backward are recorded, but no axis begins them."""
    spans = {"forward": "send_recv", "backward": "all_reduce", "reduce": "all_reduce"}
    events = [event("start", node_rank=1)]
    for number, (phase, op) in enumerate(spans.items()):
        at = {"step": 1, "start_ns": 10 * number, "end_ns": 10 * number + 9}
        events += [event("collective", op=op, **at), event("span", phase=phase, **at)]
    for implementation, expected in (
        ("torch", [None, None, "all_reduce"]),
        ("frog", ["send_recv", *["all_reduce"] * 2]),
    ):
        folder = folder_of(tmp_path / implementation, events)
        write_json(folder.run_json, run_json(config={"strategy": {"implementation": implementation}}))
        oracle = read_oracle(folder)
        assert [place.alterable for place in oracle.places] == expected
        assert all(place.communicates for place in oracle.places)
        assert oracle.node_of == {0: 1}
        phases = {fault.phase for fault in oracle.draw(["nan"], 20, 1)}
        assert phases == ({"backward"} if implementation == "torch" else {"backward", "reduce"})


def test_only_operations_of_an_axis_can_be_altered(tmp_path: Path) -> None:
    """A barrier communicates, but no fault can change it; the next operation of the phase can be."""
    at = {"step": 1, "start_ns": 10, "end_ns": 19}
    events = [event("start", node_rank=0), event("span", phase="reduce", **at)]
    events.append(event("collective", op="barrier", step=1, start_ns=11, end_ns=12))
    for more, expected in (([], None), ([event("collective", op="broadcast", **{**at, "start_ns": 13})], "broadcast")):
        folder = folder_of(tmp_path / str(expected), [*events, *more])
        write_json(folder.run_json, run_json(config={"strategy": {"implementation": "frog"}}))
        (place,) = read_oracle(folder).places
        assert (place.alterable, place.communicates) == (expected, True)


def test_message_faults_are_aimed_where_they_can_be_detected(tmp_path: Path) -> None:
    """No fault hits a rank's first step, or the size of a sent message, since gloo accepts one that is too short."""
    events = [event("start", node_rank=0)]
    for step in (1, 2):
        for number, (phase, op) in enumerate({"forward": "send", "backward": "recv"}.items()):
            at = {"step": step, "start_ns": 100 * step + 10 * number, "end_ns": 100 * step + 10 * number + 3}
            behind = {**at, "start_ns": at["end_ns"] + 1, "end_ns": at["end_ns"] + 2}
            events += [event("span", phase=phase, **at), event("collective", op=op, **behind)]
    folder = folder_of(tmp_path / "run", events)
    write_json(folder.run_json, run_json(config={"strategy": {"implementation": "frog"}}))
    oracle = read_oracle(folder)
    aimed = {name: {(f.step, f.phase) for f in oracle.everywhere([name], 1)} for name in ("missing", "shape")}
    assert aimed == {"missing": {(2, "forward"), (2, "backward")}, "shape": {(2, "backward")}}


def test_first_message_of_each_rank_and_phase_has_no_fault() -> None:
    """What a rank sends in one phase says nothing of another phase, or of another rank."""
    entered = {(0, "forward"): (1, 2), (0, "backward"): (2, 3), (1, "forward"): (2, 4), (1, "backward"): (1, 5)}
    places = tuple(
        Place(rank, step, phase, 0, True, "recv") for (rank, phase), steps in entered.items() for step in steps
    )
    oracle = replace(ORACLE, places=places)
    aimed = {(f.rank, f.step, f.phase) for seed in range(20) for f in oracle.everywhere(["missing"], seed)}
    assert aimed == {(rank, steps[1], phase) for (rank, phase), steps in entered.items()}
    always = replace(oracle, places=tuple(place._replace(alterable="all_reduce") for place in places))
    assert len({(f.step, f.phase) for f in always.everywhere(["missing"], 1)}) == 7  # collectives may be any


@pytest.mark.parametrize(
    ("strategy", "native"),
    [
        ({"implementation": "frog"}, False),
        ({"implementation": "torch"}, True),
        ({"implementation": "deepspeed"}, True),
        ({"implementation": "frog", "file": "mine.py"}, True),
    ],
)
def test_strategy_of_torch_or_in_a_file_of_its_own_is_native(
    strategy: dict[str, str], native: bool, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "run", [event("start", node_rank=0)])
    write_json(folder.run_json, run_json(config={"strategy": strategy}))
    assert read_oracle(folder).native == native


@pytest.mark.parametrize("status", ["failed", "interrupted", None])
def test_undisturbed_run_must_be_complete(status: str | None, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", [event("start", node_rank=0)], status=status or "completed")
    if status is None:
        folder.record_json.unlink()
    with pytest.raises(RunError, match="the undisturbed run is incomplete"):
        read_oracle(folder)


def test_collectives_belong_to_the_phase_in_which_they_begin_or_after_which(tmp_path: Path) -> None:
    """A place communicates if one begins in the phase; a fault can alter one up to the next phase."""
    spans = [(10, 19), (20, 29), (30, 39)]
    starts = {"broadcast": 9, "all_gather": 10, "reduce_scatter": 19, "all_reduce": 20, "send_recv": 35, "recv": 40}
    events = [event("start", node_rank=0)]
    events += [
        event("span", phase=phase, start_ns=start, end_ns=end)
        for phase, (start, end) in zip(("data", "forward", "reduce"), spans, strict=True)
    ]
    for left, expected in (
        ((), [("all_gather", True), ("all_reduce", True), ("send_recv", True)]),
        (("all_gather",), [("reduce_scatter", True), ("all_reduce", True), ("send_recv", True)]),
        (("all_gather", "reduce_scatter", "send_recv"), [(None, False), ("all_reduce", True), ("recv", False)]),
        (("all_gather", "reduce_scatter", "all_reduce"), [(None, False), (None, False), ("send_recv", True)]),
    ):
        calls = [event("collective", op=op, start_ns=at) for op, at in starts.items() if op not in left]
        folder = folder_of(tmp_path / str(len(left) and "-".join(left)), [*events, *calls])
        write_json(folder.run_json, run_json(config={"strategy": {"implementation": "frog"}}))
        assert [(place.alterable, place.communicates) for place in read_oracle(folder).places] == expected, left


def test_slow_faults_of_a_campaign_take_three_seconds() -> None:
    faults = [*ORACLE.draw(["slow", "kill"], 4, 1), *ORACLE.everywhere(["slow", "kill"], 1)]
    assert {(fault.kind, fault.seconds) for fault in faults} == {("slow", 3.0), ("kill", 0.5)}


def test_each_step_or_one_drawn_step_of_a_phase_is_aimed_at() -> None:
    every, one = (ORACLE.everywhere(["kill"], 1, each_step=each) for each in (True, False))
    assert Counter((fault.step, fault.phase) for fault in every) == {
        (step, phase): 1 for step in (1, 2, 3, 4) for phase in PHASES
    }
    assert Counter(fault.phase for fault in one) == dict.fromkeys(PHASES, 1)
    drawn = {fault.step for seed in range(20) for fault in ORACLE.everywhere(["kill"], seed, each_step=False)}
    assert drawn == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("fault", "told", "words"),
    [
        (KILL, "error: rank 1 (pid 7) was killed by SIGKILL", None),
        (KILL, "error: rank 0 (pid 7) ended with exit code 1", "another rank is named first"),
        (Fault("node", 1, 3, "data"), "error: node0 was killed by SIGKILL", None),
        (KILL, "error: the world ended", "no rank is named first"),
        (Fault("raise", 1, 3, "data"), "error: rank 1 (pid 7) ended with exit code 1\nRuntimeError: this", None),
        (Fault("raise", 1, 3, "data"), "error: rank 1 (pid 7) ended with exit code 1", "the rank's message is missing"),
        (Fault("nan", 1, 3, "reduce"), "error: rank 0 (pid 7) ended\n  rank 1: loss nan", None),
        (
            Fault("nan", 1, 3, "reduce"),
            "error: rank 0 (pid 7) ended\n  rank 0: loss nan",
            "the rank's message is missing",
        ),
        (KILL, "error: rank 1 (pid 7) ended\nTraceback (most recent call last)", "a traceback is shown"),
    ],
)
def test_campaign_checks_the_error_message(fault: Fault, told: str, words: str | None) -> None:
    problems = word_problems(fault, f"step 1: checkpoint\nrank 0 speaks\n{told}\n")
    assert problems == [] if words is None else words in problems[0]


def leaves(code: str, path: Path, deadline_s: float = 5) -> list[str]:
    """Return the problems of a launch that runs some Python code in place of `frog run`."""
    launch = Launch(Setting((), (), deadline_s, 1), (), 0, path, {})
    launch._command = [sys.executable, "-c", code]
    launch.run(RunFolder(path / "run"))
    return launch.problems


def test_campaign_finds_files_and_processes_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.measure.chaos.trial._LAST_S", 1.0)
    assert leaves("import tempfile, os; os.mkdir(tempfile.gettempdir() + '/torchinductor_me')", tmp_path) == []
    assert leaves("import tempfile; tempfile.mkdtemp(prefix='frog-world-x')", tmp_path)[0].startswith(
        "left behind: frog"
    )
    shutil.rmtree(tmp_path / "tmp")
    orphan = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    )
    problems = leaves(orphan, tmp_path)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert problems == ["processes left behind: unknown"]


def test_campaign_table_contains_all_finished_trials(tmp_path: Path) -> None:
    setting = Setting(("train", "tiny.toml"), ("--nproc", "2"), 5, 1)
    campaign = Campaign(setting, 3, 7, tmp_path / "table.txt", "kill,corrupt", num_faults=3)
    found = Diagnosis("kill", "", rank=1, step=3, phase="reduce")
    campaign.verdicts += [
        Verdict(KILL, 1, seconds=9.0, code=0, left_s=2.0, diagnosis=found, from_step=2, recovered=True),
        Verdict(CORRUPT, 0, seconds=11.0, code=137, left_s=4.5, problems=["weights differ"]),
    ]
    table = campaign.table()
    assert "frog chaos --campaign 3 --seed 7 --kinds kill,corrupt --nproc 2 --deadline 5 -- train tiny.toml" in table
    assert re.search(r"kill rank=1 step=3 phase=reduce .* restarted at step 2 .* ok", table)
    assert "      - weights differ" in table
    assert "2 of 3 faults tested: 1 handled correctly, 1 not" in table
    assert "kinds: kill 1/1, corrupt 0/1" in table
    assert "4.5 s at most" in table


# ---- real campaigns --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "count", "words"),
    [
        (2, 4, ["--kinds", "shape,extra,disk,slow", "--deadline", "20", "--nproc", "2"]),
        (3, 1, ["--kinds", "node", "--deadline", "20", "--nodes", "1:2x1"]),
    ],
    ids=["two ranks", "a world that shrinks"],
)
def test_small_campaign_passes(harness: Harness, seed: int, count: int, words: list[str]) -> None:
    """Every fault, including kinds that only campaigns use, is diagnosed, and each run reaches the undisturbed weights.

    In a smaller world it reaches the undisturbed samples and losses.
    """
    program = ["train", "run.toml", *set_words("train.steps=2", "checkpoint.every=1", "train.timeout_s=10")]
    told = ["--campaign", str(count), "--seed", str(seed), *words, "--out", "table.txt"]
    done = harness.run("frog", "chaos", *told, "--", *program, limit_s=1740)
    table = (harness.root / "table.txt").read_text()
    assert f"{count} of {count} faults tested: {count} handled correctly, 0 not" in table, done.stdout
    assert f"recovered to the undisturbed run's weights: {count} of {count}" in table
    assert "restarted at step" in table
    assert not list((harness.root / "runs").glob(f"chaos-{seed}-0*"))
