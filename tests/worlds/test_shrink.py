"""Runs that continue when ranks are lost, and admit others: real worlds, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Harness, run_to_end, set_words, wait_until

from frog.core.runs.event_schema import EvalEvent, MembershipEvent, StartEvent, StepEvent
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.history import read_history
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.observe.view.charts import charts as charts_of

SETTINGS = ("train.steps=40", "train.global_batch_size=14", "checkpoint.every=8", "eval.every=8", "train.timeout_s=60")
HELD, PATIENT = ("--threads", "1", "--deadline", "600"), "train.timeout_s=600"
"""For a world with a stopped rank: neither its launcher nor the other ranks consider it hung."""


def words(name: str, *settings: str) -> list[str]:
    return ["train", "run.toml", *set_words(f"name={name}", "comm.on_loss=shrink", *SETTINGS, *settings)]


@pytest.fixture(scope="module")
def undisturbed(harness: Harness) -> dict[str, Any]:
    harness.run("frog", "train", "run.toml", *set_words("name=shrink-calm", *SETTINGS))
    return harness.record("shrink-calm")


def losses(harness: Harness, name: str) -> dict[int, float]:
    """Return the mean loss over all ranks of every step, as last taken."""
    return {step: event.loss_mean or 0.0 for step, event in harness.events(name).main.by_step(StepEvent).items()}


def check(harness: Harness, name: str, undisturbed: dict[str, Any]) -> None:
    record = harness.record(name)
    assert (record["status"], record["step"]) == ("completed", 40)
    assert record["order_sha256"] == undisturbed["order_sha256"], "the samples differ"
    calm, found = losses(harness, "shrink-calm"), losses(harness, name)
    assert found.keys() == calm.keys()
    assert max(abs(found[step] - calm[step]) for step in calm) < 1e-5
    assert record["eval"]["loss"] == pytest.approx(undisturbed["eval"]["loss"], abs=1e-5)
    assert not harness.folder(name).join_endpoint_json.exists()


def memberships(harness: Harness, name: str) -> list[MembershipEvent]:
    return harness.events(name).main.of(MembershipEvent)


def told(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("fault", "rank", "step", "phase", "outcome"))


def check_report(harness: Harness, name: str) -> None:
    """Check that the report shows the world size over the steps."""
    charts = {chart["name"]: chart for chart in charts_of(read_history(harness.folder(name)))}
    world = charts["world"]
    ranks, lost, joined = world["lines"]
    assert (world["steps"][:3], ranks["values"]) == ([0, 3, 8], [4, 3, 2, 3, 3])
    assert (lost["text"], joined["text"]) == ("2, 0", "4")
    assert charts["loss"]["steps"] == list(range(41))


def join(harness: Harness, name: str, step: int, process: subprocess.Popen[str]) -> str:
    """Let a rank join, from a step of rank 1 as the first member. Return its output.

    Meanwhile the first member is stopped, so that the run does not end.
    """
    folder = harness.folder(name)
    endpoint = folder.join_endpoint_json
    wait_until(
        lambda: endpoint.exists() and json.loads(endpoint.read_text())["identity"] == 1, "the loss of 0", process
    )
    wait_until(lambda: (beat := read_heartbeat(folder.heartbeat(0))) is not None and beat.step >= step, "a step")
    port, first = json.loads(endpoint.read_text())["port"], read_heartbeat(folder.heartbeat(0))
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    try:
        joining = harness.start("frog", "join", name)
        links = psutil.Process(joining.pid).net_connections
        wait_until(lambda: any(link.raddr[1:] == (port,) for link in links()), "a join request", joining)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    out, err = run_to_end(joining)
    assert joining.returncode == 0, err
    return out


@pytest.mark.slow
def test_four_ranks_lose_two_regain_one_and_reach_the_undisturbed_result(
    harness: Harness, undisturbed: dict[str, Any]
) -> None:
    faults = ("--fault", "kill rank=2 step=4 phase=backward", "--fault", "kill rank=0 step=9 phase=reduce",
              "--fault", "slow rank=1 step=10 phase=data seconds=0.1")  # fmt: skip
    world = ("--nproc", "4", *HELD, "--", *words("shrink-all", PATIENT))
    process = harness.start("frog", "chaos", *faults, *world, warm=True)
    joined = join(harness, "shrink-all", 10, process)
    out, err = run_to_end(process)
    assert process.returncode == 0, err
    assert joined == "runs/shrink-all: joined as rank 2 in a world of 3 ranks\n"
    check(harness, "shrink-all", undisturbed)
    seen = memberships(harness, "shrink-all")
    assert [(event.lost, event.joined) for event in seen] == [([2], []), ([0], []), ([], [4])]
    assert [event.step for event in seen[:2]] == [3, 8]
    assert seen[-1].members == [1, 3, 4]
    assert [line.partition(" ")[2].partition(")")[2] for line in err.splitlines()] == [" was killed by SIGKILL"] * 2
    assert "rank 2 lost: continuing with 3 ranks after step 3" in out
    sizes = [start.world_size for start in harness.events("shrink-all").main.of(StartEvent)]
    assert sizes == [4, 3, 2, 3]
    segments = json.loads(harness.folder("shrink-all").run_json.read_text())["segments"]
    assert [(part["world_size"], part["from_step"]) for part in segments[:3]] == [(4, 0), (3, 3), (2, 8)]
    found = diagnose(harness.folder("shrink-all")).as_json()
    losses = [told(one)[:4] for one in (found, *found["also"]) if one["fault"] != "slow"]  # the test makes it slow
    assert sorted(losses) == [("kill", 0, 9, "reduce"), ("kill", 2, 4, "backward")]
    check_report(harness, "shrink-all")


@pytest.mark.slow
def test_rank_may_be_lost_in_any_phase(harness: Harness, undisturbed: dict[str, Any]) -> None:
    """Six of seven ranks are lost, one after another; other tests cover forward, backward and reduce.

    The last loss is the first rank during the last checkpoint, which only that rank could have completed.
    """
    name = "shrink-phases"
    places = [(8, "evaluate"), (16, "checkpoint"), (18, "data"), (20, "optimize"), (22, "zero"), (40, "checkpoint")]
    lost = [1, 2, 3, 4, 5, 0]
    faults = [f"kill rank={rank} step={step} phase={phase}" for rank, (step, phase) in zip(lost, places, strict=True)]
    asked = [word for fault in faults for word in ("--fault", fault)]
    harness.run("frog", "chaos", *asked, "--nproc", "7", "--threads", "1", "--", *words(name))
    check(harness, name, undisturbed)
    assert [event.lost for event in memberships(harness, name)] == [[rank] for rank in lost]
    assert {8, 16} <= set(harness.events(name).main.by_step(EvalEvent)), "an evaluation due at a loss was not repeated"
    assert {8, 16, 40} <= set(harness.folder(name).checkpoint_steps())


@pytest.mark.slow
def test_single_survivor_continues_and_admits_another_rank(harness: Harness, undisturbed: dict[str, Any]) -> None:
    faults = ("--fault", "kill rank=0 step=3 phase=forward", "--fault", "slow rank=1 step=4 phase=data seconds=0.1")
    world = ("--nproc", "2", *HELD, "--", *words("shrink-one", PATIENT))
    process = harness.start("frog", "chaos", *faults, *world, warm=True)
    join(harness, "shrink-one", 5, process)
    _, err = run_to_end(process)
    assert process.returncode == 0, err
    check(harness, "shrink-one", undisturbed)
    assert memberships(harness, "shrink-one")[-1].members == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("world", [("--nproc", "3"), ("--nodes", "3x1")], ids=["ranks", "nodes"])
def test_stopped_rank_is_excluded_and_ended(
    world: tuple[str, str], harness: Harness, undisturbed: dict[str, Any]
) -> None:
    fault, name = "stop rank=1 step=5 phase=forward", f"shrink-stop{world[0]}"
    run = words(name, "train.timeout_s=3")
    harness.run("frog", "chaos", "--fault", fault, *world, "--threads", "1", "--", *run)
    check(harness, name, undisturbed)
    assert told(diagnose(harness.folder(name)).as_json()) == ("stop", 1, 5, "forward", "recovered")
    lost = [event.lost for event in memberships(harness, name)]
    assert [ranks for ranks in lost if ranks] == [[1]], "apart from a step that was repeated because a rank was late"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "world"), [(0, ("--nproc", "3")), (2, ("--nproc", "3")), (0, ("--nodes", "3x1"))], ids=["0", "2", "nodes"]
)
def test_rank_with_closed_connections_does_not_continue_alone(
    rank: int, world: tuple[str, str], harness: Harness, undisturbed: dict[str, Any]
) -> None:
    name = f"shrink-port-{rank}{world[0]}"
    port = f"port rank={rank} step=5 phase=reduce"
    wait = "slow rank=1 step=6 phase=backward times=9 seconds=0.1"  # only a waiting rank checks that the others exist
    harness.run("frog", "chaos", "--fault", port, "--fault", wait, *world, "--threads", "1", "--", *words(name))
    check(harness, name, undisturbed)
    assert [(event.lost, len(event.members)) for event in memberships(harness, name)] == [([rank], 2)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_lost_shard_is_restored_from_its_neighbour(
    strategy: str, harness: Harness, undisturbed: dict[str, Any]
) -> None:
    faults = ("--fault", "kill rank=2 step=4 phase=backward", "--fault", "kill rank=0 step=9 phase=optimize")
    name = f"shrink-{strategy}"
    run = words(name, f"strategy.name={strategy}")
    harness.run("frog", "chaos", *faults, "--nproc", "4", "--threads", "1", "--", *run)
    check(harness, name, undisturbed)
    assert memberships(harness, name)[-1].members == [1, 3]


@pytest.mark.slow
def test_run_survives_the_loss_of_a_node(harness: Harness, undisturbed: dict[str, Any]) -> None:
    fault = "node rank=2 step=5 phase=backward"
    run = words("shrink-node")
    done = harness.run("frog", "chaos", "--fault", fault, "--nodes", "2x2", "--threads", "1", "--", *run)
    check(harness, "shrink-node", undisturbed)
    assert "ranks 2, 3 lost: continuing with 2 ranks after step 4" in done.stdout


@pytest.mark.slow
def test_loss_of_two_neighbours_together_loses_a_shard(harness: Harness) -> None:
    faults = [word for rank in (1, 2) for word in ("--fault", f"kill rank={rank} step=9 phase=forward")]
    run = words("shrink-gone", "strategy.name=zero1")
    done = harness.run("frog", "chaos", *faults, "--nproc", "4", "--threads", "1", "--", *run, code=137)
    assert "rank 1 (pid" in done.stderr
    assert "ranks 1 and 2 were lost together" in harness.folder("shrink-gone").rank_log(0).read_text()
    harness.run("frog", "run", "--nproc", "2", "--threads", "1", "--", "train", "--resume", "runs/shrink-gone")
    assert harness.record("shrink-gone")["status"] == "completed"


@pytest.mark.slow
def test_ranks_that_call_different_collectives_end_the_run(harness: Harness) -> None:
    """Otherwise the step would be repeated forever."""
    fault = ("--fault", "shape rank=1 step=5 phase=reduce", "--nproc", "3", "--threads", "1")
    done = harness.run("frog", "chaos", *fault, "--", *words("shrink-shape"), code=1)
    assert "of the group calls all_reduce of" in done.stderr
    assert "try: all ranks of an axis must call the same collectives" in done.stderr
    assert "Traceback" not in done.stderr
    assert not memberships(harness, "shrink-shape")
    assert told(diagnose(harness.folder("shrink-shape")).as_json())[:4] == ("shape", 1, 5, "reduce")


@pytest.mark.slow
def test_rank_that_is_late_in_every_attempt_ends_the_run(harness: Harness) -> None:
    """The late rank responds when the others ask, so no rank is lost."""
    fault = ("--fault", "slow rank=1 step=5 phase=data times=9 seconds=5", "--nproc", "2", "--threads", "1")
    run = words("shrink-late", "train.timeout_s=3")
    done = harness.run("frog", "chaos", *fault, "--", *run, code=1)
    assert "step 5 failed 3 times although no rank was lost" in done.stderr
    assert "increase train.timeout_s (now 3)" in done.stderr
    assert "Traceback" not in done.stderr
    assert [event.lost for event in memberships(harness, "shrink-late") if event.step == 4] == [[], []]
    assert told(diagnose(harness.folder("shrink-late")).as_json())[1:4] == (1, 5, "data")


def test_unsupported_settings_with_shrink_are_reported(harness: Harness) -> None:
    done = harness.train(2, "no", "comm.on_loss=shrink", "strategy.tp=2", code=2)
    assert "comm.on_loss='shrink' with strategy.tp=2" in done.stderr
    done = harness.train(2, "no", "comm.on_loss=shrink", "comm.backend=gloo", code=2)
    assert "comm.on_loss='shrink' with comm.backend='gloo'" in done.stderr


def test_join_of_an_unsuitable_run_is_reported(harness: Harness, undisturbed: dict[str, Any]) -> None:
    done = harness.run("frog", "join", "shrink-calm", code=2)
    assert "runs/shrink-calm is not an elastic run: comm.on_loss is 'fail'" in done.stderr
    file = harness.folder("shrink-calm").run_json
    before = file.read_text()
    file.write_text(before.replace('"on_loss": "fail"', '"on_loss": "shrink"'))
    done = harness.run("frog", "join", "shrink-calm", "--timeout", "0.1", code=2)
    file.write_text(before)
    assert ": no join endpoint" in done.stderr
    assert Path(harness.root / "runs/shrink-calm/record.json").exists()
